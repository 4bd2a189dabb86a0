"""What a report shows of a run, read from its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kda.monitor.errors import MonitorError
from kda.monitor.log import Cursor, Run, find_run
from kda.monitor.points import Converter, Scalar, is_record, seconds_of
from kda.monitor.settings import flat_config
from kda.monitor.survey import require_records

EVAL_FORMAT = "kda-eval-mt"
EVAL_NAME = "report.json"


@dataclass
class Series:
    """Values over steps, in the order of the log; steps only rise."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    step: int
    prompt: str
    text: str
    finish: str


@dataclass(frozen=True)
class EvalReport:
    path: str
    data: dict[str, Any]


@dataclass
class RunData:
    name: str
    run: Run
    config: dict[str, Any]  #: flat
    series: dict[str, Series] = field(default_factory=dict)
    elapsed: dict[int, float] = field(default_factory=dict)  #: step -> seconds of work up to it
    tokens: dict[int, float] = field(default_factory=dict)  #: step -> tokens read
    samples: list[Sample] = field(default_factory=list)
    saves: list[dict[str, Any]] = field(default_factory=list)
    resumed_from: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    evals: list[EvalReport] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    last_step: int = 0
    total_steps: int | None = None
    seconds: float = 0.0


def load_run(path: Path, name: str) -> RunData:
    run = find_run(path)
    require_records(run)
    data = RunData(name, run, flat_config(run.config()), total_steps=run.total_steps())
    cursor, converter, unread = Cursor(run.log), Converter(), 0
    for line in cursor.advance():
        if line.record is None or not is_record(line.record):
            unread += line.record is not None or bool(line.fault)
            continue
        _take(data, line.record, converter)
    if unread:
        data.faults.append(f"{unread} lines of {run.log.name} are no records and were left out.")
    if not data.config:
        data.faults.append("There is no readable config.json beside the log.")
    for step, why in data.skipped[:5]:
        data.faults.append(f"Step {step} was skipped: {why}.")
    if len(data.skipped) > 5:
        data.faults.append(f"{len(data.skipped) - 5} more steps were skipped.")
    for name in ("train/loss", "train/grad_norm", "heldout/ce"):
        values = data.series[name].values if name in data.series else []
        if bad := sum(not math.isfinite(value) for value in values):
            data.faults.append(f"{name}: {bad} of {len(values)} values are NaN or infinite.")
    data.evals = _eval_reports(run.folder)
    return data


def _take(data: RunData, record: dict[str, Any], converter: Converter) -> None:
    step = record["step"]
    data.seconds += seconds_of(record)
    for point in converter.points(record):
        if isinstance(point, Scalar):
            series = data.series.setdefault(point.name, Series())
            series.steps.append(point.step)
            series.values.append(point.value)
            if point.name == "train/tokens":
                data.tokens[step] = point.value
    data.elapsed[step] = data.seconds
    kind = record["kind"]
    if kind == "step":
        data.last_step = max(data.last_step, step)
        if "skipped" in record:
            data.skipped.append((step, str(record["skipped"])))
    elif kind == "sample":
        texts = (str(record.get(key, "")) for key in ("prompt", "text", "finish"))
        data.samples.append(Sample(step, *texts))
    elif kind == "save":
        data.saves.append(record)
    elif kind == "resume":
        data.resumed_from.append(step)


def _eval_reports(folder: Path) -> list[EvalReport]:
    """Reports of `kda eval mt` in the run folder or one below (--out RUN/mt)."""
    found = []
    for path in sorted([*folder.glob(EVAL_NAME), *folder.glob(f"*/{EVAL_NAME}")]):
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue  # another program's file
        if isinstance(data, dict) and data.get("format") == EVAL_FORMAT:
            found.append(EvalReport(str(path.relative_to(folder)), data))
    return found


def load_eval(path: Path) -> EvalReport:
    """A report of `kda eval mt` that was named: the file or the folder that was its --out."""
    file = path / EVAL_NAME if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise MonitorError(f"--eval {path}: no {EVAL_NAME} of kda eval mt there") from error
    except OSError as error:
        raise MonitorError(f"--eval {file}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise MonitorError(
            f"--eval {file}: not JSON; expected a {EVAL_NAME} of kda eval mt"
        ) from error
    if not isinstance(data, dict) or data.get("format") != EVAL_FORMAT:
        raise MonitorError(f"--eval {file}: not a report of kda eval mt (format {EVAL_FORMAT})")
    return EvalReport(str(path), data)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names; as many parents before them as are needed to tell them apart."""
    folders = [(path.parent if path.is_file() else path).absolute() for path in paths]
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]).lstrip("/") or "run" for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise MonitorError("the same run was given twice")
