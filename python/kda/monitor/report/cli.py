"""Command line of ``python -m kda.monitor.report`` (and of ``kda report``)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from kda.command_line import guarded
from kda.monitor.cli import Parser
from kda.monitor.errors import UsageError
from kda.monitor.position import write_atomic
from kda.monitor.report.load import load_eval, load_run, run_names
from kda.monitor.report.page import render

_DESCRIPTION = """One HTML page about a run: curves, throughput, memory, samples, evaluations,
configuration. Several runs are drawn into the same charts and the settings that differ stand out.
The page loads nothing: it can be mailed, archived, or opened from a disk."""

_EPILOG = """examples:
  {0} runs/first                             writes runs/first/report.html
  {0} runs/a runs/b --out compare.html
  {0} runs/sft --eval results/mt --out sft.html

Evaluations: every report.json of `kda eval mt` in the run folder or one below it is shown (--out
RUN/mt); --eval adds others. Needs the Python package plotly, for the charts.
Exit codes: 0 done, 1 failed (no run there, an empty log, a foreign file), 2 wrong usage."""


def parser(program: str) -> Parser:
    root = Parser(
        prog=program,
        description=_DESCRIPTION,
        epilog=_EPILOG.format(program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folder, or its metrics.jsonl"
    )
    root.add_argument(
        "--out", type=Path, metavar="FILE", help="page to write [RUN/report.html for one run]"
    )
    root.add_argument(
        "--eval",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="more reports of `kda eval mt`: report.json files or their folders",
    )
    root.add_argument("--title", metavar="TEXT", help="title of the page [the runs' names]")
    return root


def _report(arguments: argparse.Namespace) -> int:
    paths: list[Path] = arguments.runs
    out: Path | None = arguments.out
    if out is None:
        if len(paths) > 1:
            raise UsageError("--out: expected a file to write, since several runs are compared")
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        out = folder / "report.html"
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder, expected a file to write")
    runs = [load_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    evals = [load_eval(path) for path in arguments.eval]
    title = arguments.title or ", ".join(run.name for run in runs)
    page = render(runs, evals, title).encode("utf-8", "replace")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, page)
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"wrote {out} ({what}, {len(page) / 1e6:.1f} MB)")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    program = os.environ.get("KDA_PROGRAM", "python -m kda.monitor.report")
    arguments = parser(program).parse_args(argv)
    return guarded(lambda: _report(arguments), program)
