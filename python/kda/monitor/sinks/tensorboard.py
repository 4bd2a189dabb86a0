"""TensorBoard: one event file, written with the library's own record writer and messages.

Exactly once: the position names the event file and its length when it was saved; whatever a killed
exporter wrote behind that is cut off before going on. Times follow from the log alone, so the bytes
that come again are the same and a running TensorBoard, which may have read the old ones, keeps its
place. When training went back, a new file replaces the old one, which stays empty; its first event
is a session start at step 0, which tells a running TensorBoard to drop what it has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from kda.monitor.errors import MonitorError, require
from kda.monitor.points import Point, Scalar
from kda.monitor.settings import flat_config
from kda.monitor.sinks import Batch, Target
from kda.monitor.survey import survey

NAME = "tensorboard"
_PREFIX = "events.out.tfevents."


class TensorBoardSink:
    """Writes ``out/tensorboard/events.out.tfevents.*``; view with ``tensorboard --logdir``."""

    replays = False

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2
        self._summary = summary_pb2
        self._tensor = tensor_pb2
        self._types = types_pb2
        self._make_writer = RecordWriter
        self._began = 0.0
        self._stream: IO[bytes] | None = None
        self._writer: Any = None
        self._path = Path()

    def open(self, target: Target) -> bool:
        folder = target.out / NAME
        folder.mkdir(parents=True, exist_ok=True)
        goes_on = not target.is_new and self._reopen(folder, target.state)
        if not goes_on:
            self._begin(folder, target)
        for other in folder.glob(f"{_PREFIX}*"):
            # An older generation, or the start of one that was killed. Emptied and not removed:
            # TensorBoard's Python reader would stop at a file that it had open and is gone.
            if other != self._path and other.stat().st_size > 0:
                os.truncate(other, 0)
        return goes_on

    def _reopen(self, folder: Path, state: dict[str, Any]) -> bool:
        try:
            name, size, self._began = (
                str(state["file"]),
                int(state["bytes"]),
                float(state["began"]),
            )
        except (KeyError, TypeError, ValueError):
            return False
        self._path = folder / Path(name).name
        if not self._path.is_file() or self._path.stat().st_size < size:
            return False
        self._stream = self._path.open("r+b")
        self._stream.truncate(size)
        self._stream.seek(size)
        self._writer = self._make_writer(self._stream)
        return True

    def _begin(self, folder: Path, target: Target) -> None:
        # The log holds durations: its last change less all of them is when the run began.
        self._began = target.run.log.stat().st_mtime - survey(target.run).seconds
        # TensorBoard reads the files of a run in the order of their names.
        self._path = folder / f"{_PREFIX}{int(self._began):010d}.kda.{target.generation:06d}"
        self._stream = self._path.open("wb")
        self._writer = self._make_writer(self._stream)
        self._put(self._event.Event(wall_time=self._began, file_version="brain.Event:2"))
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._put(self._event.Event(wall_time=self._began, step=0, session_log=start))
        config = flat_config(target.run.config())
        if config:
            table = "\n".join(f"    {key} = {value}" for key, value in config.items())
            self._put_values(0, self._began, [self._text("config", table)])
            self._put_hparams(config, target)

    def write(self, batch: Sequence[Batch]) -> None:
        for line in batch:
            by_step: dict[int, list[Any]] = {}
            for point in line.points:
                by_step.setdefault(point.step, []).append(self._value(point))
            for step, values in by_step.items():
                self._put_values(step, self._began + line.elapsed_s, values)

    def commit(self) -> dict[str, Any]:
        stream = self._open_stream()
        stream.flush()
        os.fsync(stream.fileno())
        return {"file": self._path.name, "bytes": stream.tell(), "began": self._began}

    def caught_up(self) -> None:
        pass

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open_stream(self) -> IO[bytes]:
        if self._stream is None:
            raise MonitorError("the TensorBoard output is not open")
        return self._stream

    def _put(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def _put_values(self, step: int, wall_time: float, values: list[Any]) -> None:
        summary = self._summary.Summary(value=values)
        self._put(self._event.Event(wall_time=wall_time, step=step, summary=summary))

    def _value(self, point: Point) -> Any:
        if isinstance(point, Scalar):
            return self._summary.Summary.Value(tag=point.name, simple_value=point.value)
        # Indented by four: Markdown shows it as it is.
        body = "\n".join(f"    {row}" for row in f"{point.prompt}⟶{point.text}".splitlines())
        return self._text(point.name, body)

    def _text(self, tag: str, markdown: str) -> Any:
        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text"),
            data_class=self._summary.DATA_CLASS_TENSOR,
        )
        tensor = self._tensor.TensorProto(
            dtype=self._types.DT_STRING, string_val=[markdown.encode("utf-8", "replace")]
        )
        return self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)

    def _put_hparams(self, config: dict[str, Any], target: Target) -> None:
        from tensorboard.plugins.hparams import summary_v2

        simple = {
            key: value
            for key, value in config.items()
            if key.startswith(("train.", "model."))
            and isinstance(value, bool | int | float | str)
            and value != ""
        }
        event = self._event.Event(wall_time=self._began, step=0)
        summary = summary_v2.hparams_pb(simple, trial_id=target.run.name)
        event.summary.MergeFromString(summary.SerializeToString())
        self._put(event)
