"""Time of every kernel of a step, ours and FLA's, as JSON: where the time of a case goes.

    python bench/peers/cuda/stages.py --json stages.json [--case "B2 T16384 H16 D128"]
    python bench/peers/cuda/tables.py stages stages.json > table.md

Eager calls under torch.profiler after warm-up; the median of the runs per kernel and call.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from common import Engine, engines, machine, make_inputs
from speed import CASES
from torch.profiler import ProfilerActivity, profile


def kernels(engine: Engine, case: Any, runs: int) -> list[dict[str, Any]]:
    """Name, launches per step and milliseconds per step, longest first."""
    x = make_inputs(case)
    for leaf in x.leaves():
        leaf.requires_grad_()
    for _ in range(3):
        engine.step(x, case)
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for _ in range(runs):
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            engine.step(x, case)
            torch.cuda.synchronize()
        for event in trace.key_averages():
            if event.device_time_total > 0.0:
                times.setdefault(event.key, []).append(event.device_time_total / 1e3)
                counts[event.key] = event.count
    rows = [
        {"kernel": name, "launches": counts[name], "ms": statistics.median(values)}
        for name, values in times.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="B2 T16384 H16 D128", choices=[c.name for c in CASES])
    parser.add_argument("--engines", nargs="+", default=["kda", "fla"])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    case = next(c for c in CASES if c.name == args.case)
    result: dict[str, Any] = {"machine": machine(), "case": case.name, "engines": {}}
    for engine in engines(args.engines):
        if reason := engine.cannot(case):
            print(engine.name, reason)
            continue
        result["engines"][engine.name] = kernels(engine, case, args.runs)
        total = sum(row["ms"] for row in result["engines"][engine.name])
        print(f"{engine.name}: {total:.3f} ms in kernels", flush=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
