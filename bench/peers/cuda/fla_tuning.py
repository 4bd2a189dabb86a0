"""Tunes flash-linear-attention on this GPU in one to two minutes instead of five.

FLA chooses a configuration per kernel by compiling and timing every candidate, one after the other.
Here worker processes compile the candidates first, into Triton's cache; FLA's own autotuner then
times all of them, and its choices are written in the format of its configuration files:

    python bench/peers/cuda/fla_tuning.py compile --workers 14
    python bench/peers/cuda/fla_tuning.py tune --out DIR
    FLA_CACHE_MODE=full FLA_CONFIG_DIR=DIR python bench/peers/cuda/speed.py ...

One shape is tuned, the first of speed.py. ``full`` is FLA's way to use its choices for others: with
another number of heads, and (``default_config``) for packed calls, whose keys name more tensors.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import Case, Fla, Inputs, make_inputs
from cudnn_engine import transformed

TUNED = Case(batch=1, tokens=8192, heads=96)


def compile_only(share: int = 0, of: int = 1) -> None:
    """From now on Triton kernels are compiled and not launched: candidates ``share`` mod ``of``."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run
    counter = 0

    def mine() -> bool:
        nonlocal counter
        counter += 1
        return counter % of == share

    def compile_kernel(self: Any, *args: Any, **kwargs: Any) -> None:
        if mine():
            launch(self, *args, **{**kwargs, "warmup": True})

    def compile_candidates(self: Any, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        load = getattr(self, "maybe_load_cached_config", None)
        candidates = self.prune_configs(kwargs)
        if load is not None:
            from fla.ops.utils.cache import AutotuneKey

            key = AutotuneKey.build(self.arg_names, self.keys, args, kwargs)
            load(key=key, nargs=self.nargs, runtime_kwargs=kwargs)
            chosen = self.cache.get(key.autotune_key)
            candidates = [chosen] if chosen is not None else candidates
        for config in candidates:
            if not mine():
                continue
            try:
                launch(self.fn, *args, **{**kwargs, "warmup": True}, **config.all_kwargs())
            except Exception as error:  # a candidate may not fit; FLA's tuner skips it as well
                print(f"{self.base_fn.__name__}: {type(error).__name__}", file=sys.stderr)

    JITFunction.run = compile_kernel
    Autotuner.run = compile_candidates


def first_candidate_only() -> None:
    """Kernels without a tuned configuration take their first one: for results, not for times."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run

    def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.configs = self.configs[:1]
        return run(self, *args, **kwargs)

    Autotuner.run = run_first


def one_step(case: Case) -> None:
    engine = Fla()
    if engine.missing:
        raise SystemExit(engine.missing)
    x = make_inputs(case)
    for leaf in x.leaves():
        leaf.requires_grad_()
    engine.step(x, case)
    one_transform(x, case)


def one_transform(x: Inputs, case: Case) -> None:
    """l2norm and gate on their own, forward and backward, as they stand around cudnn's kernels."""
    parts = transformed(x, case)
    torch.autograd.grad(parts, x.leaves()[:-1], parts, allow_unused=True)


def compile_all(workers: int) -> None:
    began = time.time()
    command = [sys.executable, __file__, "share", "--workers", str(workers)]
    running = [
        subprocess.Popen([*command, "--share", str(i)], stderr=subprocess.DEVNULL)
        for i in range(workers)
    ]
    failed = sum(process.wait() != 0 for process in running)
    print(f"compiled by {workers} workers in {time.time() - began:.0f} s, {failed} failed")


def tune(out: Path, warmup: int, rep: int, transforms: bool) -> None:
    from fla.ops.utils.cache import AutotuneKey
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    # Shorter timing of each candidate than Triton's 25 + 100 ms.
    active = type(driver.active)
    active.get_benchmarker = lambda self: functools.partial(do_bench, warmup=warmup, rep=rep)
    began = time.time()
    if transforms:
        x = make_inputs(TUNED)
        for leaf in x.leaves():
            leaf.requires_grad_()
        one_transform(x, TUNED)
    else:
        one_step(TUNED)
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    for tuner in gc.get_objects():
        if not isinstance(tuner, Autotuner) or not tuner.cache:
            continue
        entries = {}
        for key, config in tuner.cache.items():
            entries[AutotuneKey.key_hash(key)] = {
                "autotune_key": list(key),
                "config": {
                    "kwargs": config.kwargs,
                    "num_warps": config.num_warps,
                    "num_stages": config.num_stages,
                    "num_ctas": config.num_ctas,
                    "maxnreg": config.maxnreg,
                },
            }
        name = getattr(tuner, "kernel_name", tuner.base_fn.__name__)
        first = next(iter(entries.values()))["config"]
        data = {"kernel_name": name, "autotune_entries": entries, "default_config": first}
        text = json.dumps(data, indent=1)
        (out / f"{name}.json").write_text(text + "\n")
        written += 1
    print(f"tuned {written} kernels on {TUNED.name} in {time.time() - began:.0f} s: {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["compile", "share", "tune"])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--share", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fla_configs"))
    parser.add_argument("--transforms", action="store_true", help="tune l2norm and gate only")
    parser.add_argument("--warmup", type=int, default=5, help="ms per candidate")
    parser.add_argument("--rep", type=int, default=20, help="ms per candidate")
    args = parser.parse_args()
    if args.action == "compile":
        compile_all(args.workers)
    elif args.action == "share":
        compile_only(args.share, args.workers)
        one_step(TUNED)
    else:
        tune(args.out, args.warmup, args.rep, args.transforms)


if __name__ == "__main__":
    main()
