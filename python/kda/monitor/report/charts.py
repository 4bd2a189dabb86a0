"""Curves as the data that page.js hands to Plotly; no chart is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kda.monitor.report.load import RunData, Series

MAX_POINTS = 2000


@dataclass(frozen=True)
class Curve:
    name: str  #: in RunData.series
    label: str
    style: str  #: thin, line, dashed or marks
    scale: float = 1.0


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    unit: str
    curves: tuple[Curve, ...]
    log_y: bool = False
    from_zero: bool = False


CHARTS = (
    Chart(
        "loss",
        "Loss",
        "nats per token",
        (
            Curve("train/loss", "training, each step", "thin"),
            Curve("train/loss_ema", "training, moving average", "line"),
            Curve("heldout/ce", "held out", "marks"),
        ),
    ),
    Chart(
        "heldout",
        "Held-out cross entropy",
        "nats per token",
        (Curve("heldout/ce", "held out", "marks"),),
    ),
    Chart(
        "bpb",
        "Held-out bits per byte",
        "bits per byte",
        (Curve("heldout/bits_per_byte", "held out", "marks"),),
    ),
    Chart(
        "success",
        "Sentences translated",
        "% of the held-out sentences",
        (Curve("mt/success_rate", "success", "marks", 100.0),),
        from_zero=True,
    ),
    Chart(
        "chrf",
        "Mean sentence chrF",
        "chrF",
        (Curve("mt/mean_chrf", "chrF", "marks"),),
        from_zero=True,
    ),
    Chart("lr", "Learning rate", "", (Curve("train/lr", "learning rate", "line"),), from_zero=True),
    Chart(
        "grad",
        "Gradient norm before clipping",
        "",
        (Curve("train/grad_norm", "gradient norm", "line"),),
        log_y=True,
    ),
    Chart(
        "speed",
        "Throughput",
        "tokens per second",
        (Curve("speed/tok_per_s", "tokens per second", "line"),),
        from_zero=True,
    ),
    Chart(
        "memory",
        "Memory",
        "GiB",
        (
            Curve("memory/rss_bytes", "process", "line", 2.0**-30),
            Curve("memory/gpu_bytes", "GPU", "dashed", 2.0**-30),
        ),
        from_zero=True,
    ),
    Chart(
        "moe",
        "Busiest expert",
        "tokens over the mean",
        (Curve("moe/max_load", "load", "marks"),),
    ),
)


def thinned(values: Sequence[float], limit: int = MAX_POINTS) -> list[int]:
    """Indices to draw: all, or the first, lowest, highest and last of equal ranges, so that no
    spike and no NaN is lost."""
    count = len(values)
    if count <= limit:
        return list(range(count))
    kept: set[int] = {0, count - 1}
    ranges = max(1, limit // 4)
    for r in range(ranges):
        begin, end = r * count // ranges, (r + 1) * count // ranges
        finite = [i for i in range(begin, end) if math.isfinite(values[i])]
        kept.add(begin)
        if len(finite) < end - begin:
            kept.add(next(i for i in range(begin, end) if not math.isfinite(values[i])))
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
    return sorted(kept)


def _rounded(value: float) -> float | None:
    """Six digits are more than a screen shows; None (a gap) for NaN and infinities."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _trace(data: RunData, index: int, curve: Curve, series: Series) -> dict[str, Any]:
    kept = thinned(series.values)
    steps = [series.steps[i] for i in kept]
    tokens, last = [], 0.0
    known = sorted(data.tokens)
    at = 0
    for step in steps:
        while at < len(known) and known[at] <= step:
            last = data.tokens[known[at]]
            at += 1
        tokens.append(last)
    return {
        "run": index,
        "label": curve.label,
        "style": curve.style,
        "step": steps,
        "tokens": tokens,
        "hours": [_rounded(data.elapsed.get(step, 0.0) / 3600) for step in steps],
        "y": [_rounded(series.values[i] * curve.scale) for i in kept],
    }


def chart_data(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Charts that have something to show, each with the traces of all runs."""
    found = []
    for chart in CHARTS:
        traces = [
            _trace(data, index, curve, data.series[curve.name])
            for index, data in enumerate(runs)
            for curve in chart.curves
            if curve.name in data.series
        ]
        if traces:
            found.append(
                {
                    "key": chart.key,
                    "title": chart.title,
                    "unit": chart.unit,
                    "log": chart.log_y,
                    "zero": chart.from_zero,
                    "traces": traces,
                }
            )
    return found
