"""Errors of output, states and gradients against the recurrence in float64, as JSON.

    python bench/peers/cuda/precision.py --json bounded.json --gate bounded
    python bench/peers/cuda/precision.py --json standard.json --gate standard
    python bench/peers/cuda/tables.py precision bounded.json standard.json > table.md

Both packages get the same bf16 tensors; the reference reads those rounded values. FLA's kernels
take the first of their candidate configurations unless --tuned is given.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import LOWER_BOUND, Case, Engine, Inputs, engines, machine, make_inputs

QUANTITIES = (
    "o", "final state", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "d dt_bias", "dh0"
)  # fmt: skip


def constant(value: float) -> Callable:
    return lambda shape, random: torch.full(shape, value, device="cuda")


def normal(deviation: float) -> Callable:
    return lambda shape, random: deviation * torch.randn(*shape, generator=random, device="cuda")


#: name: (draw of g, dt_bias)
GATES = {
    **{f"g = {g:+d}": (constant(g), 0.0) for g in (-8, -4, 0, 8)},
    "g ~ N(0, 8)": (normal(8.0), 0.0),
    **{f"g ~ N(0, 1), bias {b:+d}": (normal(1.0), float(b)) for b in (-8, -4, 4, 8)},
}


def reference(x: Inputs, case: Case) -> list[torch.Tensor]:
    """The definition in float64, differentiated by autograd, in the order of QUANTITIES."""
    leaves = [leaf.detach().double().requires_grad_() for leaf in x.leaves()]
    q, k, v, g, beta, a_log, bias, state = leaves
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    rate, raw = a_log.exp()[:, None], g + bias.view(case.heads, case.dim)
    if case.bounded:
        decay = LOWER_BOUND * torch.sigmoid(rate * raw)
    else:
        decay = -rate * torch.logaddexp(raw, torch.zeros_like(raw))
    decay, step = decay.exp()[..., None], torch.sigmoid(beta)[..., None]
    outputs = []
    for t in range(case.tokens):
        state = decay[:, t] * state
        error = v[:, t] - (state * k[:, t, :, :, None]).sum(-2)
        state = state + k[:, t, :, :, None] * (step[:, t] * error)[:, :, None]
        outputs.append((state * q[:, t, :, :, None]).sum(-2))
    o = torch.stack(outputs, 1) * case.dim**-0.5
    gradients = torch.autograd.grad([o, state], leaves, [x.d_o.double(), x.d_state.double()])
    return [o.detach(), state.detach(), *gradients]


def errors(got: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    """Largest and mean absolute error, and the RMS of the error over the RMS of the reference."""
    difference = (got.detach().double() - wanted).abs()
    error, size = (float(t.square().mean().sqrt()) for t in (difference, wanted))
    return {
        "max": float(difference.max()),
        "mean": float(difference.mean()),
        "ratio": error / size if size > 0.0 else (0.0 if error == 0.0 else math.inf),
    }


def compare(engine: Engine, x: Inputs, case: Case, wanted: list[torch.Tensor]) -> dict[str, Any]:
    for leaf in x.leaves():
        leaf.requires_grad_()
    got = engine.step(x, case)
    return {
        name: errors(one, other) for name, one, other in zip(QUANTITIES, got, wanted, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gate", choices=["bounded", "standard"], required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--engines", nargs="+", default=["kda", "fla"])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    case = Case(1, args.tokens, args.heads, dim=args.dim, bounded=args.gate == "bounded")
    running = engines(args.engines)
    if not args.tuned and any(e.name == "FLA" and not e.missing for e in running):
        import fla_tuning

        fla_tuning.first_candidate_only()
    result: dict[str, Any] = {"machine": machine(), "case": case.name, "rows": []}
    for name, (gate, bias) in GATES.items():
        x = make_inputs(case, seed=1, gate=gate, bias=bias)
        wanted = reference(x, case)
        row: dict[str, Any] = {"gate": f"{args.gate}, {name}", "errors": {}, "skipped": {}}
        for engine in running:
            reason = engine.cannot(case)
            if not reason:
                try:
                    row["errors"][engine.name] = compare(engine, x, case, wanted)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"[:200]
            if reason:
                row["skipped"][engine.name] = reason
        result["rows"].append(row)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        shown = {n: f"{e['o']['ratio']:.1e}" for n, e in row["errors"].items()}
        print(row["gate"], shown, row["skipped"] or "", flush=True)


if __name__ == "__main__":
    main()
