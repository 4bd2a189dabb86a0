"""Memory: strides, poison around the inputs, state layouts, grouping, causality, packing."""

from __future__ import annotations

import pytest
import torch

import kda
from oracle import Call, definition, make_call, relative_error

NAN = float("nan")


def run(call: Call, **extra) -> tuple[torch.Tensor, torch.Tensor]:
    return kda.chunk_kda(*call.tensors(), output_final_state=True, **call.options, **extra)


def with_gradients(call: Call) -> tuple[torch.Tensor, ...]:
    leaf = call.recorded()
    o, state = run(leaf)
    loss = (o * o.detach()).sum() + (state * state.detach()).sum()
    return o, state, *torch.autograd.grad(loss, list(leaf.differentiable().values()))


def poisoned(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The same values inside a larger tensor of NaN, strided along ``axis``."""
    shape = list(x.shape)
    shape[axis] = 2 * shape[axis] + 3
    backing = torch.full(shape, NAN, dtype=x.dtype)
    view = backing.narrow(axis, 1, x.shape[axis])
    view.copy_(x)
    assert not view.is_contiguous() or axis == 0
    return view


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_strided_inputs_between_nans(axis: int, dtype: torch.dtype) -> None:
    """Head size 60 is no multiple of any vector width: nothing behind a row may be used."""
    call = make_call(tokens=66, key_dim=60, value_dim=60, dtype=dtype, gate_kind="standard")
    expected = with_gradients(call)
    tensors = [poisoned(x, min(axis, x.ndim - 1)) for x in call.tensors()]
    options = {**call.options, "initial_state": poisoned(call.options["initial_state"], axis)}
    got_o, got_state = run(Call(*tensors, options))
    assert torch.equal(got_o, expected[0])
    assert torch.equal(got_state, expected[1])
    leaves = [x.requires_grad_() for x in (*tensors, options["initial_state"])]
    o, state = run(Call(*tensors, options))
    loss = (o * o.detach()).sum() + (state * state.detach()).sum()
    gradients = torch.autograd.grad(loss, leaves)
    names = ["q", "k", "v", "g", "beta", "initial_state"]
    order = list(call.differentiable())
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.equal(gradient, expected[2 + order.index(name)]), name


def test_slices_of_a_fused_projection() -> None:
    random = torch.Generator().manual_seed(5)
    heads, dim = 2, 12
    fused = torch.randn(2, 40, heads * dim * 4 + heads, generator=random)
    q, k, v, g = (
        fused[..., i * heads * dim : (i + 1) * heads * dim].unflatten(-1, (heads, dim))
        for i in range(4)
    )
    beta = fused[..., -heads:]
    call = Call(q, k, v, -g.abs(), beta.sigmoid(), {"use_qk_l2norm_in_kernel": True})
    call.g = (-fused.abs())[..., 3 * heads * dim : 4 * heads * dim].unflatten(-1, (heads, dim))
    assert relative_error(run(call)[0], definition(call)[0]) < 2e-6


def test_transposed_and_broadcast_inputs() -> None:
    call = make_call(batch=2, tokens=33, key_dim=9, value_dim=11)
    heads_first = [
        x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 else x.mT.contiguous().mT
        for x in call.tensors()
    ]
    assert torch.equal(run(Call(*heads_first, call.options))[0], run(call)[0])
    one_row = Call(*(x[:1].expand(2, *x.shape[1:]) for x in call.tensors()), {})
    dense = Call(*(x.contiguous() for x in one_row.tensors()), {})
    assert torch.equal(run(one_row)[0], run(dense)[0])


@pytest.mark.parametrize("function", [kda.chunk_kda, kda.fused_recurrent_kda])
@pytest.mark.parametrize("dims", [(6, 10), (8, 8)])
def test_state_layouts_round_trip(function, dims) -> None:
    key_dim, value_dim = dims
    call = make_call(tokens=37, key_dim=key_dim, value_dim=value_dim, group=2)
    start = call.options["initial_state"]
    kv_o, kv = function(*call.tensors(), initial_state=start, output_final_state=True)
    vk_o, vk = function(
        *call.tensors(),
        initial_state=start.transpose(-1, -2).contiguous(),
        output_final_state=True,
        state_v_first=True,
    )
    assert kv.shape == (2, 4, key_dim, value_dim)
    assert vk.shape == (2, 4, value_dim, key_dim)
    assert torch.equal(kv_o, vk_o)
    assert torch.equal(kv, vk.transpose(-1, -2))
    if key_dim == value_dim:  # the shape cannot tell, so the flag must
        wrong_o, _ = function(*call.tensors(), initial_state=start, state_v_first=True)
        assert relative_error(wrong_o, kv_o) > 0.1
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        alias_o, alias = function(
            *call.tensors(),
            initial_state=start.transpose(-1, -2),
            output_final_state=True,
            transpose_state_layout=True,
        )
    assert torch.equal(alias_o, vk_o)
    assert torch.equal(alias, vk)


def test_state_layout_of_gradients() -> None:
    call = make_call(tokens=20, key_dim=5, value_dim=7, v_first=True)
    leaf = call.recorded()
    o, state = run(leaf)
    weights = torch.randn(state.shape, dtype=torch.float64)
    (got,) = torch.autograd.grad(o.sum() + (state * weights).sum(), [leaf.options["initial_state"]])
    reference = call.recorded()
    o, state = definition(reference)
    (want,) = torch.autograd.grad(
        o.sum() + (state * weights.transpose(-1, -2)).sum(), [reference.options["initial_state"]]
    )
    assert got.shape == (2, 2, 7, 5)
    assert relative_error(got, want) < 1e-11


def test_value_heads_share_query_heads_in_contiguous_groups() -> None:
    call = make_call(tokens=40, heads=3, group=4, key_dim=8, value_dim=6)
    grouped = with_gradients(call)
    repeated = Call(
        call.q.repeat_interleave(4, 2),
        call.k.repeat_interleave(4, 2),
        call.v,
        call.g,
        call.beta,
        call.options,
    )
    expected = with_gradients(repeated)
    assert relative_error(grouped[0], expected[0]) < 1e-13
    for i in (2, 3):  # dq and dk are sums over the group
        folded = expected[i].unflatten(2, (3, 4)).sum(3)
        assert relative_error(grouped[i], folded) < 1e-12


@pytest.mark.parametrize("tokens", [130])
def test_causal_to_the_bit(tokens: int) -> None:
    call = make_call(batch=1, tokens=tokens, dtype=torch.float32, key_dim=16, value_dim=16)
    before = run(call)[0]
    for t in (0, 15, 16, 63, 64, 65, 129):
        changed = Call(*(x.clone() for x in call.tensors()), call.options)
        for x in changed.tensors():
            x[:, t] = x[:, t] * 0.5 - 0.25
        after = run(changed)[0]
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t:], before[:, t:])


def test_independent_of_batch_and_packing() -> None:
    lengths = [65, 3, 64]
    packed = make_call(lengths=lengths, dtype=torch.float32, key_dim=16, value_dim=16)
    o, state = run(packed)
    begin = 0
    for n, length in enumerate(lengths):
        alone = Call(
            *(x[:, begin : begin + length] for x in packed.tensors()),
            {"initial_state": packed.options["initial_state"][n : n + 1]},
        )
        alone_o, alone_state = run(alone)
        assert torch.equal(alone_o, o[:, begin : begin + length])
        assert torch.equal(alone_state, state[n : n + 1])
        begin += length
    batch = make_call(batch=3, tokens=50, dtype=torch.float32, key_dim=16, value_dim=16)
    whole, _ = run(batch)
    row = Call(
        *(x[1:2] for x in batch.tensors()),
        {"initial_state": batch.options["initial_state"][1:2]},
    )
    assert torch.equal(run(row)[0], whole[1:2])


def test_nan_stays_in_its_sequence() -> None:
    call = make_call(lengths=[20, 21, 5], dtype=torch.float32)
    clean, clean_state = run(call)
    call.v[:, 3] = NAN
    o, state = run(call)
    assert o[:, :20].isnan().any()
    assert torch.equal(o[:, 20:], clean[:, 20:])
    assert torch.equal(state[1:], clean_state[1:])


def test_empty_calls() -> None:
    for shape in ({"tokens": 0}, {"batch": 0, "tokens": 5}, {"lengths": [0, 0]}):
        call = make_call(**shape)
        o, state = run(call)
        assert o.numel() == 0
        assert o.shape == call.v.shape
        assert torch.equal(state, call.options["initial_state"])
        leaf = call.recorded()
        o, state = run(leaf)
        gradients = torch.autograd.grad(
            o.sum() + (2 * state).sum(), list(leaf.differentiable().values())
        )
        assert torch.equal(gradients[-1], torch.full_like(gradients[-1], 2.0))
    call = make_call(lengths=[0, 4, 0])
    leaf = call.recorded()
    _, state = run(leaf)
    weights = torch.randn(state.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((state * weights).sum(), [leaf.options["initial_state"]])
    assert torch.equal(gradient[[0, 2]], weights[[0, 2]])


def test_repeated_calls_are_equal_to_the_bit() -> None:
    call = make_call(
        tokens=200, key_dim=32, value_dim=32, group=2, dtype=torch.float32, gate_kind="standard"
    )
    first = with_gradients(call)
    for _ in range(3):
        for one, other in zip(first, with_gradients(call), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("offset_dtype", [torch.int32, torch.int64])
def test_offset_dtypes_and_strides(offset_dtype: torch.dtype) -> None:
    call = make_call(lengths=[5, 9, 2])
    expected = run(call)[0]
    offsets = call.options["cu_seqlens"]
    call.options["cu_seqlens"] = torch.stack([offsets, offsets + 1], 1).to(offset_dtype)[:, 0]
    assert torch.equal(run(call, cu_seqlens_cpu=offsets)[0], expected)


def test_inputs_are_left_alone() -> None:
    call = make_call(gate_kind="standard", l2norm=True, beta_kind="logit", dtype=torch.float32)
    copies = {n: t.clone() for n, t in call.differentiable().items()}
    with_gradients(call)
    for name, tensor in call.differentiable().items():
        assert torch.equal(tensor, copies[name]), name
