"""Times of forward and of forward + backward, side by side in one process, as JSON.

    python bench/peers/cuda/speed.py --json speed.json && \\
        python bench/peers/cuda/tables.py speed speed.json > table.md

Raw bf16 inputs, f32 states in and out; a step gives the gradients of all inputs. Each engine's
results are compared first (agreement.py) and a wrong one is not timed. Every call is captured into
a CUDA graph after eager warm-up and replayed, over several sets of inputs where one would stay in
the L2 cache; where a peer cannot be captured, CUDA events around eager calls are used and the row
says so. Medians. Peak memory is that of an eager call: inputs, results, what is kept and workspace.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agreement
import torch
from common import PACKED, Case, Engine, Inputs, engines, machine, make_inputs

ENGINES = ("kda", "fla", "flashkda", "cudnn", "cudnn-default")
#: inputs of all sets together: some times the 50 MB of the L2 cache
ROTATED_BYTES = 3e8

CASES = [
    Case(1, 8192, 96),
    Case(1, 8192, 64),
    Case(1, 8192, 96, lengths=(1024,) * 8),
    Case(8, 2048, 32),
    Case(2, 16384, 16),
    Case(1, 65536, 8),
    Case(1, 8192, 16),
    Case(1, 4096, 16),
    *(Case(1, 8192, heads, gate=gate) for heads in (96, 64) for gate in ("weak", "init")),
    Case(1, 8192, 64, dim=64),
    Case(1, 8192, 16, dim=64),
    Case(1, 65536, 8, dim=64),
    Case(1, 8192, 96, bounded=False),
    Case(1, 8192, 96, lengths=PACKED),
    Case(1, 8192, 64, lengths=PACKED),
    Case(1, 8192, 64, lengths=(1024,) * 8),
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


def measure(runs: list[Callable[[], Any]], count: int, seconds: float) -> dict[str, Any]:
    """Median time of one of ``runs``, which take turns and must drop their results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for run in (*runs, runs[0]):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graphs, how = [], "graph"
    try:
        for run in runs:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                run()
        replays = [graph.replay for graph in graphs]
    except Exception as error:  # the peer waits for the device somewhere
        torch.cuda.synchronize()
        graphs, replays, how = [], runs, f"events ({type(error).__name__} in capture)"
    turn = itertools.cycle(replays)
    for _ in replays:
        next(turn)()
    torch.cuda.synchronize()
    (once,) = event_times(lambda: next(turn)(), 1)
    count = max(5, min(count, int(seconds * 1000 / max(once, 1e-3))))
    times = event_times(lambda: next(turn)(), count)
    return {
        "ms": statistics.median(times),
        "min": min(times),
        "max": max(times),
        "runs": count,
        "how": how,
    }


def nbytes(x: Inputs) -> int:
    tensors = (getattr(x, field.name) for field in dataclasses.fields(x))
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def copy_rate() -> float:
    """TB/s read and written by an elementwise copy of 2 GiB: the ceiling of this run."""
    source = torch.empty(2**30, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    target.copy_(source)
    times = event_times(lambda: target.copy_(source), 10)
    return 2 * source.nbytes / statistics.median(times) / 1e9


def peak_gib(run: Callable[[], Any], held: int) -> float:
    """Of an eager call, less what was ``held`` before and is not its own."""
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**30


def run_case(
    case: Case, engine: Engine, sets: list[Inputs], count: int, seconds: float
) -> dict[str, Any]:
    """Times and peaks of one engine; ``sets`` are its inputs, taken in turn."""
    row: dict[str, Any] = {"case": case.name, "engine": engine.name, **dataclasses.asdict(case)}
    row |= {"route": engine.route, "input_sets": len(sets)}
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() - nbytes(sets[0])

    def forward(x: Inputs) -> None:
        with torch.no_grad():
            engine.forward(x, case)

    row["forward"] = measure([functools.partial(forward, x) for x in sets], count, seconds)
    row["forward"]["peak_gib"] = peak_gib(functools.partial(forward, sets[0]), held)
    if engine.trains:
        for leaf in itertools.chain.from_iterable(x.leaves() for x in sets):
            leaf.requires_grad_()

        def step(x: Inputs) -> None:
            engine.step(x, case)

        row["step"] = measure([functools.partial(step, x) for x in sets], count, seconds)
        row["step"]["peak_gib"] = peak_gib(functools.partial(step, sets[0]), held)
    return row


def run_engines(
    case: Case, running: list[Engine], ours: Engine, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """One row per engine: compared first, timed only if that finds nothing."""
    x = make_inputs(case)
    count = max(1, math.ceil(ROTATED_BYTES / nbytes(x)))
    own, wanted = {}, []
    trouble = ours.cannot(case)
    try:
        if not trouble:
            own = agreement.check_ours(ours, case)
            wanted = agreement.results(ours, ours.adapt(x, case), case)
            trouble = own["wrong"]
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"[:200]
    for engine in running:
        row: dict[str, Any] = {"case": case.name, "engine": engine.name}
        row["skipped"] = engine.cannot(case)
        try:
            if not row["skipped"]:
                if engine.name == ours.name:
                    found = {**own, "wrong": trouble}
                elif trouble:
                    found = {"wrong": f"not compared, as {ours.name} is not right ({trouble})"}
                else:
                    found = agreement.check_peer(engine, case, x, wanted)
                row |= {"agreement": found, "skipped": found["wrong"]}
                engine.release()
            if not row["skipped"]:
                sets = [engine.adapt(make_inputs(case, seed), case) for seed in range(count)]
                row |= run_case(case, engine, sets, args.runs, args.seconds)
        except Exception as error:
            row["skipped"] = f"{type(error).__name__}: {error}"[:200]
        sets = []
        engine.release()
        torch.cuda.empty_cache()
        yield row


def compile_in_parallel(cases: list[Case]) -> None:
    """FLA's kernels into Triton's cache, one process for the cases that share them."""
    began = time.time()
    kinds: dict[Any, list[str]] = {}
    for case in cases:
        kind = (case.heads, case.dim, case.lengths is None, case.bounded)
        kinds.setdefault(kind, []).append(case.name)
    base = [sys.executable, __file__, "--compile-only", "--cases"]
    running = [
        subprocess.Popen([*base, *names], stderr=subprocess.DEVNULL) for names in kinds.values()
    ]
    for names, process in zip(kinds.values(), running, strict=True):
        if process.wait() != 0:
            print(f"compilation for {names} failed", file=sys.stderr)
    print(f"compiled FLA for {len(cases)} cases in {time.time() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="at most, per measurement")
    parser.add_argument("--precompile", action="store_true", help="compile FLA in parallel first")
    parser.add_argument("--precompile-only", action="store_true", help="that, and nothing else")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [case for case in CASES if case.name in args.cases]
    if args.compile_only:
        import fla_tuning

        fla_tuning.compile_only()
        for case in chosen:
            fla_tuning.one_step(case)
        return
    if args.precompile or args.precompile_only:
        compile_in_parallel(chosen)
    if args.precompile_only:
        return
    result: dict[str, Any] = {"machine": machine(), "rows": []}
    result["machine"]["copy, TB/s"] = f"{copy_rate():.2f}"
    began = time.time()
    running = engines(args.engines)
    (ours,) = engines(["kda"])
    gc.freeze()  # every capture collects garbage; modules are none
    for case in chosen:
        for row in run_engines(case, running, ours, args):
            result["rows"].append(row)
            shown = {n: round(row[n]["ms"], 3) for n in ("forward", "step") if n in row}
            print(f"{time.time() - began:.0f} s", case.name, row["engine"], end=" ")
            print(shown or row["skipped"], flush=True)
            if args.json:  # after every row, so that a run cut short leaves what it has
                args.json.write_text(json.dumps(result, indent=1) + "\n")
            torch.cuda.synchronize()  # where a peer broke the device, nothing can follow


if __name__ == "__main__":
    main()
