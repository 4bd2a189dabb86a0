"""Tokens per second of `kda train` from the metrics.jsonl of a run, as one JSON line.

    kda train ... --steps 15 --out runs/speed
    python bench/peers/train/ours.py runs/speed

Medians over the steps after the third. Set it beside fla_lm.py with the run's config.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path


def main() -> None:
    """Reads the run and prints its speed."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: ours.py RUN")
    run = Path(sys.argv[1])
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if r["kind"] == "step" and r["step"] > 3 and "loss" in r]
    if not steps:
        raise SystemExit(f"{run}: expected more than 3 steps, got {len(records)} records")
    config = json.loads((run / "config.json").read_text())
    times = [r["step_ms"] for r in steps]
    result = {
        "engine": "kda",
        "parameters": config["derived"]["parameters"],
        "tokens_per_step": config["derived"]["tokens_per_step"],
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
        "tok_per_s": statistics.median(r["tok_per_s"] for r in steps),
        "peak_gib": max(r.get("gpu_bytes", 0) for r in steps) / 2**30,
        "last_loss": steps[-1]["loss"],
        "device": config["derived"]["device"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
