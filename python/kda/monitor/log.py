"""Reading a metrics log that another process is writing, cutting or replacing.

The log of a run is the concatenation of ``metrics.jsonl.2``, ``metrics.jsonl.1``, ``metrics.jsonl``
(rotated parts first; the trainer itself never rotates). Offsets count bytes of that concatenation,
so that a rotation changes no offset.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda.monitor.errors import MonitorError

LOG_NAME = "metrics.jsonl"
CONFIG_NAME = "config.json"
MAX_LINE_BYTES = 16 << 20
_CHUNK = 1 << 20
_TAIL = 4096


class Rewound(Exception):
    """Bytes that were read before are no longer in the log: training went back to a checkpoint."""


@dataclass(frozen=True)
class Line:
    """One whole line. ``record`` is None when it is not a JSON object; ``fault`` says why, or is
    "" for an empty line."""

    number: int  #: from 1
    record: dict[str, Any] | None
    fault: str = ""


@dataclass(frozen=True)
class Run:
    """Where a run keeps its log and configuration."""

    folder: Path
    log: Path

    @property
    def name(self) -> str:
        return self.folder.name or "run"

    def config(self) -> dict[str, Any]:
        """The run's config.json; {} when there is none or it is being replaced."""
        try:
            value = json.loads((self.folder / CONFIG_NAME).read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def total_steps(self) -> int | None:
        derived = self.config().get("derived")
        total = derived.get("total_steps") if isinstance(derived, dict) else None
        return total if isinstance(total, int) else None


def find_run(path: Path, *, may_come: bool = False) -> Run:
    """RUN may be a run folder or its log. ``may_come``: neither needs to exist yet."""
    path = path.absolute()
    if path.is_dir():
        log = path / LOG_NAME
        if not log.is_file() and not may_come:
            raise MonitorError(
                f"{path}: holds no {LOG_NAME}; expected the --out folder of kda train or kda sft"
            )
        return Run(path.resolve(), path.resolve() / LOG_NAME)
    if path.is_file():
        return Run(path.resolve().parent, path.resolve())
    if may_come:
        return Run(path, path / LOG_NAME)
    raise MonitorError(f"{path}: no such run folder or log")


def _parts(log: Path) -> list[Path]:
    rotated: list[Path] = []
    while (part := log.with_name(f"{log.name}.{len(rotated) + 1}")).is_file():
        rotated.append(part)
    return [*reversed(rotated), log]


def _read(log: Path, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes of the concatenation from ``offset`` on."""
    found = b""
    for part in _parts(log):
        try:
            with part.open("rb") as stream:
                length = stream.seek(0, 2)
                if offset < length:
                    stream.seek(offset)
                    found += stream.read(size - len(found))
                    offset = 0
                else:
                    offset -= length
        except FileNotFoundError:
            continue  # not made yet, or between two names of a rotation
        if len(found) >= size:
            break
    return found


def is_prefix(log: Path, size: int, sha256: str) -> bool:
    """Whether the log still begins with the ``size`` bytes that had this hash."""
    digest, at = hashlib.sha256(), 0
    while at < size:
        block = _read(log, at, min(_CHUNK, size - at))
        if not block:
            return False
        digest.update(block)
        at += len(block)
    return digest.hexdigest() == sha256


def parse_line(number: int, text: bytes) -> Line:
    if not text.strip():
        return Line(number, None)
    try:
        value = json.loads(text.decode("utf-8"))  # bytes would be guessed at
    except UnicodeDecodeError:
        return Line(number, None, "not UTF-8")
    except (ValueError, RecursionError) as error:
        return Line(number, None, f"not JSON ({str(error)[:80]})")
    if not isinstance(value, dict):
        return Line(number, None, "not a JSON object")
    return Line(number, value)


class Cursor:
    """Reads whole lines as they come; notices when what it has read is taken back."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._digest = hashlib.sha256()
        self._tail = b""
        self.offset = 0  #: bytes of whole lines read so far
        self.lines = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def check(self) -> None:
        """Throws Rewound when the last bytes read are no longer there."""
        for pause in (0.0, 0.2):  # a rotation has its files between two names for a moment
            time.sleep(pause)
            if _read(self._log, self.offset - len(self._tail), len(self._tail)) == self._tail:
                return
        raise Rewound

    def advance(self) -> Iterator[Line]:
        """The whole lines that are there now. A last line without its newline waits: a trainer is
        writing it, or was killed there and will cut it off."""
        pending = b""
        while True:
            self.check()
            block = _read(self._log, self.offset + len(pending), _CHUNK)
            if not block:
                return
            begin, block = 0, pending + block
            while (end := block.find(b"\n", begin) + 1) > 0:
                text = block[begin:end]
                begin = end
                self._digest.update(text)
                self._tail = text[-_TAIL:]
                self.offset += len(text)
                self.lines += 1
                yield parse_line(self.lines, text)
            pending = block[begin:]
            if len(pending) > MAX_LINE_BYTES:
                raise MonitorError(
                    f"{self._log} line {self.lines + 1}: longer than {MAX_LINE_BYTES >> 20} MiB; "
                    "expected a metrics log with one JSON object per line"
                )
