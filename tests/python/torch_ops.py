"""Calls of the operators below the public functions, for the tests of what torch sees."""

from __future__ import annotations

import torch

from oracle import Call, make_call

OPS = torch.ops.kda
TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def native(call: Call, **extra) -> dict:
    """Arguments of the operators below the widening: dt_bias is a matrix there."""
    from kda.ops._arguments import native_options

    options = native_options("test", **call.options)
    if options["dt_bias"] is not None:
        bias = options["dt_bias"].detach().reshape(call.g.shape[-2:])
        options["dt_bias"] = bias.requires_grad_(options["dt_bias"].requires_grad)
    return {**options, **extra}


def small(**extra) -> Call:
    shape = {"batch": 2, "tokens": 5, "group": 2, "key_dim": 4, "value_dim": 3}
    return make_call(**{**shape, **extra})


def opcheck(op, *args, **kwargs) -> None:
    result = torch.library.opcheck(op, args, kwargs, test_utils=TESTS)
    assert all(outcome == "SUCCESS" for outcome in result.values()), result


CALLS = {
    "plain": lambda: small(),
    "float32_gate": lambda: small(dtype=torch.float32, gate_kind="standard", beta_kind="logit"),
    "bounded_v_first": lambda: small(gate_kind="bounded_unit", l2norm=True, v_first=True),
    "packed": lambda: small(lengths=[3, 0, 66]),
    "no_state": lambda: small(state=False, dtype=torch.bfloat16),
}
