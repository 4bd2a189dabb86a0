"""chunk_kda against the definition: outputs, states and every gradient, on drawn calls."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import kda
from gpu import NEEDS_CUDA, device_of
from oracle import GRADIENT_TOLERANCE, TOLERANCE, Call, definition, make_call, relative_error


def serves(backend: str, call: Call, op: str = "chunk_fwd") -> bool:
    call = call.to(device_of(backend))
    verdicts = kda.explain(*call.tensors(), op=op, **call.options).verdicts
    return any(v.backend == backend and v.available and v.can_serve for v in verdicts)


def check_forward(call: Call, backend: str, **extra: object) -> None:
    given = call.to(device_of(backend))
    o, state = kda.chunk_kda(
        *given.tensors(), output_final_state=True, backend=backend, **given.options, **extra
    )
    expected_o, expected_state = definition(call)
    if call.options.get("state_v_first"):
        expected_state = expected_state.transpose(-1, -2)
    assert o.dtype == call.q.dtype
    assert o.device == state.device == given.q.device
    assert o.is_contiguous()
    assert state.dtype == (torch.float64 if o.dtype == torch.float64 else torch.float32)
    limit = TOLERANCE[call.q.dtype]
    assert relative_error(o.cpu(), expected_o) < limit
    assert relative_error(state.cpu(), expected_state) < limit


def check_gradients(
    call: Call, backend: str, *, use_o: bool = True, use_state: bool = True
) -> None:
    """Gradients of a random linear function of output and state against autograd's."""
    random = torch.Generator().manual_seed(7)
    ours, reference = call.to(device_of(backend)).recorded(), call.recorded()
    o, state = kda.chunk_kda(
        *ours.tensors(), output_final_state=True, backend=backend, **ours.options
    )
    expected_o, expected_state = definition(reference)
    if call.options.get("state_v_first"):
        expected_state = expected_state.transpose(-1, -2)
    d_o = torch.randn(o.shape, generator=random, dtype=torch.float64).to(o.dtype)
    d_state = torch.randn(state.shape, generator=random, dtype=torch.float64).to(state.dtype)
    loss = expected = 0.0
    if use_o:
        loss, expected = (o * d_o.to(o.device)).sum(), (expected_o * d_o.double()).sum()
    if use_state:
        loss = loss + (state * d_state.to(o.device)).sum()
        expected = expected + (expected_state * d_state.double()).sum()
    named = ours.differentiable()
    got = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    want = [None] * len(named)
    if expected.requires_grad:  # without tokens the output depends on nothing
        want = torch.autograd.grad(
            expected, list(reference.differentiable().values()), allow_unused=True
        )
    limit = GRADIENT_TOLERANCE[call.q.dtype]
    for (name, leaf), actual, desired in zip(named.items(), got, want, strict=True):
        assert actual is not None, name
        assert actual.dtype == leaf.dtype, name
        if desired is None:
            desired = torch.zeros_like(leaf)
        error = relative_error(actual.cpu(), desired.cpu())
        assert error < limit, f"{name}: {error}"


@st.composite
def calls(
    draw: st.DrawFn, dtypes: tuple[torch.dtype, ...], max_tokens: int, gate: str, beta: str
) -> Call:
    packed = draw(st.booleans())
    length = st.one_of(
        st.integers(0, max_tokens),
        st.sampled_from([t for t in (1, 15, 16, 17, 63, 64, 65) if t <= max_tokens]),
    )
    lengths = draw(st.lists(length, min_size=1, max_size=4)) if packed else None
    dtype = draw(st.sampled_from(dtypes))
    mixed = dtype not in (torch.float32, torch.float64) and draw(st.booleans())
    return make_call(
        seed=draw(st.integers(0, 2**20)),
        batch=draw(st.integers(1, 2)),
        tokens=draw(st.integers(1, max_tokens)),
        heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 3)),
        key_dim=draw(st.integers(1, 19)),
        value_dim=draw(st.integers(1, 19)),
        lengths=lengths,
        dtype=dtype,
        gate_dtype=torch.float32 if mixed else None,
        gate_kind=gate,
        beta_kind=beta,
        l2norm=draw(st.booleans()),
        state=draw(st.booleans()),
        v_first=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 1.0, 0.3])),
        chunk_size=draw(st.sampled_from([16, 32, 64, 128])),
    )


def served_dtypes(backend: str, *dtypes: torch.dtype) -> tuple[torch.dtype, ...]:
    """Those of ``dtypes`` that a backend takes, forward and backward; skips when there are none."""
    served = tuple(
        dtype
        for dtype in dtypes
        if all(serves(backend, make_call(dtype=dtype), op) for op in ("chunk_fwd", "chunk_bwd"))
    )
    if not served:
        pytest.skip(f"backend {backend}: {kda.explain(*make_call(dtype=dtypes[-1]).tensors())}")
    return served


BACKENDS = pytest.mark.parametrize(
    "backend", ["ref", "cpu", pytest.param("cuda", marks=NEEDS_CUDA)]
)
AUTO = pytest.mark.parametrize("backend", ["auto", pytest.param("cuda", marks=NEEDS_CUDA)])
# Enumerated, since a few drawn examples can miss a kind altogether.
GATES = pytest.mark.parametrize("gate", ["ready", "standard", "bounded", "bounded_unit"])
BETAS = pytest.mark.parametrize("beta", ["ready", "logit", "negative"])


@BACKENDS
@GATES
@BETAS
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_forward_equals_definition(backend: str, gate: str, beta: str, data: st.DataObject) -> None:
    half = [torch.float16] if backend == "cuda" else []
    dtypes = served_dtypes(backend, torch.float64, torch.float32, torch.bfloat16, *half)
    check_forward(data.draw(calls(dtypes, 90, gate, beta)), backend)


@BACKENDS
@GATES
@BETAS
@hypothesis.settings(max_examples=7)
@hypothesis.given(data=st.data(), parts=st.sampled_from(["o", "state", "both"]))
def test_gradients_equal_autograd_of_definition(
    backend: str, gate: str, beta: str, data: st.DataObject, parts: str
) -> None:
    dtypes = served_dtypes(backend, torch.float64, torch.float32)
    call = data.draw(calls(dtypes, 70, gate, beta))
    check_gradients(call, backend, use_o=parts != "state", use_state=parts != "o")


@BACKENDS
@GATES
@hypothesis.settings(max_examples=4)
@hypothesis.given(data=st.data(), beta=st.sampled_from(["ready", "logit", "negative"]))
def test_gradients_in_bfloat16(backend: str, gate: str, data: st.DataObject, beta: str) -> None:
    call = data.draw(calls(served_dtypes(backend, torch.bfloat16), 70, gate, beta))
    if min(call.q.shape[-1], call.v.shape[-1], call.q.shape[1]) < 4:
        hypothesis.reject()  # too few elements for an RMS bound on rounded inputs
    check_gradients(call, backend)


# Sizes that other implementations test, and where they failed.
NAMED = {
    "one_short_chunk": {"batch": 1, "tokens": 63, "heads": 1, "key_dim": 64, "value_dim": 64},
    "head_60": {"batch": 1, "tokens": 130, "heads": 2, "key_dim": 60, "value_dim": 60},
    "head_100_norm": {
        "batch": 1,
        "tokens": 96,
        "heads": 1,
        "key_dim": 100,
        "value_dim": 100,
        "l2norm": True,
    },
    "head_128_gate": {
        "batch": 1,
        "tokens": 129,
        "heads": 1,
        "group": 2,
        "key_dim": 128,
        "value_dim": 128,
        "gate_kind": "standard",
        "l2norm": True,
    },
    "head_256": {"batch": 1, "tokens": 20, "heads": 1, "key_dim": 256, "value_dim": 256},
    "packed_tails": {"lengths": [65, 66, 71, 15], "heads": 1, "key_dim": 32, "value_dim": 32},
    "packed_shared_tile": {
        "lengths": [40, 64],
        "heads": 2,
        "group": 2,
        "key_dim": 16,
        "value_dim": 24,
    },
    "packed_empty_middle": {
        "lengths": [0, 0, 64, 0, 10, 0],
        "heads": 1,
        "key_dim": 16,
        "value_dim": 8,
    },
}


@AUTO
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", NAMED)
def test_named_sizes(name: str, dtype: torch.dtype, backend: str) -> None:
    check_forward(make_call(dtype=dtype, **NAMED[name]), backend)


@AUTO
@pytest.mark.parametrize("name", ["head_60", "packed_tails", "packed_empty_middle"])
def test_named_gradients(name: str, backend: str) -> None:
    check_gradients(make_call(dtype=torch.float32, **NAMED[name]), backend)


def test_naive_functions_equal_definition() -> None:
    call = make_call(tokens=70, group=2, key_dim=9, value_dim=7)
    expected_o, expected_state = definition(call)
    start = call.options["initial_state"]
    for function, extra in (
        (kda.naive_recurrent_kda, {}),
        (kda.naive_chunk_kda, {}),
        (kda.naive_chunk_kda, {"chunk_size": 16}),
    ):
        o, state = function(*call.tensors(), initial_state=start, output_final_state=True, **extra)
        assert relative_error(o, expected_o) < 1e-12
        assert relative_error(state, expected_state) < 1e-12
        assert function(*call.tensors())[1] is None


def test_naive_chunk_gradients_with_strong_gates() -> None:
    """Masked entries overflow when they are exponentiated first and masked later."""
    call = make_call(tokens=64, key_dim=4, value_dim=4, batch=1, heads=1)
    call.g = torch.full_like(call.g, -5.0)
    call.g[:, ::7] = -1000.0
    ours, reference = call.recorded(), call.recorded()
    start = {"initial_state": ours.options["initial_state"]}
    kda.naive_chunk_kda(*ours.tensors(), **start)[0].square().sum().backward()
    definition(reference)[0].square().sum().backward()
    for name, leaf in ours.differentiable().items():
        want = reference.differentiable()[name].grad
        assert relative_error(leaf.grad, want) < 1e-10, name


@BACKENDS
def test_recomputed_states_give_the_same_gradients(backend: str) -> None:
    """keep_states=False replays the forward pass in the backward pass."""
    served_dtypes(backend, torch.float32)
    call = make_call(dtype=torch.float32, tokens=150, key_dim=16, value_dim=16)
    call = call.to(device_of(backend))
    gradients = []
    for keep in (True, False):
        leaf = call.recorded()
        o, _ = torch.ops.kda.chunk(
            *leaf.tensors(),
            initial_state=leaf.options["initial_state"],
            keep_states=keep,
            backend=backend,
        )
        gradients.append(torch.autograd.grad(o.square().sum(), leaf.tensors()))
    for kept, recomputed in zip(*gradients, strict=True):
        assert relative_error(kept, recomputed) < 1e-5


def test_only_wanted_gradients() -> None:
    call = make_call(gate_kind="standard", l2norm=True)
    names = list(call.differentiable())
    full = call.recorded()
    o, _ = kda.chunk_kda(*full.tensors(), **full.options)
    every = dict(
        zip(
            names,
            torch.autograd.grad(o.sum(), list(full.differentiable().values())),
            strict=True,
        )
    )
    for name in names:
        single = call.recorded()
        for other, leaf in single.differentiable().items():
            leaf.requires_grad_(other == name)
        o, _ = kda.chunk_kda(*single.tensors(), **single.options)
        (gradient,) = torch.autograd.grad(o.sum(), [single.differentiable()[name]])
        assert torch.equal(gradient, every[name]), name


def test_intermediate_states() -> None:
    call = make_call(lengths=[130, 0, 64, 1], key_dim=6, value_dim=5, group=2)
    with torch.inference_mode():
        o, state, h = kda.chunk_kda(
            *call.tensors(),
            output_final_state=True,
            return_intermediate_states=True,
            **call.options,
        )
        assert h.shape == (1, 5, 4, 6, 5)
        plain, plain_state = kda.chunk_kda(*call.tensors(), output_final_state=True, **call.options)
    assert torch.equal(o, plain)
    assert torch.equal(state, plain_state)
    start = call.options["initial_state"]
    for block, n in ((0, 0), (3, 2), (4, 3)):  # the empty sequence has no block
        assert torch.equal(h[0, block], start[n])
    head = make_call(batch=1, tokens=1)
    head.q, head.k, head.v, head.g, head.beta = (x[:, :64] for x in call.tensors())
    head.options = {"initial_state": start[:1]}
    assert relative_error(h[0, 1], definition(head)[1][0]) < 1e-12

    dense = make_call(tokens=100, key_dim=6, value_dim=5, dtype=torch.float32, v_first=True)
    with torch.inference_mode():
        *_, h = kda.chunk_kda(*dense.tensors(), return_intermediate_states=True, **dense.options)
    assert h.shape == (2, 2, 2, 5, 6)
    assert h.dtype == torch.float32
    assert torch.equal(h[:, 0], dense.options["initial_state"])


def test_hints_do_not_change_the_result() -> None:
    call = make_call(gate_kind="bounded", dtype=torch.float32)
    plain = kda.chunk_kda(*call.tensors(), **call.options)[0]
    hinted = kda.chunk_kda(*call.tensors(), **call.options, safe_gate=True, disable_recompute=True)[
        0
    ]
    assert torch.equal(plain, hinted)
    ready = make_call(dtype=torch.float32)
    plain = kda.chunk_kda(*ready.tensors(), **ready.options)[0]
    # The bound of a ready-made gate describes it and selects nothing.
    hinted = kda.chunk_kda(*ready.tensors(), **ready.options, safe_gate=True, lower_bound=-5.0)[0]
    assert torch.equal(plain, hinted)


def test_bounded_gate_is_a_sigmoid() -> None:
    x = torch.tensor([-2.0, 2.0]).view(1, 1, 2)
    gates = kda.fused_kda_gate(x, torch.zeros(1), lower_bound=-5.0)
    assert gates.flatten().tolist() == pytest.approx([-0.596015, -4.403985], abs=1e-6)
