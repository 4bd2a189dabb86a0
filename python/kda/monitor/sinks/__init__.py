"""What an exporter writes to. Each module needs its own optional library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kda.monitor.log import Run
from kda.monitor.points import Point

Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """``state`` is what the sink said at its last commit; ``is_new`` when the log's beginning has
    changed since, so that the output must begin anew (``generation`` counts from 1)."""

    run: Run
    out: Path
    generation: int
    is_new: bool
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """The points of one line of the log, logged ``elapsed_s`` after the run began."""

    points: Sequence[Point]
    line: int  #: from 1
    elapsed_s: float


class Sink(Protocol):
    """Two kinds. An appending one has at ``open`` exactly what the position says, and its position
    is saved after writing. A replaying one is given the log from the beginning at every start; its
    position, which only tells whether training went back, is saved before anything is sent."""

    @property
    def replays(self) -> bool: ...

    def open(self, target: Target) -> bool:
        """False: the output is not as the position says, so it was begun anew. (Appending.)"""
        ...

    def write(self, batch: Sequence[Batch]) -> None: ...

    def commit(self) -> dict[str, Any]:
        """Puts what was written beyond a kill, if the sink can; returns the state to save."""
        ...

    def caught_up(self) -> None:
        """All lines that the log had at ``open`` have been written."""
        ...

    def close(self) -> None: ...
