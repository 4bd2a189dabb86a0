"""Command line of ``python -m kda.evaluation``: check, score, export-flores."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from kda.command_line import Parser, guarded

_FLORES = """Write the English and Chinese sentences of a FLORES copy that you have as evaluation
sets for `kda eval mt`. Nothing is downloaded."""

_FLORES_EPILOG = """examples:
  kda export-flores --from floresp-v2.0.zip --out data/flores
  kda export-flores --from flores200_dataset/ --out data/flores --split devtest
  kda export-flores --from dev.parquet --out data/flores --split dev
  kda eval mt --ckpt runs/sft --data data/flores --set flores_devtest

What --from may be: the zip or tar archive, or the unpacked folder, with one file per language
(dev/eng_Latn.dev, devtest/devtest.zho_Hans, ...); a .parquet, .jsonl or .tsv file with columns
sentence_eng_Latn and sentence_zho_Hans (or eng_Latn and zho_Hans, or one row per language with
iso_639_3, iso_15924, id and text), or a folder of such files.
FLORES is CC BY-SA 4.0 and its owners ask that it not be put on the web as plain text: the output
folder gets a .gitignore that keeps the sentences out of git.
Exit codes: 0 done, 1 failed, 2 wrong usage."""


def parser(program: str) -> argparse.ArgumentParser:
    root = Parser(prog=program)
    verbs = root.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    verbs.add_parser("check", help="say whether sacreBLEU is there")
    score = verbs.add_parser("score", help="score a request file of `kda eval mt`")
    score.add_argument("request", type=Path, metavar="REQUEST")
    score.add_argument("answer", type=Path, metavar="ANSWER")
    flores = verbs.add_parser(
        "export-flores",
        prog=os.environ.get("KDA_PROGRAM"),
        help="write evaluation sets from your copy of FLORES",
        description=_FLORES,
        epilog=_FLORES_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flores.add_argument(
        "--from",
        dest="source",
        type=Path,
        required=True,
        metavar="PATH",
        help="your copy: archive, folder, .parquet, .jsonl or .tsv",
    )
    flores.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    flores.add_argument(
        "--split",
        nargs="+",
        choices=("dev", "devtest"),
        default=None,
        help="which parts (default: all that are there); for a table without a split column, "
        "what it is",
    )
    flores.add_argument("--password", metavar="TEXT", help="of a zip archive that has one")
    flores.add_argument(
        "--allow-partial",
        action="store_true",
        help="go on when a part does not have its 997 (dev) or 1,012 (devtest) sentences",
    )
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = parser("python -m kda.evaluation").parse_args(argv)
    # `kda export-flores` runs this module and names itself.
    program = os.environ.get("KDA_PROGRAM", f"python -m kda.evaluation {arguments.verb}")
    return guarded(lambda: _run(arguments), program, "interrupted; nothing was written")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "check":
        from kda.evaluation.scores import require_sacrebleu

        print(require_sacrebleu())
    elif arguments.verb == "score":
        from kda.evaluation.scores import score_request

        score_request(arguments.request, arguments.answer)
    else:
        from kda.evaluation.flores import FloresOptions, export

        for line in export(
            FloresOptions(
                source=arguments.source,
                out=arguments.out,
                splits=tuple(arguments.split or ()),
                password=arguments.password,
                allow_partial=arguments.allow_partial,
            )
        ):
            print(line)
    return 0
