"""Run folders as a trainer leaves them, and readers of what exporters write, for the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIELDS = {"loss": "train/loss", "lr": "train/lr", "tok_per_s": "speed/tok_per_s"}
Points = dict[tuple[str, int], float]


class FakeRun:
    """Writes metrics.jsonl as the trainer does, one write per line, and cuts it on a resume."""

    def __init__(self, folder: Path, total_steps: int = 1000) -> None:
        self.folder = folder
        self.log = folder / "metrics.jsonl"
        self.seed = 0
        folder.mkdir(parents=True)
        self.configure(total_steps)

    def configure(self, total_steps: int, **train: Any) -> None:
        config = {
            "format": "kda-run",
            "version": 1,
            "train": {"task": "train", "lr": 3e-4, "dtype": "fp32", **train},
            "model": {"model_type": "kda", "hidden_size": 64},
            "derived": {"parameters": 153576, "device": "cpu", "total_steps": total_steps},
        }
        (self.folder / "config.json").write_text(json.dumps(config))

    def put(self, record: dict[str, Any]) -> None:
        self.put_text(json.dumps(record, ensure_ascii=False) + "\n")

    def put_text(self, text: str) -> None:
        with self.log.open("ab", buffering=0) as stream:
            stream.write(text.encode("utf-8", "surrogatepass"))

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.put(
                {
                    "kind": "step",
                    "step": step,
                    "tokens": 1024 * step,
                    "epoch": step / 100,
                    "lr": 1e-3 / step,
                    "loss": 7.0 - step / 1000 + self.seed,
                    "loss_ema": 7.0,
                    "grad_norm": 1.0,
                    "step_ms": 10.0 + self.seed,
                    "tok_per_s": 1000.0 + step,
                    "rss_bytes": 1 << 30,
                }
            )
            if step % 10 == 0:
                self.put(
                    {
                        "kind": "eval",
                        "step": step,
                        "heldout_loss": 6.5 - step / 1000 + self.seed,
                        "bits_per_byte": 3.0,
                        "best": True,
                        "seconds": 0.5,
                    }
                )

    def save(self, step: int) -> None:
        self.put({"kind": "save", "step": step, "folder": f"step-{step:06d}", "bytes": 1 << 20})

    def resume(self, step: int) -> None:
        """Training was killed and goes on from the checkpoint of ``step``, with other numbers."""
        kept = 0
        for line in self.log.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                break
            kept += len(line)
        os.truncate(self.log, kept)
        self.seed += 1
        self.put({"kind": "resume", "step": step, "micro": 0})

    def points(self) -> Points:
        """The points that a dashboard must show, of some fields, straight from the log."""
        found: Points = {}
        for line in self.log.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict):
                continue
            for key, name in FIELDS.items():
                if record.get("kind") == "step" and key in record:
                    found.setdefault((name, record["step"]), float(record[key]))
            if record.get("kind") == "eval":
                found.setdefault(("heldout/ce", record["step"]), float(record["heldout_loss"]))
        return found


def only_checked(points: list[tuple[str, int, float]]) -> Points:
    """As FakeRun.points, from what an exporter wrote. A point that is there twice is a failure."""
    names = {*FIELDS.values(), "heldout/ce"}
    found: Points = {}
    for name, step, value in points:
        if name in names:
            assert (name, step) not in found, f"{name} at step {step} is there twice"
            found[name, step] = value
    return found


def monitor(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kda.monitor", *map(str, words)],
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
        timeout=300,
        check=False,
    )


def start_monitor(*words: object, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kda.monitor", *map(str, words)],
        env=clean_environment(**environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def clean_environment(**more: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SWANLAB", "WANDB", "KDA_"))
    }
    return {**kept, "PYTHONPATH": str(ROOT / "python"), **more}


def need(package: str) -> None:
    """Skips a test whose optional library is missing. (Loading one takes seconds.)"""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the optional package {package} is not installed")


def read_tensorboard(folder: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [
        (tag, event.step, event.value)
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    ]


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format, up to the first that is cut."""
    at, parts = 7, []
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7 : at + 7 + length]
        if len(body) < length or zlib.crc32(bytes([kind]) + body) != checksum:
            return
        at += 7 + length
        parts.append(body)
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def read_swanlab(folder: Path) -> list[tuple[str, int, float]]:
    """All scalars of all run folders below ``folder``."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    found = []
    for path in sorted(folder.glob("run-*/*.swanlab")):
        for data in _leveldb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("scalar"):
                scalar = record.scalar
                found.append((scalar.key, scalar.step, scalar.value.number))
    return found


def read_wandb(folder: Path) -> list[tuple[str, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("wandb/*run-*-*/*.wandb")):
        for data in _leveldb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            row = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            found += [
                (key, row["step"], float(value))
                for key, value in row.items()
                if isinstance(value, int | float)
            ]
    return found
