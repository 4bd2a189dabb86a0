"""Command line of ``python -m kda.corpus`` (and of ``kda data``): build, inspect, verify, floors."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kda.command_line import Parser, guarded, print_error
from kda.corpus.errors import UsageError

PRESETS = ("debian-small", "debian-full", "tiny")

_DESCRIPTION = """Build the text corpus for training: Chinese and English documents for
pretraining, parallel sentences for fine-tuning, and evaluation sets that training text never
touches."""

_EPILOG = """examples:
  build --preset tiny --out data/tiny              offline, seconds; for tests and first steps
  build --preset debian-small --out data/small     183 MB of packages, then offline
  build --input my.jsonl texts/ --out data/mine    your own text
  build --preset debian-small --input texts/ --out data/both

Formats of --input: .txt (documents separated by an empty line), .jsonl (title and text, or src
and tgt with an optional direction en2zh or zh2en), .parquet (a text column).
Nothing is installed; packages come from the sources that apt is configured with.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 and 143 interrupted."""


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return value


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kda" / "corpus"


def parser(program: str) -> argparse.ArgumentParser:
    root = Parser(prog=program, description=_DESCRIPTION)
    verbs = root.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    build = verbs.add_parser(
        "build",
        help="build a corpus folder",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    build.add_argument("--preset", choices=PRESETS, help="which ready recipe to build")
    build.add_argument(
        "--input",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="your own files or folders (.txt, .jsonl, .parquet); alone or beside a preset",
    )
    build.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    build.add_argument(
        "--cache",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"downloaded packages and lists (default {default_cache()})",
    )
    build.add_argument(
        "--jobs",
        type=_positive,
        default=min(os.cpu_count() or 1, 8),
        metavar="N",
        help="worker processes (default: one per core, at most 8); never changes the output",
    )
    build.add_argument(
        "--text-column",
        metavar="NAME",
        help="field of .jsonl and .parquet that holds the text (default: text or content)",
    )
    build.add_argument(
        "--lang",
        choices=("auto", "zh", "en"),
        default="auto",
        help="language of --input documents (default auto: by the share of Chinese characters)",
    )
    build.add_argument(
        "--to-simplified",
        action="store_true",
        help="convert traditional Chinese in --input to simplified (default: keep)",
    )
    build.add_argument(
        "--prose-weight",
        type=_positive,
        default=3,
        metavar="N",
        help="write prose and documentation pairs N times into the SFT file (default 3), "
        "user-interface strings once",
    )
    build.add_argument(
        "--allow-missing-eval",
        action="store_true",
        help="go on when fewer than 99%% of the frozen evaluation pairs are found; the manifest "
        "records it",
    )
    build.add_argument("--refresh", action="store_true", help="fetch the package lists again")
    build.add_argument("--quiet", action="store_true", help="no progress lines, no summary")
    for verb, text in (
        ("inspect", "print what a corpus folder holds (from its MANIFEST.json)"),
        (
            "verify",
            "recompute sizes and sha256 of a corpus folder; exit 1 on a difference",
        ),
    ):
        command = verbs.add_parser(verb, help=text, description=text)
        command.add_argument("folder", type=Path, metavar="DIR")
    command = verbs.add_parser(
        "floors",
        help="score systems that do not translate (copy, shuffle, nearest training pair)",
        description="BLEU and chrF that an evaluation set gives to systems that do not translate.",
    )
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument(
        "--set",
        nargs="+",
        default=["test"],
        metavar="NAME",
        help="evaluation sets in DIR/eval (default test)",
    )
    return root


def _build(arguments: argparse.Namespace) -> int:
    from kda.corpus.build import BuildOptions, build
    from kda.corpus.report import print_summary
    from kda.corpus.user import UserOptions

    if not arguments.preset and not arguments.input:
        raise UsageError(f"give --preset ({', '.join(PRESETS)}) or --input")
    if not arguments.input:
        for name in ("text_column", "to_simplified"):
            if getattr(arguments, name):
                raise UsageError(f"--{name.replace('_', '-')} needs --input")
        if arguments.lang != "auto":
            raise UsageError("--lang needs --input")
    manifest = build(
        BuildOptions(
            out=arguments.out,
            preset=arguments.preset,
            inputs=tuple(arguments.input),
            cache=arguments.cache or default_cache(),
            jobs=arguments.jobs,
            prose_weight=arguments.prose_weight,
            allow_missing_eval=arguments.allow_missing_eval,
            refresh=arguments.refresh,
            quiet=arguments.quiet,
            user=UserOptions(arguments.text_column, arguments.lang, arguments.to_simplified),
        )
    )
    if not arguments.quiet:
        print_summary(manifest, arguments.out)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from kda.corpus.output import load_manifest
    from kda.corpus.report import print_details

    print_details(load_manifest(arguments.folder), arguments.folder)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from kda.corpus.output import load_manifest, verify

    problems = verify(arguments.folder)
    for problem in problems:
        print_error(f"{_program()} {arguments.verb}", f"{arguments.folder}: {problem}")
    if not problems:
        count = len(load_manifest(arguments.folder)["files"])
        print(f"{arguments.folder}: {count} files agree with the manifest")
    return 1 if problems else 0


def _floors(arguments: argparse.Namespace) -> int:
    from kda.corpus.floors import floors

    rows = floors(arguments.folder, arguments.set)
    for row in rows:
        print(
            f"{row['set']:<10} {row['direction']}  {row['system']:<9} "
            f"BLEU {row['bleu']:6.2f}  chrF {row['chrf']:6.2f}"
        )
    for signature in sorted({text for row in rows for text in row["signatures"]}):
        print(signature)
    return 0


def _program() -> str:
    """`kda data` runs this module and names itself, so that help and errors show what was typed."""
    return os.environ.get("KDA_PROGRAM", "python -m kda.corpus")


def _terminate(signum: int, frame: object) -> NoReturn:
    del frame
    raise SystemExit(128 + signum)


_VERBS = {"build": _build, "inspect": _inspect, "verify": _verify, "floors": _floors}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    arguments = parser(_program()).parse_args(argv)
    return guarded(
        lambda: _VERBS[arguments.verb](arguments),
        f"{_program()} {arguments.verb}",
        "interrupted; nothing was written",
    )
