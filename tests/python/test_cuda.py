"""The operators as torch sees them on a GPU: dispatch, compilation, graphs, streams, devices."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
import torch

import kda
from gpu import NEEDS_CUDA
from oracle import Call, definition, make_call, relative_error
from torch_ops import OPS, native, opcheck, small

pytestmark = NEEDS_CUDA

CALLS = {
    "float32_gate": {"dtype": torch.float32, "gate_kind": "standard", "beta_kind": "logit"},
    "bounded_v_first": {
        "dtype": torch.bfloat16,
        "gate_kind": "bounded",
        "l2norm": True,
        "v_first": True,
    },
    "packed": {"dtype": torch.bfloat16, "lengths": [3, 0, 66]},
    "no_state": {"dtype": torch.float16, "state": False},
}


def on_gpu(name: str, **extra) -> Call:
    return small(**{**CALLS[name], **extra}).to("cuda")


def medium(**extra) -> Call:
    shape = {
        "tokens": 150,
        "key_dim": 64,
        "value_dim": 64,
        "dtype": torch.bfloat16,
        "gate_kind": "bounded",
        "beta_kind": "logit",
        "l2norm": True,
    }
    return make_call(**{**shape, **extra}).to("cuda")


def step(call: Call) -> list[torch.Tensor]:
    """Output, final state and the gradients of everything, of one recorded call."""
    o, state = kda.chunk_kda(*call.tensors(), **call.options, output_final_state=True)
    loss = o.float().square().sum() + state.square().sum()
    return [o, state, *torch.autograd.grad(loss, list(call.differentiable().values()))]


def refill(call: Call, source: Call) -> None:
    with torch.no_grad():
        for one, other in zip(call.tensors(), source.tensors(), strict=True):
            one.copy_(other)
        for name, value in source.options.items():
            if isinstance(value, torch.Tensor):
                call.options[name].copy_(value)


def assert_equal(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert torch.equal(one, other), i


# --- dispatcher ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [False, True], ids=["constant", "recorded"])
@pytest.mark.parametrize("name", CALLS)
def test_opcheck_chunk(name: str, recorded: bool) -> None:
    call = on_gpu(name)
    if recorded:
        call = call.recorded()
    options = native(call, output_final_state=True)
    opcheck(OPS.chunk_fwd.default, *call.tensors(), **options)
    opcheck(OPS.chunk.default, *call.tensors(), **options)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_chunk_backward(name: str) -> None:
    call = on_gpu(name)
    options = native(call, output_final_state=True)
    o, state, h, _ = OPS.chunk_fwd(*call.tensors(), **options, h_dtype=torch.float32)
    gradients = {"d_o": torch.randn_like(o), "d_final_state": torch.randn_like(state)}
    opcheck(OPS.chunk_bwd.default, *call.tensors(), **options, **gradients, h=h)
    opcheck(
        OPS.chunk_bwd.default,
        *call.tensors(),
        **options,
        **gradients,
        output_mask=[True, False] * 4,
    )


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_recurrent(name: str) -> None:
    call = on_gpu(name)
    options = native(call, output_final_state=True)
    opcheck(OPS.recurrent_fwd.default, *call.tensors(), **options)
    opcheck(OPS.recurrent_out.default, torch.empty_like(call.v), *call.tensors(), **options)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("key_dim", [24, 128])
@pytest.mark.parametrize("lengths", [None, [70, 0, 130]])
def test_kept_factors_change_no_bit(lengths, key_dim: int, compiled: bool) -> None:
    call = make_call(
        tokens=100,
        lengths=lengths,
        key_dim=key_dim,
        value_dim=key_dim,
        group=2,
        dtype=torch.bfloat16,
        gate_kind="bounded",
        l2norm=True,
    ).to("cuda")

    def gradients(keep: bool) -> list[torch.Tensor]:
        given = call.recorded()
        inputs = list(given.differentiable().values())

        def loss(q, k, v, g, beta):
            o, _ = kda.chunk_kda(q, k, v, g, beta, disable_recompute=keep, **given.options)
            return o.float().square().sum()

        run = torch.compile(loss, fullgraph=True) if compiled else loss
        return list(torch.autograd.grad(run(*given.tensors()), inputs))

    assert_equal(gradients(keep=True), gradients(keep=False))


def test_kept_factors_are_kept() -> None:
    call = on_gpu("float32_gate").recorded()
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or x, lambda x: x):
        kda.chunk_kda(*call.tensors(), disable_recompute=True, **call.options)
    kept = [x for x in held if x.dtype == torch.uint8]
    assert len(kept) == 1
    assert kept[0].numel() > 0


def test_opcheck_pool_gate_and_norm() -> None:
    call = small(state=False, dtype=torch.float32).to("cuda")
    pool = torch.randn(6, 4, 4, 3, device="cuda")
    slots = torch.tensor([4, 1], device="cuda")
    opcheck(OPS.recurrent_pool.default, pool, slots, None, *call.tensors(), **native(call))
    x = torch.randn(2, 3, 4, 5, device="cuda", requires_grad=True)
    a_log = torch.randn(4, device="cuda", requires_grad=True)
    bias = torch.randn(4, 5, device="cuda", requires_grad=True)
    for bound in (None, -5.0):
        opcheck(OPS.gate_fwd.default, x, a_log, bias, lower_bound=bound)
    opcheck(OPS.l2norm_fwd.default, x)
    still = [t.detach() for t in (x, a_log, bias)]
    opcheck(OPS.gate_bwd.default, *still, torch.randn(2, 3, 4, 5, device="cuda"))
    opcheck(OPS.l2norm_bwd.default, still[0], torch.randn_like(still[0]))
    opcheck(OPS.gate_cumsum.default, *still, None, raw_gate=True, chunk=16)


def test_explain_and_backends() -> None:
    assert kda.backends()[0] == "cuda"
    call = medium()
    for op in ("chunk_fwd", "chunk_bwd", "recurrent"):
        assert kda.explain(*call.tensors(), op=op, **call.options).chosen == "cuda"
    wide = make_call().to("cuda")
    assert kda.explain(*wide.tensors()).chosen is None
    with pytest.raises(NotImplementedError, match="f64"):
        kda.chunk_kda(*wide.tensors())
    with pytest.raises(NotImplementedError, match="the tensors are in cuda memory"):
        kda.chunk_kda(*call.tensors(), **call.options, backend="cpu")
    info = kda.build_info()
    assert info.cuda_library is not None
    assert not info.cuda_reason


def test_gate_functions() -> None:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(2, 70, 3, 24, generator=random).bfloat16()
    a_log, bias = torch.randn(3, generator=random), torch.randn(72, generator=random)
    for bound in (None, -5.0):
        host = [t.clone().requires_grad_() for t in (x.double(), a_log.double(), bias.double())]
        here = [t.cuda().requires_grad_() for t in (x, a_log, bias)]
        expected, got = (
            kda.fused_kda_gate(*t, lower_bound=bound, output_dtype=t[1].dtype) for t in (host, here)
        )
        assert relative_error(got.cpu(), expected) < 2e-6
        weight = torch.randn(expected.shape, generator=random)
        wanted = torch.autograd.grad((expected * weight).sum(), host)
        gradients = torch.autograd.grad((got * weight.cuda()).sum(), here)
        for one, other, limit in zip(gradients, wanted, (5e-3, 1e-5, 1e-5), strict=True):
            assert relative_error(one.cpu(), other) < limit
    offsets = torch.tensor([0, 40, 40, 140])
    flat = x.view(1, 140, 3, 24)
    expected = kda.kda_gate_chunk_cumsum(flat.double(), a_log, 32, 1.4427, bias, offsets)
    for where in ("cpu", "cuda"):
        got = kda.kda_gate_chunk_cumsum(
            flat.cuda(), a_log.cuda(), 32, 1.4427, bias.cuda(), offsets.to(where)
        )
        assert got.dtype == torch.float32
        assert relative_error(got.cpu(), expected) < 2e-6


def test_empty_calls() -> None:
    for shape in ({"tokens": 0}, {"lengths": [0, 0]}):
        call = medium(**shape).recorded()
        o, state, *gradients = step(call)
        assert o.shape == call.v.shape
        assert torch.equal(state, call.options["initial_state"])
        assert len(gradients) == len(call.differentiable())
    for function in (kda.chunk_kda, kda.fused_recurrent_kda):
        call = medium(tokens=3)
        o, state = function(*(x[:0] for x in call.tensors()), output_final_state=True)
        assert o.shape == (0, 3, 2, 64)
        assert state.shape == (0, 2, 64, 64)


def test_strided_inputs() -> None:
    call = medium(lengths=None)
    expected = step(call.recorded())
    backing = [torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan")) for x in call.tensors()]
    views = []
    for store, x in zip(backing, call.tensors(), strict=True):
        view = store.to(x)[..., ::2] if x.ndim == 4 else x.transpose(1, 2).contiguous().mT
        view.copy_(x)
        views.append(view)
    assert_equal(step(Call(*views, call.options).recorded()), expected)
    strided = Call(*views, call.options)
    o, _ = kda.chunk_kda(*strided.tensors(), **strided.options)
    assert torch.equal(o, expected[0])


# --- torch.compile ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bounded_v_first", "packed"])
@pytest.mark.parametrize("mode", ["aot_eager", pytest.param("inductor", id="inductor")])
def test_compiles_without_graph_breaks(name: str, mode: str) -> None:
    def function(tensors, options):
        q, k, v, g, beta = tensors
        o, state = kda.chunk_kda(q * 0.5, k, v, g, beta, **options, output_final_state=True)
        return o.float().square().sum() + state.square().sum()

    call = on_gpu(name, key_dim=16, value_dim=16, tokens=70)
    eager, traced = call.recorded(), call.recorded()
    expected = function(eager.tensors(), eager.options)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=mode)
    got = compiled(traced.tensors(), traced.options)
    assert torch.allclose(got, expected, rtol=1e-3)
    want = torch.autograd.grad(expected, list(eager.differentiable().values()))
    have = torch.autograd.grad(got, list(traced.differentiable().values()))
    for leaf, one, other in zip(eager.differentiable(), have, want, strict=True):
        assert relative_error(one, other) < 1e-2, leaf


def test_compiles_gate_and_decode() -> None:
    call = medium(tokens=1, state=False, gate_kind="ready", beta_kind="ready")

    def function(pool, slots, raw, tensors):
        gates = kda.fused_kda_gate(raw, lower_bound=-5.0)
        o, _ = kda.fused_recurrent_kda_fwd(*tensors, initial_state=pool, ssm_state_indices=slots)
        return o * gates.float().sum()

    pool = torch.randn(4, 2, 64, 64, device="cuda")
    slots = torch.tensor([3, 0], device="cuda", dtype=torch.int32)
    raw = torch.randn(1, 2, 8, device="cuda")
    twin = pool.clone()
    expected = function(pool, slots, raw, call.tensors())
    torch._dynamo.reset()
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(
        twin, slots, raw, call.tensors()
    )
    assert torch.equal(got, expected)
    assert torch.equal(pool, twin)


# --- CUDA graphs --------------------------------------------------------------------------------


@contextlib.contextmanager
def captured(function) -> Iterator[tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]]:
    """Warm up on a side stream, then capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    yield graph, results


@pytest.mark.parametrize("lengths", [None, [100, 0, 1, 49]])
def test_training_step_in_a_graph(lengths) -> None:
    static = medium(lengths=lengths).recorded()
    with captured(lambda: step(static)) as (graph, results):
        for seed in (1, 2):
            other = medium(lengths=lengths, seed=seed)
            if lengths:  # only the contents of the offsets change
                other.options["cu_seqlens"] = torch.tensor(
                    [0, 30 * seed, 64, 64, 150], device="cuda"
                )
            refill(static, other)
            graph.replay()
            torch.cuda.synchronize()
            assert_equal(results, step(other.recorded()))


def test_decode_in_a_graph() -> None:
    call = medium(tokens=1, state=False)
    pool = torch.randn(5, 2, 64, 64, device="cuda")
    slots = torch.tensor([[4], [1]], device="cuda")[:, 0]
    fixed = {**call.options, "ssm_state_indices": slots}

    def decode() -> list[torch.Tensor]:
        return [kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool, **fixed)[0]]

    with captured(decode) as (graph, (out,)):
        expected_pool = torch.randn_like(pool)
        pool.copy_(expected_pool)
        slots.copy_(torch.tensor([0, -1], device="cuda"))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        for _ in range(2):
            expected, _ = kda.fused_recurrent_kda_fwd(
                *call.tensors(),
                initial_state=expected_pool,
                ssm_state_indices=torch.tensor([0, -1], device="cuda"),
                **call.options,
            )
        assert torch.equal(out, expected)
        assert torch.equal(pool, expected_pool)


# --- streams and synchronisation ----------------------------------------------------------------


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_for_the_device() -> None:
    """Also below torch: the host is back before a long kernel in front of the calls has ended."""
    dense, packed = medium().recorded(), medium(lengths=[100, 0, 50]).recorded()
    token = medium(tokens=2, state=False)
    pool = torch.randn(5, 2, 64, 64, device="cuda")
    slots = torch.tensor([[4, 3], [1, 2]], device="cuda")
    accepted = torch.tensor([1, 2], device="cuda")
    raw, unit = torch.randn(2, 3, 4, 5, device="cuda"), torch.zeros(4, device="cuda")

    def work() -> None:
        step(dense)
        step(packed)
        for in_place in (True, False):
            kda.fused_recurrent_kda_fwd(
                *token.tensors(),
                initial_state=pool,
                ssm_state_indices=slots,
                num_accepted_tokens=accepted,
                inplace_final_state=in_place,
                output_final_state=True,
                **token.options,
            )
        kda.fused_kda_gate(raw, unit)
        kda.kda_gate_chunk_cumsum(raw, unit, 16)

    work()  # modules are loaded at their first launch
    done = torch.cuda.Event()
    with no_synchronisation():
        torch.cuda._sleep(4_000_000_000)  # about two seconds
        work()
        done.record()
        assert not done.query()
    torch.cuda.synchronize()


def test_runs_on_the_current_stream() -> None:
    call = medium()
    expected = step(call.recorded())
    late = Call(*(torch.zeros_like(x) for x in call.tensors()), call.options).recorded()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)
        refill(late, call)  # arrives late: a call on another stream would see zeros
        results = step(late)
    side.synchronize()
    assert_equal(results, expected)


def test_streams_do_not_disturb_each_other() -> None:
    """Temporary memory returns to its own stream: many calls in flight on two of them."""
    calls = [medium(seed=s, lengths=[100, 50] if s % 2 else None) for s in range(4)]
    expected = [step(c.recorded()) for c in calls]
    leaves = [c.recorded() for c in calls]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for turn in range(6):
        for i, leaf in enumerate(leaves):
            with torch.cuda.stream(streams[(i + turn) % 2]):
                results.append((i, step(leaf)))
    torch.cuda.synchronize()
    for i, got in results:
        assert_equal(got, expected[i])


def test_backward_follows_the_stream_of_the_forward() -> None:
    call = medium()
    expected = step(call.recorded())
    leaf = call.recorded()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        o, state = kda.chunk_kda(*leaf.tensors(), **leaf.options, output_final_state=True)
        loss = o.float().square().sum() + state.square().sum()
    gradients = torch.autograd.grad(loss, list(leaf.differentiable().values()))
    torch.cuda.synchronize()
    assert_equal(list(gradients), expected[2:])


def test_memory_is_given_back() -> None:
    call = medium().recorded()
    step(call)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        step(call)
    assert torch.cuda.memory_allocated() == before


def test_repeated_calls_are_bit_equal() -> None:
    call = medium(lengths=[64, 1, 0, 85])
    first = step(call.recorded())
    for _ in range(5):
        assert_equal(step(call.recorded()), first)
    call.options["cu_seqlens"] = call.options["cu_seqlens"].cpu().int()
    assert_equal(step(call.recorded()), first)  # offsets on the host: the same numbers


# --- autocast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_gate_in_float32(dtype: torch.dtype) -> None:
    call = on_gpu("float32_gate")
    plain = kda.chunk_kda(*call.tensors(), **call.options)
    with torch.autocast("cuda", dtype=dtype):
        cast = kda.chunk_kda(*call.tensors(), **call.options)
        gates = kda.fused_kda_gate(call.g, call.options["A_log"], call.options["dt_bias"])
        sums = kda.kda_gate_chunk_cumsum(call.g, call.options["A_log"], 4)
    assert torch.equal(plain[0], cast[0])
    assert gates.dtype == sums.dtype == torch.float32


def test_autocast_promotes_mixed_projections() -> None:
    call = small(dtype=torch.float32)
    mixed = Call(call.q, call.k, call.v.bfloat16(), call.g.bfloat16(), call.beta, call.options)
    here = mixed.to("cuda")
    with pytest.raises(ValueError, match="v: expected dtype f32, given bf16"):
        kda.chunk_kda(*here.tensors(), **here.options)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        o, _ = kda.chunk_kda(*here.tensors(), **here.options)
    assert o.dtype == torch.float32
    assert relative_error(o.cpu(), definition(mixed)[0]) < 2e-6


def test_a_layer_under_autocast() -> None:
    """Projections in bf16, gate parameters in f32, gradients in the parameters' dtype."""
    width, heads, dim = 64, 2, 32
    projections = torch.nn.ModuleList(
        torch.nn.Linear(width, heads * (dim if i < 4 else 1)) for i in range(5)
    ).cuda()
    a_log = torch.zeros(heads, device="cuda", requires_grad=True)
    bias = torch.zeros(heads * dim, device="cuda", requires_grad=True)
    x = torch.randn(2, 70, width, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, k, v, g, beta = (p(x).unflatten(-1, (heads, -1)) for p in projections)
        o, _ = kda.chunk_kda(
            q, k, v, g, beta.squeeze(-1),
            use_gate_in_kernel=True, A_log=a_log, dt_bias=bias, lower_bound=-5.0,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        )  # fmt: skip
    assert o.dtype == torch.bfloat16
    o.float().square().sum().backward()
    for parameter in (a_log, bias, *projections.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()
    assert a_log.grad.any()


# --- mixed devices ------------------------------------------------------------------------------


def refuses(text: str):
    return pytest.raises(ValueError, match=re.escape(text))


@pytest.mark.parametrize("name", ["k", "v", "g", "beta"])
def test_one_tensor_elsewhere(name: str) -> None:
    call = medium(gate_kind="ready", beta_kind="ready")
    host = Call(*call.tensors(), call.options)
    setattr(host, name, getattr(call, name).cpu())
    with refuses(f"{name}: expected on cuda:0 like q, given on cpu"):
        kda.chunk_kda(*host.tensors())
    device = call.to("cpu")
    setattr(device, name, getattr(call, name))
    with refuses(f"{name}: expected on cpu like q, given on cuda:0"):
        kda.fused_recurrent_kda(*device.tensors())


@pytest.mark.parametrize("name", ["A_log", "dt_bias", "initial_state"])
def test_one_option_elsewhere(name: str) -> None:
    call = medium()
    argument = name.lower()
    for function in (kda.chunk_kda, kda.fused_recurrent_kda):
        with refuses(f"{argument}: expected on cuda:0 like q, given on cpu"):
            function(*call.tensors(), **{**call.options, name: call.options[name].cpu()})


def test_offsets_pool_and_results_elsewhere() -> None:
    packed = make_call(lengths=[3, 4], dtype=torch.float32)
    with refuses("cu_seqlens: expected on cpu like q, given on cuda:0"):
        kda.chunk_kda(
            *packed.tensors(),
            **{**packed.options, "cu_seqlens": packed.options["cu_seqlens"].cuda()},
        )
    call = medium(tokens=1, state=False)
    pool, slots = torch.zeros(2, 2, 64, 64), torch.arange(2)
    for place, text in (
        ((pool, slots.cuda()), "pool: expected on cuda:0 like q, given on cpu"),
        ((pool.cuda(), slots), "slots: expected on cuda:0 like q, given on cpu"),
    ):
        with refuses(text):
            kda.fused_recurrent_kda_fwd(
                *call.tensors(), initial_state=place[0], ssm_state_indices=place[1], **call.options
            )
    with refuses("out: expected on cuda:0 like q, given on cpu"):
        kda.fused_recurrent_kda_fwd(
            *call.tensors(), initial_state=pool.cuda(), out=torch.empty(call.v.shape).bfloat16(),
            **call.options,
        )  # fmt: skip
    raw = torch.randn(1, 2, 3, 4, device="cuda")
    with refuses("a_log: expected on cuda:0 like g, given on cpu"):
        kda.fused_kda_gate(raw, torch.zeros(3))
    with refuses("dt_bias: expected on cuda:0 like g, given on cpu"):
        kda.kda_gate_chunk_cumsum(raw, torch.zeros(3).cuda(), 16, dt_bias=torch.zeros(12))
    o, _, h, _ = OPS.chunk_fwd(*call.tensors(), **native(call), h_dtype=torch.float32)
    with refuses("d_o: expected on cuda:0 like q, given on cpu"):
        OPS.chunk_bwd(*call.tensors(), **native(call), h=h, d_o=o.cpu())
