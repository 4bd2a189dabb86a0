"""From a record of the log to the points of a dashboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

#: Field of a record -> name in the dashboard, by the record's kind. Fields that are not listed get
#: the name "<kind>/<field>", so that a newer trainer's numbers are not lost.
NAMES: dict[str, dict[str, str]] = {
    "step": {
        "loss": "train/loss",
        "loss_ema": "train/loss_ema",
        "loss_z": "train/loss_z",
        "grad_norm": "train/grad_norm",
        "grad_z": "train/grad_z",
        "lr": "train/lr",
        "tokens": "train/tokens",
        "epoch": "train/epoch",
        "step_ms": "speed/step_ms",
        "tok_per_s": "speed/tok_per_s",
        "rss_bytes": "memory/rss_bytes",
        "gpu_bytes": "memory/gpu_bytes",
        "moe_max_load": "moe/max_load",
    },
    "eval": {
        "heldout_loss": "heldout/ce",
        "bits_per_byte": "heldout/bits_per_byte",
        "targets": "size/heldout_targets",
        "bytes": "size/heldout_bytes",
        "seconds": "speed/eval_s",
        "mt_sentences": "mt/sentences",
        "success_rate": "mt/success_rate",
        "mean_chrf": "mt/mean_chrf",
    },
    "save": {"bytes": "size/checkpoint_bytes", "seconds": "speed/save_s"},
}

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number(value: Any) -> float | None:
    """A number of the log, which spells the ones JSON has no words for as strings."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _WORDS.get(value) if isinstance(value, str) else None


def step_of(record: dict[str, Any]) -> int | None:
    step = record.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 48
    return step if is_step else None


@dataclass(frozen=True)
class Scalar:
    name: str
    step: int
    value: float


@dataclass(frozen=True)
class Text:
    name: str
    step: int
    prompt: str
    text: str


Point = Scalar | Text


def seconds_of(record: dict[str, Any]) -> float:
    """How long what the record tells of took; the log has durations and no clock times."""
    taken = 0.0
    for key, unit in (("step_ms", 1e-3), ("seconds", 1.0)):
        value = number(record.get(key))
        if value is not None and math.isfinite(value) and value > 0:
            taken += value * unit
    return taken


class Converter:
    """Points of one record after the other. A name's steps only rise: a step that comes again (an
    evaluation repeated after a resume) or goes back is left out and counted in ``left_out``."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._samples = (-1, 0)
        self.left_out = 0

    def points(self, record: dict[str, Any]) -> list[Point]:
        """[] for a record without a kind or a step, and for kinds that have nothing to show."""
        kind, step = record.get("kind"), step_of(record)
        if not isinstance(kind, str) or not kind or step is None:
            return []
        return [point for point in self._all(kind, step, record) if self._is_new(point)]

    def _all(self, kind: str, step: int, record: dict[str, Any]) -> list[Point]:
        if kind == "sample":
            at, count = self._samples
            self._samples = (step, count + 1 if at == step else 1)
            prompt, text = record.get("prompt"), record.get("text")
            return [Text(f"sample/{self._samples[1]}", step, str(prompt or ""), str(text or ""))]
        found: list[Point] = []
        if kind == "step" and "skipped" in record:
            found.append(Scalar("train/skipped", step, 1.0))
        names = NAMES.get(kind, {})
        for key, value in record.items():
            if key == "step" or (x := number(value)) is None:
                continue
            found.append(Scalar(names.get(key, f"{kind}/{key}"), step, x))
        return found

    def _is_new(self, point: Point) -> bool:
        if self._last.get(point.name, -1) >= point.step:
            self.left_out += 1
            return False
        self._last[point.name] = point.step
        return True


def is_record(record: dict[str, Any] | None) -> bool:
    return (
        record is not None and isinstance(record.get("kind"), str) and step_of(record) is not None
    )
