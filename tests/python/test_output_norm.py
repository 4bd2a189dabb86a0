"""The gated RMS norm on the output of the token-by-token operator."""

from __future__ import annotations

import pytest
import torch

import kda
from gpu import DEVICES
from oracle import TOLERANCE, definition, make_call, relative_error
from torch_ops import OPS, native, opcheck, small


def normalised(
    o: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """weight * o / sqrt(mean o^2 + eps) * sigmoid(gate), in float64."""
    o = o.double()
    y = o / torch.sqrt(o.square().mean(-1, keepdim=True) + eps) * weight.double()
    return y if gate is None else y * torch.sigmoid(gate.double())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value_dim", [5, 64, 128])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm_of_the_output(device, value_dim: int, gated: bool, dtype: torch.dtype) -> None:
    if device == "cuda" and dtype == torch.float64:
        dtype = torch.float16  # one serves the one, the other the other
    call = make_call(
        tokens=3, key_dim=value_dim, value_dim=value_dim, group=2, dtype=dtype, l2norm=True
    )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.randn(value_dim, dtype=wide)
    gate = torch.randn(call.v.shape).to(dtype) if gated else None
    given = call.to(device)
    norm = {
        "out_norm_weight": weight.to(device),
        "out_gate": None if gate is None else gate.to(device),
        "out_norm_eps": 1e-3,
    }
    o, state = kda.fused_recurrent_kda(
        *given.tensors(), output_final_state=True, **given.options, **norm
    )
    expected, _ = definition(call)
    assert o.dtype == dtype
    assert relative_error(o.cpu(), normalised(expected, weight, gate, 1e-3)) < 2 * TOLERANCE[dtype]
    _, plain = kda.fused_recurrent_kda(*given.tensors(), output_final_state=True, **given.options)
    assert torch.equal(state, plain), "the norm changed the states"


def test_norm_with_a_pool_and_an_output() -> None:
    call = make_call(
        batch=3, tokens=2, state=False, key_dim=6, value_dim=5, group=2, dtype=torch.float32
    )
    weight, gate = torch.randn(5), torch.randn(call.v.shape)
    norm = {"out_norm_weight": weight, "out_gate": gate}
    pool = torch.randn(4, 4, 6, 5)
    plain_pool, out = pool.clone(), torch.empty_like(call.v)
    slots = torch.tensor([3, 0, 2])
    plain, _ = kda.fused_recurrent_kda_fwd(
        *call.tensors(), initial_state=plain_pool, ssm_state_indices=slots, **call.options
    )
    o, _ = kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        ssm_state_indices=slots,
        out=out,
        **call.options,
        **norm,
    )
    assert o is out
    assert relative_error(o, normalised(plain, weight, gate, 1e-5)) < 1e-6
    assert torch.equal(pool, plain_pool)


def test_norm_is_checked() -> None:
    call = small(dtype=torch.float32)
    gate, weight = torch.randn(call.v.shape), torch.randn(call.v.shape[-1])

    def run(**norm) -> None:
        kda.fused_recurrent_kda(*call.tensors(), **call.options, **norm)

    with pytest.raises(ValueError, match="out_gate: needs out_norm_weight"):
        run(out_gate=gate)
    with pytest.raises(ValueError, match=r"out_norm.weight: expected \[V=3\], given \[4\]"):
        run(out_norm_weight=torch.ones(4))
    with pytest.raises(ValueError, match=r"out_norm.gate"):
        run(out_norm_weight=weight, out_gate=gate[:, 1:])
    with pytest.raises(ValueError, match=r"out_norm.eps: expected a finite value >= 0"):
        run(out_norm_weight=weight, out_norm_eps=-1.0)
    with pytest.raises(TypeError, match=r"out_norm_weight: expected a torch.Tensor, given list"):
        run(out_norm_weight=[1.0])
    with pytest.raises(TypeError, match="did you mean 'out_norm_weight'"):
        run(out_norm_weigth=weight)
    run(out_norm_weight=weight.bfloat16(), out_gate=gate.bfloat16())  # widened


def test_opcheck_with_a_norm() -> None:
    call = small(dtype=torch.float32)
    norm = {"out_norm_weight": torch.randn(3), "out_gate": torch.randn(call.v.shape)}
    options = native(call, output_final_state=True)
    opcheck(OPS.recurrent_fwd.default, *call.tensors(), **options, **norm)
    opcheck(OPS.recurrent.default, *call.tensors(), **options, **norm)
