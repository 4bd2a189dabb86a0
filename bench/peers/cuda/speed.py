"""Times of forward and of forward + backward, side by side in one process, as JSON.

    python bench/peers/cuda/speed.py --json speed.json [--engines kda fla flashkda] [--cases NAME...]
    python bench/peers/cuda/tables.py speed speed.json > table.md

Every call is captured into a CUDA graph after eager warm-up and replayed; where a peer cannot be
captured, CUDA events around eager calls are used and the row says so. Medians. Peak memory is that
of an eager call: inputs, results, what is kept and workspace.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import PACKED, Case, Engine, Inputs, engines, machine, make_inputs

CASES = [
    Case(1, 8192, 96),
    Case(1, 8192, 64),
    Case(1, 8192, 96, lengths=PACKED),
    Case(1, 8192, 64, lengths=PACKED),
    Case(1, 8192, 96, lengths=(1024,) * 8),
    Case(1, 8192, 64, lengths=(1024,) * 8),
    Case(2, 16384, 16),
    Case(1, 4096, 16),
    Case(1, 65536, 8),
    Case(8, 2048, 32),
    Case(1, 8192, 64, dim=64),
    Case(1, 8192, 96, bounded=False),
]


def event_times(run: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of each of ``count`` runs."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) for one, other in itertools.pairwise(marks)]


def measure(run: Callable[[], Any], count: int, seconds: float) -> dict[str, Any]:
    """Median time of ``run``; results must be dropped by it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay, how = graph.replay, "graph"
    except Exception as error:  # the peer waits for the device somewhere
        torch.cuda.synchronize()
        graph, replay, how = None, run, f"events ({type(error).__name__} in capture)"
    replay()
    torch.cuda.synchronize()
    (once,) = event_times(replay, 1)
    count = max(5, min(count, int(seconds * 1000 / max(once, 1e-3))))
    times = event_times(replay, count)
    del graph
    return {
        "ms": statistics.median(times),
        "min": min(times),
        "max": max(times),
        "runs": count,
        "how": how,
    }


def copy_rate() -> float:
    """TB/s read and written by an elementwise copy of 2 GiB: the ceiling of this run."""
    source = torch.empty(2**30, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    target.copy_(source)
    times = event_times(lambda: target.copy_(source), 10)
    return 2 * source.nbytes / statistics.median(times) / 1e9


def peak_gib(run: Callable[[], Any]) -> float:
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def run_case(case: Case, engine: Engine, count: int, seconds: float) -> dict[str, Any]:
    x: Inputs = make_inputs(case)
    row: dict[str, Any] = {"case": case.name, "engine": engine.name, **dataclasses.asdict(case)}

    def forward() -> None:
        with torch.no_grad():
            engine.forward(x, case)

    row["forward"] = measure(forward, count, seconds)
    row["forward"]["peak_gib"] = peak_gib(forward)
    if engine.trains:
        for leaf in x.leaves():
            leaf.requires_grad_()

        def step() -> None:
            engine.step(x, case)

        row["step"] = measure(step, count, seconds)
        row["step"]["peak_gib"] = peak_gib(step)
    return row


def compile_in_parallel(names: list[str]) -> None:
    """FLA's kernels of every case, one process per case, into Triton's cache."""
    began = time.time()
    base = [sys.executable, __file__, "--compile-only", "--cases"]
    running = [subprocess.Popen([*base, name], stderr=subprocess.DEVNULL) for name in names]
    for name, process in zip(names, running, strict=True):
        if process.wait() != 0:
            print(f"compilation for {name} failed", file=sys.stderr)
    print(f"compiled FLA for {len(names)} cases in {time.time() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["kda", "fla", "flashkda"])
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="at most, per measurement")
    parser.add_argument("--precompile", action="store_true", help="compile FLA in parallel first")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [case for case in CASES if case.name in args.cases]
    if args.compile_only:
        import fla_tuning

        fla_tuning.compile_only()
        for case in chosen:
            fla_tuning.one_step(case)
        return
    if args.precompile:
        compile_in_parallel([case.name for case in chosen])
    result: dict[str, Any] = {"machine": machine(), "rows": []}
    result["machine"]["copy, TB/s"] = f"{copy_rate():.2f}"
    running = engines(args.engines)
    for case in chosen:
        for engine in running:
            reason = engine.cannot(case)
            row = {"case": case.name, "engine": engine.name, "skipped": reason}
            if not reason:
                try:
                    row = run_case(case, engine, args.runs, args.seconds)
                except Exception as error:
                    row["skipped"] = f"{type(error).__name__}: {error}"[:200]
            torch.cuda.empty_cache()
            result["rows"].append(row)
            shown = {n: round(row[n]["ms"], 3) for n in ("forward", "step") if n in row}
            print(case.name, engine.name, shown or row.get("skipped"), flush=True)
            if args.json:  # after every row, so that a run cut short leaves what it has
                args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
