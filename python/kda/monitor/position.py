"""How far an exporter has come: one small file beside its output, complete or absent; and a lock."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kda.monitor.errors import MonitorError

_FORMAT = "kda-monitor-position"


@dataclass(frozen=True)
class Position:
    """``bytes`` of the log, with hash ``sha256``, are in the output that ``sink`` describes.
    ``generation`` counts how often the export began anew because training had gone back."""

    log: str
    generation: int
    bytes: int
    lines: int
    sha256: str
    sink: dict[str, Any] = field(default_factory=dict)


def write_atomic(path: Path, data: bytes) -> None:
    """``path``, or what it links to, holds the old or the new bytes at any time, also after a power
    cut. MonitorError where it is a device, pipe or socket: a file never takes their place."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise MonitorError(
            f"cannot replace {path}: it is a folder, device, pipe or socket, "
            "expected a file or nothing"
        )
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(path: Path, position: Position) -> None:
    text = json.dumps({"format": _FORMAT, "version": 1, **asdict(position)}, indent=1)
    write_atomic(path, text.encode() + b"\n")


def load(path: Path) -> Position | None:
    """None when there is no file. One that cannot be understood is an error: the output beside it
    may hold points, and exporting them again would double them."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise MonitorError(
            f"{path}: cannot read ({error}); remove it and the output beside it"
        ) from error
    try:
        if data["format"] != _FORMAT or data["version"] != 1:
            raise ValueError
        position = Position(
            log=str(data["log"]),
            generation=int(data["generation"]),
            bytes=int(data["bytes"]),
            lines=int(data["lines"]),
            sha256=str(data["sha256"]),
            sink=dict(data["sink"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MonitorError(
            f"{path}: not a position of this version; remove it and the output beside it"
        ) from error
    return position


class Lock:
    """One exporter per output: two would write every point twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: IO[str] | None = None

    def __enter__(self) -> Lock:
        self._stream = self._path.open("a+")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.seek(0)
            owner = self._stream.read(20).strip() or "unknown"
            self._stream.close()
            raise MonitorError(
                f"{self._path.parent}: another exporter (process {owner}) is writing here"
            ) from None
        self._stream.truncate(0)
        self._stream.write(f"{os.getpid()}\n")
        self._stream.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
