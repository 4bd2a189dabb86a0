"""The torch operators as torch sees them: schemas, fake tensors, autograd, autocast, compile."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kda
from oracle import Call, definition, make_call, relative_error
from torch_ops import CALLS, OPS, native, opcheck, small


@pytest.mark.parametrize("recorded", [False, True], ids=["constant", "recorded"])
@pytest.mark.parametrize("name", CALLS)
def test_opcheck_chunk(name: str, recorded: bool) -> None:
    call = CALLS[name]()
    if recorded:
        call = call.recorded()
    options = native(call, output_final_state=True)
    opcheck(OPS.chunk_fwd.default, *call.tensors(), **options)
    opcheck(OPS.chunk.default, *call.tensors(), **options)


def test_opcheck_chunk_with_states() -> None:
    for call in (small(), small(lengths=[3, 0, 66])):
        options = native(call, h_dtype=torch.float64)
        opcheck(OPS.chunk_fwd.default, *call.tensors(), **options)
        recorded = call.recorded()
        opcheck(
            OPS.chunk_fwd.default, *recorded.tensors(), **native(recorded, h_dtype=torch.float64)
        )
        opcheck(OPS.chunk_states.default, *call.tensors(), **native(call))


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_chunk_backward(name: str) -> None:
    call = CALLS[name]()
    options = native(call, output_final_state=True)
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    o, state, h, _ = OPS.chunk_fwd(*call.tensors(), **options, h_dtype=wide)
    for extra in (
        {"h": h, "d_o": torch.randn_like(o), "d_final_state": torch.randn_like(state)},
        {"d_o": torch.randn_like(o), "output_mask": [True, False] * 4},
        {"d_final_state": torch.randn_like(state)},
    ):
        opcheck(OPS.chunk_bwd.default, *call.tensors(), **options, **extra)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_recurrent(name: str) -> None:
    call = CALLS[name]()
    options = native(call, output_final_state=True)
    opcheck(OPS.recurrent_fwd.default, *call.tensors(), **options)
    opcheck(OPS.recurrent.default, *call.tensors(), **options)
    opcheck(OPS.recurrent_out.default, torch.empty_like(call.v), *call.tensors(), **options)


def test_opcheck_pool() -> None:
    call = small(state=False)
    pool = torch.randn(6, 4, 4, 3, dtype=torch.float64)
    slots = torch.tensor([4, 1])
    opcheck(OPS.recurrent_pool.default, pool, slots, None, *call.tensors(), **native(call))
    opcheck(
        OPS.recurrent_pool_out.default,
        torch.empty_like(call.v),
        pool,
        slots,
        None,
        *call.tensors(),
        **native(call),
    )


@pytest.mark.parametrize("recorded", [False, True], ids=["constant", "recorded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_opcheck_gate_and_norm(dtype: torch.dtype, recorded: bool) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(2, 3, 4, 5).to(dtype).requires_grad_(recorded)
    a_log = torch.randn(4, dtype=wide).requires_grad_(recorded)
    bias = torch.randn(4, 5, dtype=wide).requires_grad_(recorded)
    for bound in (None, -5.0):
        opcheck(OPS.gate_fwd.default, x, a_log, bias, lower_bound=bound)
    opcheck(OPS.gate.default, x, a_log, bias.flatten())
    opcheck(OPS.gate_fwd.default, x, None, None, lower_bound=-5.0)
    opcheck(OPS.l2norm_fwd.default, x)
    if not recorded:
        opcheck(OPS.gate_bwd.default, x, a_log, bias, torch.randn(2, 3, 4, 5, dtype=wide))
        opcheck(OPS.l2norm_bwd.default, x, torch.randn_like(x))
        opcheck(OPS.gate_cumsum.default, x, a_log, bias, None, raw_gate=True, chunk=16)
        offsets = torch.tensor([0, 1, 3])
        opcheck(OPS.gate_cumsum.default, x[:1], None, None, offsets)


@pytest.mark.parametrize("name", ["plain", "bounded_v_first", "packed", "standard"])
def test_gradcheck_in_double(name: str) -> None:
    shape = {"tokens": 6, "heads": 1, "batch": 1, "key_dim": 3, "value_dim": 2}
    if name == "packed":
        shape["lengths"] = [4, 0, 2]
    kinds = {"bounded_v_first": "bounded", "standard": "standard"}
    call = make_call(
        **shape,
        group=2,
        gate_kind=kinds.get(name, "ready"),
        beta_kind="negative" if name == "standard" else "ready",
        l2norm=name != "plain",
        v_first=name == "bounded_v_first",
    ).recorded()
    named = call.differentiable()
    constant = {n: x for n, x in call.options.items() if n not in named}

    def function(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(named, leaves, strict=True))
        tensors = [given.pop(n) for n in ("q", "k", "v", "g", "beta")]
        return kda.chunk_kda(*tensors, **constant, **given, output_final_state=True, backend="ref")

    assert torch.autograd.gradcheck(function, tuple(named.values()), atol=1e-7)


def test_gradcheck_gate_and_norm() -> None:
    x = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    a_log = torch.randn(2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    for bound in (None, -5.0):
        assert torch.autograd.gradcheck(
            lambda *t, bound=bound: OPS.gate(*t, lower_bound=bound), (x, a_log, bias)
        )
    assert torch.autograd.gradcheck(lambda t: OPS.l2norm_fwd(t)[0], (x,))


def test_second_derivative_is_refused() -> None:
    call = small(gate_kind="standard").recorded()
    o, _ = kda.chunk_kda(*call.tensors(), **call.options)
    (gradient,) = torch.autograd.grad(o.square().sum(), [call.q], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        gradient.sum().backward()
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    for y in (kda.fused_kda_gate(x), OPS.l2norm_fwd(x)[0]):
        (gradient,) = torch.autograd.grad(y.square().sum(), [x], create_graph=True)
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            gradient.sum().backward()


def test_recurrence_refuses_to_be_differentiated() -> None:
    call = small().recorded()
    o, state = kda.fused_recurrent_kda(*call.tensors(), **call.options, output_final_state=True)
    for result in (o, state):
        with pytest.raises(RuntimeError, match=r"no backward pass .*use chunk_kda"):
            result.sum().backward(retain_graph=True)
    pool = torch.zeros(2, 4, 4, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"records no gradient.*torch\.no_grad\(\)"):
        kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool)
    assert not pool.any()
    with torch.no_grad():
        kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool)
    assert pool.any()


def test_absent_gradients() -> None:
    call = small().recorded()
    o, state = kda.chunk_kda(*call.tensors(), **call.options, output_final_state=True)
    only_state = torch.autograd.grad(state.sum(), call.tensors(), retain_graph=True)
    assert not only_state[0].any()  # q does not reach the state
    assert only_state[1].any()
    only_o = torch.autograd.grad(o.sum(), call.tensors(), retain_graph=True)
    both = torch.autograd.grad(o.sum() + state.sum(), call.tensors())
    for one, other, together in zip(only_o, only_state, both, strict=True):
        assert relative_error(one + other, together) < 1e-12


def test_changed_inputs_are_noticed() -> None:
    call = small().recorded()
    values = call.v * 1.0
    o, _ = kda.chunk_kda(call.q, call.k, values, call.g, call.beta)
    with torch.no_grad():
        values.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_pool_update_raises_its_version() -> None:
    pool = torch.zeros(2, 4, 4, 3, dtype=torch.float64)
    call = small(state=False)
    version = pool._version
    kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool)
    assert pool._version > version


def test_nothing_is_recorded_without_need() -> None:
    call = small()
    o, _ = kda.chunk_kda(*call.tensors(), **call.options)
    assert not o.requires_grad
    recorded = call.recorded()
    with torch.no_grad():
        o, _ = kda.chunk_kda(*recorded.tensors(), **recorded.options)
    assert not o.requires_grad
    with torch.inference_mode():
        o, _ = kda.chunk_kda(*recorded.tensors(), **recorded.options)
        assert o.is_inference()


def test_hooks_and_accumulation() -> None:
    call = small().recorded()
    seen = []
    call.q.register_hook(seen.append)
    for _ in range(2):
        kda.chunk_kda(*call.tensors(), **call.options)[0].sum().backward()
    assert len(seen) == 2
    assert torch.equal(call.q.grad, seen[0] + seen[1])


def test_checkpointed_call_has_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    call = small().recorded()
    plain = torch.autograd.grad(kda.chunk_kda(*call.tensors())[0].square().sum(), call.tensors())
    o = checkpoint(lambda *t: kda.chunk_kda(*t)[0], *call.tensors(), use_reentrant=False)
    for one, other in zip(
        plain, torch.autograd.grad(o.square().sum(), call.tensors()), strict=True
    ):
        assert torch.equal(one, other)


def test_module_with_gate_parameters_copies_and_saves() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_log = torch.nn.Parameter(torch.zeros(4))
            self.dt_bias = torch.nn.Parameter(torch.zeros(16))

        def forward(self, call: Call) -> torch.Tensor:
            return kda.chunk_kda(
                *call.tensors(),
                use_gate_in_kernel=True,
                A_log=self.a_log,
                dt_bias=self.dt_bias,
            )[0]

    layer = Layer()
    call = small(dtype=torch.float32)
    layer(call).sum().backward()
    twin = copy.deepcopy(layer)
    twin.zero_grad()
    twin(call).sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
        assert one.grad.any()


def test_parameters_in_bfloat16_are_widened() -> None:
    call = small(dtype=torch.bfloat16, gate_kind="standard").recorded()
    narrow = dict(call.options)
    for name in ("A_log", "dt_bias", "initial_state"):
        narrow[name] = call.options[name].detach().bfloat16().requires_grad_()
    o, state = kda.chunk_kda(*call.tensors(), **narrow, output_final_state=True)
    assert state.dtype == torch.float32
    wide = Call(*call.tensors(), {**narrow})
    assert relative_error(o, definition(wide)[0]) < 1.2e-2
    (o.sum() + state.sum()).backward()
    for name in ("A_log", "dt_bias", "initial_state"):
        assert narrow[name].grad.dtype == torch.bfloat16
        assert narrow[name].grad.shape == narrow[name].shape
    # float32 arithmetic reads narrow gates without loss
    call = small(dtype=torch.float32)
    call.g, call.beta = call.g.bfloat16(), call.beta.half()
    assert (
        relative_error(kda.chunk_kda(*call.tensors())[0], definition(Call(*call.tensors(), {}))[0])
        < 2e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_gate_in_float32(dtype: torch.dtype) -> None:
    call = small(dtype=torch.float32, gate_kind="standard", l2norm=True)
    plain = kda.chunk_kda(*call.tensors(), **call.options)
    with torch.autocast("cpu", dtype=dtype):
        cast = kda.chunk_kda(*call.tensors(), **call.options)
        gates = kda.fused_kda_gate(call.g, call.options["A_log"], call.options["dt_bias"])
        sums = kda.kda_gate_chunk_cumsum(call.g, call.options["A_log"], 4)
    assert torch.equal(plain[0], cast[0])
    assert gates.dtype == sums.dtype == torch.float32


@pytest.mark.parametrize("function", [kda.chunk_kda, kda.fused_recurrent_kda])
def test_autocast_promotes_mixed_projections(function) -> None:
    """Under autocast q and k may come from a norm in float32 and v from a product in bfloat16."""
    call = small(dtype=torch.float32)
    mixed = Call(call.q, call.k, call.v.bfloat16(), call.g.bfloat16(), call.beta, call.options)
    with pytest.raises(ValueError, match="v: expected dtype f32, given bf16"):
        function(*mixed.tensors(), **mixed.options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, _ = function(*mixed.tensors(), **mixed.options)
    assert o.dtype == torch.float32
    assert relative_error(o, definition(mixed)[0]) < 2e-6


def test_gradients_under_autocast() -> None:
    call = small(dtype=torch.float32)
    weight = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, _ = kda.chunk_kda(call.q @ weight, call.k, call.v, call.g, call.beta)
    o.sum().backward()
    assert weight.grad.dtype == torch.float32
    assert weight.grad.isfinite().all()


def test_fake_tensors_have_the_shapes_of_real_ones() -> None:
    for name, make in CALLS.items():
        call = make().recorded()
        real = kda.chunk_kda(*call.tensors(), **call.options, output_final_state=True)
        with FakeTensorMode() as mode:
            tensors = [mode.from_tensor(x) for x in call.tensors()]
            options = {
                n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
                for n, x in call.options.items()
            }
            fake = kda.chunk_kda(*tensors, **options, output_final_state=True)
        for one, other in zip(real, fake, strict=True):
            assert one.shape == other.shape, name
            assert one.dtype == other.dtype, name
            assert one.requires_grad == other.requires_grad, name
            assert one.stride() == other.stride(), name
    meta = [x.to("meta") for x in small().tensors()]
    o, state = kda.chunk_kda(*meta, output_final_state=True)
    assert o.shape == (2, 5, 4, 3)
    assert state.shape == (2, 4, 4, 3)
    assert o.is_meta
    with pytest.raises(ValueError, match="q: expected"):
        kda.chunk_kda(meta[0][0], *meta[1:])


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)


@pytest.mark.parametrize("name", CALLS)
def test_compiles_without_graph_breaks(name: str) -> None:
    def step(call_tensors, options):
        o, state = kda.chunk_kda(*call_tensors, **options, output_final_state=True)
        return o.float().square().sum() + state.float().square().sum()

    call = CALLS[name]()
    eager, traced = call.recorded(), call.recorded()
    expected = step(eager.tensors(), eager.options)
    got = compiled(step)(traced.tensors(), traced.options)
    assert torch.allclose(got, expected)
    want = torch.autograd.grad(expected, list(eager.differentiable().values()))
    have = torch.autograd.grad(got, list(traced.differentiable().values()))
    for leaf, one, other in zip(eager.differentiable(), have, want, strict=True):
        assert relative_error(one, other) < (1e-2 if one.dtype == torch.bfloat16 else 1e-6), leaf


def test_compiles_decode_in_place() -> None:
    call = small(state=False)

    def step(pool, tensors):
        o, _ = kda.fused_recurrent_kda_fwd(*tensors, initial_state=pool)
        return o * 2

    eager_pool = torch.randn(2, 4, 4, 3, dtype=torch.float64)
    traced_pool = eager_pool.clone()
    expected = step(eager_pool, call.tensors())
    got = compiled(step)(traced_pool, call.tensors())
    assert torch.equal(got, expected)
    assert torch.equal(eager_pool, traced_pool)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor's C++ code needs g++")
def test_compiles_with_inductor() -> None:
    pytest.importorskip("triton")

    def step(q, k, v, g, beta):
        return kda.chunk_kda(q * 0.5, k, torch.tanh(v), g, beta)[0].square().sum()

    call = small(dtype=torch.float32)
    eager, traced = call.recorded(), call.recorded()
    expected = torch.autograd.grad(step(*eager.tensors()), eager.tensors())
    torch._dynamo.reset()
    got = torch.autograd.grad(
        torch.compile(step, fullgraph=True)(*traced.tensors()), traced.tensors()
    )
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5


def test_functorch_is_refused_clearly() -> None:
    call = small()
    with pytest.raises(RuntimeError, match="with functorch transforms"):
        torch.func.grad(lambda q: kda.chunk_kda(q, *call.tensors()[1:])[0].sum())(call.q)


def test_forward_mode_is_refused() -> None:
    call = small()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call.q, torch.ones_like(call.q))
        with pytest.raises(RuntimeError, match="jvp is not implemented"):
            kda.chunk_kda(dual, *call.tensors()[1:])
