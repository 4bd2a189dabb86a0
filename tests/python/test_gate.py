"""fused_kda_gate, kda_gate_chunk_cumsum and the l2norm operator."""

from __future__ import annotations

import itertools
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import kda
from oracle import gate, relative_error


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    seed=st.integers(0, 2**20),
    lead=st.sampled_from([(), (3,), (2, 5), (2, 1, 4), (0, 3)]),
    heads=st.integers(1, 3),
    dim=st.integers(1, 40),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    lower_bound=st.sampled_from([None, -5.0, -0.5]),
    parts=st.tuples(st.booleans(), st.booleans()),
    spread=st.sampled_from([1.0, 30.0]),
)
def test_gate_and_its_gradients(seed, lead, heads, dim, dtype, lower_bound, parts, spread) -> None:
    random = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        x = torch.randn(*shape, generator=random, dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    x = (torch.randn(*lead, heads, dim, generator=random, dtype=torch.float64) * spread).to(dtype)
    x.requires_grad_()
    a_log = leaf(heads, dtype=wide) if parts[0] else None
    bias = leaf(heads * dim, dtype=wide) if parts[1] else None
    leaves = [t for t in (x, a_log, bias) if t is not None]
    result = kda.fused_kda_gate(x, a_log, bias, lower_bound=lower_bound, output_dtype=wide)
    expected = gate(x, a_log, bias, lower_bound)
    assert result.dtype == wide
    limit = 1e-12 if dtype == torch.float64 else 1e-6
    assert relative_error(result, expected) < limit
    d = torch.randn(result.shape, generator=random, dtype=torch.float64)
    got = torch.autograd.grad((result * d.to(wide)).sum(), leaves)
    want = torch.autograd.grad((expected * d.to(wide).double()).sum(), leaves)
    for one, other in zip(got, want, strict=True):
        # The reference gradient is rounded to the leaf's dtype too.
        assert relative_error(one, other) < (limit * 20 if dtype != torch.bfloat16 else 5e-3)


def test_gate_accepts_parameter_shapes_of_checkpoints() -> None:
    x = torch.randn(2, 3, 4, 6)
    a_log, bias = torch.randn(4), torch.randn(24)
    plain = kda.fused_kda_gate(x, a_log, bias)
    shaped = kda.fused_kda_gate(x, a_log.view(1, 1, 4, 1), bias.view(1, 1, 4, 6))
    assert torch.equal(plain, shaped)
    narrow = a_log.bfloat16().requires_grad_()
    result = kda.fused_kda_gate(x, narrow, bias.view(4, 6))
    assert result.dtype == torch.float32
    (gradient,) = torch.autograd.grad(result.sum(), [narrow])
    assert gradient.dtype == torch.bfloat16


@pytest.mark.parametrize("lengths", [None, [40, 0, 24, 1]])
@pytest.mark.parametrize("scale", [None, 1.0 / math.log(2.0), 0.5])
def test_cumsum_restarts_at_chunks_and_sequences(lengths, scale) -> None:
    random = torch.Generator().manual_seed(3)
    tokens = 50 if lengths is None else sum(lengths)
    batch = 2 if lengths is None else 1
    x = torch.randn(batch, tokens, 3, 5, generator=random)
    a_log, bias = torch.randn(3, generator=random), torch.randn(15, generator=random)
    offsets = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0)
    sums = kda.kda_gate_chunk_cumsum(
        x, a_log, 16, scale, bias, cu_seqlens=offsets, lower_bound=-5.0
    )
    decay = gate(x, a_log, bias, -5.0)
    expected = torch.zeros_like(decay)
    spans = [(0, tokens)] if offsets is None else list(itertools.pairwise(offsets.tolist()))
    for begin, end in spans:
        for start in range(begin, end, 16):
            stop = min(start + 16, end)
            expected[:, start:stop] = decay[:, start:stop].cumsum(1)
    assert relative_error(sums, expected * (1.0 if scale is None else scale)) < 1e-6
    assert sums.dtype == torch.float32
    half = kda.kda_gate_chunk_cumsum(x.bfloat16(), None, 16, output_dtype=None)
    assert half.dtype == torch.bfloat16


def test_cumsum_refuses_to_be_differentiated() -> None:
    x = torch.randn(1, 4, 2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="gate_cumsum has no derivative"):
        kda.kda_gate_chunk_cumsum(x, None, 4).sum().backward()
    with pytest.raises(TypeError, match="unknown keyword 'lowerbound'; did you mean 'lower_bound'"):
        kda.kda_gate_chunk_cumsum(x, None, 4, lowerbound=-5.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_l2norm(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 3, 7).to(dtype)
    x[0, 0] = 0
    x[0, 1] *= 1e-3  # eps belongs to the sum of squares
    x.requires_grad_()
    y, rstd = torch.ops.kda.l2norm_fwd(x)
    expected = x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
    limit = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype]
    assert relative_error(y, expected) < limit
    assert relative_error(y[0, 1], expected[0, 1]) < limit
    assert not rstd.requires_grad
    d = torch.randn(x.shape).to(dtype)
    (gradient,) = torch.autograd.grad(y, [x], d)
    (want,) = torch.autograd.grad(expected, [x], d.double())
    assert gradient.isfinite().all()
    assert relative_error(gradient, want) < 4 * limit
