"""A first look at a log: is it one, and how long did the run take?"""

from __future__ import annotations

from dataclasses import dataclass

from kda.monitor.errors import MonitorError
from kda.monitor.log import Cursor, Run
from kda.monitor.points import is_record, seconds_of


@dataclass(frozen=True)
class Survey:
    lines: int
    records: int
    seconds: float  #: sum of the durations in the log


def survey(run: Run) -> Survey:
    cursor, records, seconds = Cursor(run.log), 0, 0.0
    for line in cursor.advance():
        if line.record is not None and is_record(line.record):
            records += 1
            seconds += seconds_of(line.record)
    return Survey(cursor.lines, records, seconds)


def require_records(run: Run) -> None:
    """Throws when the log has nothing to show, saying whether it is empty or something else."""
    found = survey(run)
    if found.records > 0:
        return
    if found.lines == 0:
        raise MonitorError(f"{run.log}: no whole line in it yet; has the run taken a step?")
    raise MonitorError(
        f"{run.log}: not a metrics log: none of its {found.lines} lines is a JSON object with a "
        "kind and a step"
    )
