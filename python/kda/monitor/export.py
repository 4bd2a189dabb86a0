"""The loop of every exporter: read whole lines, write points, save how far it came."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kda.monitor import position
from kda.monitor.errors import UsageError
from kda.monitor.log import Cursor, Line, Rewound, Run, is_prefix
from kda.monitor.points import Converter, is_record, seconds_of
from kda.monitor.sinks import Batch, Say, Sink, Target
from kda.monitor.survey import require_records

_LINES_PER_COMMIT = 500
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Options:
    run: Run
    out: Path
    name: str  #: of the sink, for the files beside its output
    follow: bool = False
    interval_s: float = 2.0


class Stopped(Exception):
    """A signal asked to end. Everything read so far has been written."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Exporter:
    """``make_sink`` is called again when training went back and the export begins anew."""

    def __init__(
        self, options: Options, make_sink: Callable[[], Sink], say: Say, warn: Say
    ) -> None:
        self.options = options
        self.place = options.out / f"{options.name}.position.json"
        # Relative, so that a run folder can be moved with the exports inside.
        self.log_name = os.path.relpath(options.run.log, options.out)
        self.say = say
        self.stop_signal = 0
        self._make_sink = make_sink
        self._warn = warn
        self._told: set[str] = set()

    def run(self) -> None:
        """Exports what is there; with ``follow`` until the run is complete. Throws Stopped."""
        if not self.options.follow:
            require_records(self.options.run)
        self.options.out.mkdir(parents=True, exist_ok=True)
        with position.Lock(self.options.out / f"{self.options.name}.lock"):
            before = {signum: signal.getsignal(signum) for signum in _STOP_SIGNALS}
            try:
                self._catch_signals()
                self._wait_for_log()
                self._export_all()
            finally:
                for signum, handler in before.items():
                    signal.signal(signum, handler)

    def _export_all(self) -> None:
        while True:
            try:
                self._export_once()
                return
            except Rewound:
                continue  # what was saved no longer matches: a new generation

    def tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._warn(what)

    def _export_once(self) -> None:
        log = self.options.run.log
        saved = position.load(self.place)
        matches = saved is not None and is_prefix(log, saved.bytes, saved.sha256)
        if saved is not None and not matches:
            if saved.log != self.log_name:
                raise UsageError(
                    f"--out {self.options.out}: holds the export of another run "
                    f"({saved.log}); give another folder"
                )
            self.say(
                "the log no longer begins with what was exported (training went back to a "
                "checkpoint, or the run was replaced): exporting it anew"
            )
        target = Target(
            run=self.options.run,
            out=self.options.out,
            generation=1 if saved is None else saved.generation + (not matches),
            is_new=not matches,
            state={} if saved is None else saved.sink,
        )
        sink = self._make_sink()
        has_all = sink.open(target)
        start = saved if matches and (has_all or sink.replays) else None
        self._catch_signals()  # a client library may have put its own handlers in
        try:
            _Pass(self, sink, target.generation, start).run()
        finally:
            sink.close()
        if self.stop_signal:
            raise Stopped(self.stop_signal)

    def _wait_for_log(self) -> None:
        log = self.options.run.log
        if not log.is_file():
            self.say(f"waiting for {log}")
        while not log.is_file() and not self.stop_signal:
            time.sleep(self.options.interval_s)
        if self.stop_signal:
            raise Stopped(self.stop_signal)

    def _catch_signals(self) -> None:
        def remember(signum: int, frame: object) -> None:
            del frame
            self.stop_signal = signum

        for signum in _STOP_SIGNALS:
            signal.signal(signum, remember)


class _Pass:
    """One reading of the log from its beginning. Lines up to ``start`` were exported before: they
    must be the same, and an appending sink does not get them again."""

    def __init__(
        self, exporter: Exporter, sink: Sink, generation: int, start: position.Position | None
    ) -> None:
        self._exporter = exporter
        self._options = exporter.options
        self._sink = sink
        self._generation = generation
        self._start = start
        self._old_lines = 0 if start is None else start.lines
        self._cursor = Cursor(self._options.run.log)
        self._converter = Converter()
        self._batch: list[Batch] = []
        self._elapsed = 0.0
        self._saved_lines = -1
        self._points = 0
        self._old_points = 0  #: of them in the output before
        self._last_save: int | None = None

    def run(self) -> None:
        self._drain()
        if not self._exporter.stop_signal:
            self._sink.caught_up()
        self._exporter.say(self._summary())
        while self._options.follow and not self._exporter.stop_signal:
            if self._is_complete():
                self._exporter.say(f"the run is complete; {self._summary()}")
                return
            time.sleep(self._options.interval_s)
            self._drain()

    def _drain(self) -> None:
        self._cursor.check()
        for count, line in enumerate(self._cursor.advance(), 1):
            is_old = self._start is not None and self._cursor.offset <= self._start.bytes
            self._take(line, is_old=is_old)
            if self._start is not None and self._cursor.offset >= self._start.bytes:
                self._pass_start(self._start)
            if count % _LINES_PER_COMMIT == 0:
                self._flush()
            if self._exporter.stop_signal:
                break
        if self._start is not None and not self._exporter.stop_signal:
            raise Rewound  # shorter than when it was compared a moment ago
        self._flush()

    def _pass_start(self, start: position.Position) -> None:
        if self._cursor.offset != start.bytes or self._cursor.sha256 != start.sha256:
            raise Rewound
        self._start = None
        self._saved_lines = self._cursor.lines

    def _take(self, line: Line, *, is_old: bool) -> None:
        if line.record is None or not is_record(line.record):
            if line.record is not None or line.fault:
                fault = line.fault or "no kind or no step"
                self._exporter.tell_once(
                    f"{self._options.run.log} line {line.number}: {fault}; left out"
                )
            return
        self._elapsed += seconds_of(line.record)
        points = self._converter.points(line.record)
        self._points += len(points)
        if is_old:
            self._old_points += len(points)
        if line.record["kind"] == "save":
            self._last_save = line.record["step"]
        if points and (self._sink.replays or not is_old):
            self._batch.append(Batch(points, line.number, self._elapsed))

    def _flush(self) -> None:
        if self._sink.replays:
            self._save()
            self._sink.write(self._batch)
        else:
            self._sink.write(self._batch)
            self._save()
        self._batch = []

    def _save(self) -> None:
        """Never goes back behind what was exported before."""
        if self._start is not None or self._cursor.lines == self._saved_lines:
            return
        position.save(
            self._exporter.place,
            position.Position(
                log=self._exporter.log_name,
                generation=self._generation,
                sink=self._sink.commit(),
                bytes=self._cursor.offset,
                lines=self._cursor.lines,
                sha256=self._cursor.sha256,
            ),
        )
        self._saved_lines = self._cursor.lines

    def _is_complete(self) -> bool:
        total = self._options.run.total_steps()
        return total is not None and self._last_save is not None and self._last_save >= total

    def _summary(self) -> str:
        lines, points = self._cursor.lines, self._points
        if self._sink.replays or not self._old_lines:
            text = f"{lines} lines, {points} points"
        else:
            # An appending sink wrote only what is new: totals would read as if all came twice.
            new = f"{lines - self._old_lines} lines, {points - self._old_points} points"
            text = f"new: {new}; there before: {self._old_lines} lines, {self._old_points} points"
        if self._converter.left_out:
            text += f", {self._converter.left_out} repeated points left out"
        return text
