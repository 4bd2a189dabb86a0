"""Command line of ``python -m kda.monitor`` (and of ``kda monitor``)."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from kda.command_line import guarded
from kda.monitor.errors import UsageError
from kda.monitor.export import Exporter, Options, Stopped
from kda.monitor.log import find_run
from kda.monitor.service import ServiceOptions, ServiceSink, choose_mode
from kda.monitor.sinks import Say, Sink

_DESCRIPTION = """Show a run in a dashboard. The run's metrics.jsonl is read, now or while training
goes on (--follow); training itself needs no network and does not notice."""

_EPILOG = """examples:
  {0} tensorboard runs/first --follow      then: tensorboard --logdir runs
  {0} swanlab runs/first                   online with SWANLAB_API_KEY, else an offline run
  {0} swanlab runs/first --mode offline    later: swanlab sync runs/first/monitor/swanlab/run-*
  {0} wandb runs/first --follow            online with WANDB_API_KEY, else an offline run
  {0} ping                                 is SwanLab there? exit code 0 if so, else 1

Run again at any time, also after a kill: nothing is written twice, nothing is left out. One static
page instead of a dashboard: kda report.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 and 143 stopped (with --follow the usual end)."""

_SWANLAB_EPILOG = """environment:
  SWANLAB_API_KEY   the only place a key is taken from; without it the run is written offline
  SWANLAB_MODE      online (cloud), offline, local or disabled; --mode goes before it
  SWANLAB_API_HOST, SWANLAB_LOGDIR, SWANLAB_PROJ_NAME, SWANLAB_EXP_NAME, SWANLAB_WORKSPACE"""

_WANDB_EPILOG = """environment:
  WANDB_API_KEY     without it the run is written offline
  WANDB_MODE        online, offline or disabled; --mode goes before it
  WANDB_BASE_URL, WANDB_PROJECT, WANDB_NAME, WANDB_ENTITY"""

_PING_EPILOG = """GET HOST/api, once, for at most 5 seconds; the answer must be exactly OK. Prints the
link and its latency, the versions, the system and its GPUs. No key is sent.
Exit code: 0 when the link is good, 1 when it is not."""


class Parser(argparse.ArgumentParser):
    """Errors as one line, like the rest of the program."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 3600 seconds, got {text!r}")
    return value


def parser(program: str) -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    root = Parser(
        prog=program,
        description=_DESCRIPTION,
        epilog=_EPILOG.format(program),
        formatter_class=raw,
    )
    verbs = root.add_subparsers(dest="verb", metavar="WHERE", parser_class=Parser, required=True)
    about = {
        "tensorboard": ("an event file for TensorBoard", ""),
        "swanlab": ("SwanLab, online or offline", _SWANLAB_EPILOG),
        "wandb": ("Weights & Biases, online or offline", _WANDB_EPILOG),
    }
    for name, (what, epilog) in about.items():
        verb = verbs.add_parser(name, help=what, epilog=epilog, formatter_class=raw)
        verb.add_argument("run", type=Path, metavar="RUN", help="run folder, or its metrics.jsonl")
        verb.add_argument(
            "--follow",
            action="store_true",
            help="go on until the run is complete (or Ctrl-C); the run may still have to begin",
        )
        verb.add_argument("--out", type=Path, metavar="DIR", help="where to write [RUN/monitor]")
        verb.add_argument(
            "--interval",
            type=_seconds,
            default=2.0,
            metavar="S",
            help="with --follow: seconds between two looks [2]",
        )
        if name != "tensorboard":
            verb.add_argument("--mode", metavar="MODE", help="online, offline, disabled, ...")
            verb.add_argument("--project", metavar="NAME", help="project [kda]")
            verb.add_argument("--name", metavar="NAME", help="name there [the folder's]")
            verb.add_argument("--workspace", metavar="NAME", help="user or organisation")
    ping = verbs.add_parser(
        "ping", help="is SwanLab there? versions, GPUs", epilog=_PING_EPILOG, formatter_class=raw
    )
    ping.add_argument(
        "--host", metavar="URL", help="API [SWANLAB_API_HOST, https://api.swanlab.cn]"
    )
    return root


def _export(arguments: argparse.Namespace, program: str) -> int:
    def say(what: str) -> None:
        print(f"{arguments.verb}: {what}", flush=True)

    def warn(what: str) -> None:
        print(f"{program}: warning: {what}", file=sys.stderr, flush=True)

    make_sink = _sink_maker(arguments, say, warn)
    if make_sink is None:
        say("mode is disabled: nothing is exported")
        return 0
    run = find_run(arguments.run, may_come=arguments.follow)
    out = (arguments.out or run.folder / "monitor").absolute()
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is a file, expected a folder")
    options = Options(run, out, arguments.verb, arguments.follow, arguments.interval)
    try:
        Exporter(options, make_sink, say, warn).run()
    except Stopped as stop:
        return 128 + stop.signum
    return 0


def _sink_maker(arguments: argparse.Namespace, say: Say, warn: Say) -> Callable[[], Sink] | None:
    """A function that makes the sink; None when the mode is "disabled"."""
    if arguments.verb == "tensorboard":
        from kda.monitor.sinks.tensorboard import TensorBoardSink

        return TensorBoardSink
    kind: type[ServiceSink]
    if arguments.verb == "swanlab":
        from kda.monitor.sinks.swanlab import SwanLabSink as kind
    else:
        from kda.monitor.sinks.wandb import WandbSink as kind
    mode = choose_mode(arguments.mode, kind.mode_variable, kind.modes)
    options = ServiceOptions(mode, arguments.project, arguments.name, arguments.workspace)
    return None if mode == "disabled" else lambda: kind(options, say, warn)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    # `kda monitor` runs this module and names itself, so that usage lines show what was typed.
    program = os.environ.get("KDA_PROGRAM", "python -m kda.monitor")
    arguments = parser(program).parse_args(argv)
    return guarded(lambda: _run(arguments, program), program)


def _run(arguments: argparse.Namespace, program: str) -> int:
    if arguments.verb == "ping":
        from kda.monitor.ping import ping

        return ping(arguments.host)
    return _export(arguments, program)
