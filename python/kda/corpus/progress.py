"""Progress lines on stderr: what, how far, rate and time left."""

from __future__ import annotations

import sys
import time


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def human_time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


class Progress:
    """At most one line every ``interval`` seconds (None: 2 on a terminal, else 10), and a last one.

    ``unit`` is ``bytes`` (printed as kB, MB ...) or the plural of what is counted.
    """

    def __init__(
        self,
        step: str,
        total: int,
        unit: str,
        *,
        quiet: bool = False,
        interval: float | None = None,
    ) -> None:
        self._step, self._total, self._unit, self._quiet = step, total, unit, quiet
        # A log file needs fewer lines than a person at a terminal.
        self._interval = (2.0 if sys.stderr.isatty() else 10.0) if interval is None else interval
        self._start = self._last = time.monotonic()
        self._done = 0

    def _amount(self, count: float) -> str:
        if self._unit == "bytes":
            return human_bytes(count)
        return f"{count:,.0f} {self._unit}" if count >= 10 else f"{count:.2g} {self._unit}"

    def add(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if self._quiet or now - self._last < self._interval:
            return
        self._last = now
        rate = self._done / max(now - self._start, 1e-9)
        line = f"{self._step}: {self._amount(self._done)}"
        if self._total:
            left = max(self._total - self._done, 0) / rate if rate > 0 else 0.0
            line += f" of {self._amount(self._total)}, ETA {human_time(left)}"
        print(f"{line} ({self._amount(rate)}/s)", file=sys.stderr, flush=True)

    def finish(self, note: str = "") -> None:
        if self._quiet:
            return
        elapsed = time.monotonic() - self._start
        tail = f"; {note}" if note else ""
        print(
            f"{self._step}: {self._amount(self._done)} in {elapsed:.1f} s{tail}",
            file=sys.stderr,
            flush=True,
        )


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
