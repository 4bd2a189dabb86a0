"""Whether engines compute the same thing, asked before any of them is timed.

Ours is compared with the recurrence in float64 on a short case of the same kind (D, packed or not,
gate; at most 16 heads), every other engine with ours on the case itself. This finds overflows and
wrong calls, whose differences are of the size of the results; precision.py measures the errors.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from common import Case, Engine, Inputs, make_inputs
from precision import QUANTITIES, reference

#: RMS of the difference over RMS of the reference; two bf16 engines differ by up to 8e-3. Sums over
#: all tokens gather what each has of a bias (6e-2 in d dt_bias was seen in a call that is right).
LIMITS = dict.fromkeys(("o", "final state", "dq", "dk", "dv", "dh0"), 1.5e-2)
LIMITS |= {"dg": 5e-2, "dbeta": 5e-2, "dA_log": 0.2, "d dt_bias": 0.2}


def short(case: Case) -> Case:
    """The same kind of call with few tokens; odd lengths, one of them a single token."""
    heads = min(case.heads, 16)
    if case.lengths:
        return dataclasses.replace(case, tokens=100, heads=heads, lengths=(34, 1, 65))
    return dataclasses.replace(case, batch=min(case.batch, 2), tokens=100, heads=heads)


def _piece(x: Inputs, sequence: int, begin: int, end: int) -> Inputs:
    tokens = {name: getattr(x, name)[:, begin:end] for name in ("q", "k", "v", "g", "beta", "d_o")}
    states = {name: getattr(x, name)[sequence : sequence + 1] for name in ("state", "d_state")}
    return dataclasses.replace(x, **tokens, **states, cu_seqlens=None)


def recurrence(x: Inputs, case: Case) -> list[torch.Tensor]:
    """``precision.reference``, for packed sequences too; in the order of QUANTITIES."""
    if not case.lengths:
        return reference(x, case)
    found, begin = [], 0
    for sequence, length in enumerate(case.lengths):
        one = dataclasses.replace(case, tokens=length, lengths=None)
        found.append(reference(_piece(x, sequence, begin, begin + length), one))
        begin += length
    joined = []
    for name, parts in zip(QUANTITIES, zip(*found, strict=True), strict=True):
        if name in ("dA_log", "d dt_bias"):
            joined.append(torch.stack(parts).sum(0))
        else:
            joined.append(torch.cat(parts, 0 if name in ("final state", "dh0") else 1))
    return joined


def results(engine: Engine, x: Inputs, case: Case) -> list[torch.Tensor]:
    """What the engine returns, and the gradients if it has them, in the order of QUANTITIES."""
    if not engine.trains:
        with torch.no_grad():
            return list(engine.forward(x, case))
    leaves = [leaf.detach().requires_grad_() for leaf in x.leaves()]
    names = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "state")
    recorded = dataclasses.replace(x, **dict(zip(names, leaves, strict=True)))
    return [t.detach() for t in engine.step(recorded, case)]


def differences(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> dict[str, float]:
    """RMS of the difference over RMS of what was wanted; an engine may give only the first two."""
    norm = functools.partial(torch.linalg.vector_norm, dtype=torch.float64)
    return {
        name: float(norm(one - other) / norm(other))
        for name, one, other in zip(QUANTITIES, got, wanted, strict=False)
    }


def complaint(found: dict[str, float]) -> str:
    """What differs by more than the limits, or is NaN; empty if nothing is."""
    wrong = [f"{name} {value:.1e}" for name, value in found.items() if not value <= LIMITS[name]]
    return "wrong: " + ", ".join(wrong) if wrong else ""


def check_ours(ours: Engine, case: Case) -> dict[str, Any]:
    """Ours beside the recurrence on the short case."""
    small = short(case)
    x = make_inputs(small, seed=2)
    found = differences(results(ours, ours.adapt(x, small), small), recurrence(x, small))
    return {"beside": "the recurrence in float64", "differences": found, "wrong": complaint(found)}


def check_peer(peer: Engine, case: Case, x: Inputs, wanted: list[torch.Tensor]) -> dict[str, Any]:
    """A peer beside our results on the inputs of the case."""
    found = differences(results(peer, peer.adapt(x, case), case), wanted)
    return {"beside": "kda", "differences": found, "wrong": complaint(found)}
