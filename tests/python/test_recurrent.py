"""fused_recurrent_kda and its state pool against the definition."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import kda
from gpu import DEVICES
from oracle import TOLERANCE, Call, definition, make_call, relative_error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate_kind", ["ready", "standard", "bounded", "bounded_unit"])
@pytest.mark.parametrize("beta_kind", ["ready", "logit", "negative"])
@hypothesis.settings(max_examples=8)
@hypothesis.given(
    seed=st.integers(0, 2**20),
    shape=st.tuples(*[st.integers(1, n) for n in (2, 6, 2, 3, 19, 19)]),
    lengths=st.none() | st.lists(st.integers(0, 5), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_equals_definition(
    seed, shape, lengths, dtype, gate_kind, beta_kind, flags, device
) -> None:
    if device == "cuda" and dtype == torch.float64:
        dtype = torch.float16  # one serves the one, the other the other
    batch, tokens, heads, group, key_dim, value_dim = shape
    l2norm, state, v_first = flags
    call = make_call(
        seed=seed,
        batch=batch,
        tokens=tokens,
        heads=heads,
        group=group,
        key_dim=key_dim,
        value_dim=value_dim,
        lengths=lengths,
        dtype=dtype,
        gate_kind=gate_kind,
        beta_kind=beta_kind,
        l2norm=l2norm,
        state=state,
        v_first=v_first,
    )
    given = call.to(device)
    o, final = kda.fused_recurrent_kda(*given.tensors(), output_final_state=True, **given.options)
    expected_o, expected_final = definition(call)
    if v_first:
        expected_final = expected_final.transpose(-1, -2)
    assert o.dtype == dtype
    assert relative_error(o.cpu(), expected_o) < TOLERANCE[dtype]
    assert relative_error(final.cpu(), expected_final) < TOLERANCE[dtype]
    without, none = kda.fused_recurrent_kda(*given.tensors(), **given.options)
    assert none is None
    assert torch.equal(without, o)


def test_step_size_per_value_channel() -> None:
    call = make_call(tokens=5, value_dim=7, group=2)
    call.beta = torch.rand(2, 5, 4, 7, dtype=torch.float64)
    o, final = kda.fused_recurrent_kda(*call.tensors(), output_final_state=True, **call.options)
    expected_o, expected_final = definition(call)
    assert relative_error(o, expected_o) < 1e-12
    assert relative_error(final, expected_final) < 1e-12
    # As a logit it is activated before the call.
    logit = Call(*call.tensors(), {**call.options, "use_beta_sigmoid_in_kernel": True})
    logit.options["allow_neg_eigval"] = True
    expected_o, _ = definition(logit)
    o, _ = kda.fused_recurrent_kda(*logit.tensors(), **logit.options)
    assert relative_error(o, expected_o) < 1e-12


def pool_call(tokens: int, sequences: int = 3, **extra) -> Call:
    return make_call(
        batch=sequences, tokens=tokens, state=False, key_dim=6, value_dim=5, group=2, **extra
    )


def start_state(pool: torch.Tensor, slots: list[int]) -> torch.Tensor:
    return torch.stack([pool[s] if s >= 0 else torch.zeros_like(pool[0]) for s in slots])


def definition_from(call: Call, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return definition(Call(*call.tensors(), {**call.options, "initial_state": state}))


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_pool_leaves_final_states_in_its_slots(v_first: bool, index_dtype: torch.dtype) -> None:
    call = pool_call(4, v_first=v_first)
    shape = (9, 4, 5, 6) if v_first else (9, 4, 6, 5)
    pool = torch.randn(shape, dtype=torch.float64)
    before = pool.clone()
    slots = torch.tensor([7, -1, 2], dtype=index_dtype)
    o, returned = kda.fused_recurrent_kda_fwd(
        *call.tensors(), initial_state=pool, ssm_state_indices=slots, **call.options
    )
    assert returned is pool
    expected_o, expected = definition_from(call, start_state(before, slots.tolist()))
    if v_first:
        expected = expected.transpose(-1, -2)
    assert relative_error(o, expected_o) < 1e-12
    assert relative_error(pool[[7, 2]], expected[[0, 2]]) < 1e-12
    untouched = [0, 1, 3, 4, 5, 6, 8]
    assert torch.equal(pool[untouched], before[untouched])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate_kind", ["standard", "bounded", "bounded_unit"])
def test_pool_with_the_gate_inside(gate_kind: str, device: str) -> None:
    """dt_bias as the ecosystem gives it, flat, and parameters narrower than float32."""
    call = pool_call(2, dtype=torch.float32, gate_kind=gate_kind, beta_kind="logit", l2norm=True)
    if "A_log" in call.options:
        call.options["A_log"] = call.options["A_log"].bfloat16().view(1, 1, 4, 1)
    pool = torch.randn(5, 4, 6, 5)
    expected_o, expected = definition_from(call, pool[[4, 0, 2]])
    here, slots = call.to(device), torch.tensor([4, 0, 2], device=device)
    for out in (None, torch.empty(3, 2, 4, 5, device=device)):
        states = pool.to(device, copy=True)
        o, _ = kda.fused_recurrent_kda_fwd(
            *here.tensors(), initial_state=states, ssm_state_indices=slots, out=out, **here.options
        )
        assert relative_error(o.cpu(), expected_o) < 2e-6
        assert relative_error(states[slots].cpu(), expected) < 2e-6
    out = torch.empty_like(o)
    kda.fused_recurrent_kda_fwd(
        *here.tensors(),
        initial_state=pool.to(device)[slots],
        inplace_final_state=False,
        out=out,
        **here.options,
    )
    assert torch.equal(out, o)


def test_pool_of_bfloat16_and_strided() -> None:
    call = pool_call(3, dtype=torch.float32)
    backing = torch.randn(9, 2, 4, 6, 5, dtype=torch.bfloat16)
    before = backing.clone()
    pool = backing[:, 1]
    slots = torch.tensor([[5, 0], [4, 0], [8, 0]], dtype=torch.int32)[:, 0]
    o, _ = kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool, ssm_state_indices=slots)
    expected_o, expected = definition_from(call, before[[5, 4, 8], 1])
    assert relative_error(o, expected_o) < 1e-5
    assert relative_error(pool[[5, 4, 8]], expected) < 4e-3
    assert torch.equal(backing[:, 0], before[:, 0])


def test_pool_without_indices_is_one_state_per_sequence() -> None:
    call = pool_call(2)
    pool = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    expected_o, expected = definition_from(call, pool.clone())
    o, returned = kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool)
    assert returned is pool
    assert relative_error(o, expected_o) < 1e-12
    assert relative_error(pool, expected) < 1e-12


def test_out_receives_the_output() -> None:
    call = pool_call(2)
    pool = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    expected_o, expected = definition_from(call, pool.clone())
    out = torch.full((3, 2, 4, 5), float("nan"), dtype=torch.float64)
    o, _ = kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool.clone(), out=out)
    assert o is out
    assert relative_error(out, expected_o) < 1e-12
    out.fill_(float("nan"))
    o, state = kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        out=out,
        inplace_final_state=False,
        output_final_state=True,
    )
    assert o is out
    assert relative_error(out, expected_o) < 1e-12
    assert relative_error(state, expected) < 1e-12


def test_speculative_decoding() -> None:
    """Row n starts behind its last accepted token; the state after token t goes to slots[n, t]."""
    call = pool_call(3)
    pool = torch.randn(12, 4, 6, 5, dtype=torch.float64)
    before = pool.clone()
    wide = torch.tensor([[3, 9, 8, 9], [9, 4, 0, 9], [1, 2, 11, 9]])
    slots = wide[:, [0, 1, 2]]
    slots[0] = torch.tensor([3, 10, 8])
    slots[1] = torch.tensor([5, 4, -1])
    accepted = torch.tensor([2, 0, 3], dtype=torch.int32)
    o, _ = kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        ssm_state_indices=slots,
        num_accepted_tokens=accepted,
    )
    expected_o, _ = definition_from(call, start_state(before, [10, -1, 11]))
    assert relative_error(o, expected_o) < 1e-12
    for n, row in enumerate(slots.tolist()):
        for t, slot in enumerate(row):
            if slot < 0:
                continue
            head = Call(*(x[n : n + 1, : t + 1] for x in call.tensors()), {})
            start = start_state(before, [[10, -1, 11][n]])
            assert relative_error(pool[slot], definition_from(head, start)[1][0]) < 1e-12
    untouched = [0, 6, 7, 9]
    assert torch.equal(pool[untouched], before[untouched])


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]])
@pytest.mark.parametrize("two_dimensional", [False, True])
def test_states_of_every_token_out_of_place(lengths, two_dimensional: bool) -> None:
    call = (
        pool_call(2)
        if lengths is None
        else make_call(lengths=lengths, state=False, key_dim=6, value_dim=5, group=2)
    )
    pool = torch.randn(8, 4, 6, 5, dtype=torch.float64)
    before = pool.clone()
    slots, accepted, picked = torch.tensor([7, 6, 1]), None, [7, 6, 1]
    if two_dimensional:
        slots = torch.tensor([[7, 2, 3], [6, 5, 4], [0, 1, -1]])
        accepted = torch.tensor([1, 3, 2])
        picked = [7, 4, 1]
    o, states = kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        ssm_state_indices=slots,
        num_accepted_tokens=accepted,
        inplace_final_state=False,
        output_final_state=True,
        **call.options,
    )
    assert torch.equal(pool, before)
    start = start_state(before, picked)
    assert relative_error(o, definition_from(call, start)[0]) < 1e-12
    spans = [(0, 2), (2, 2), (2, 5)] if lengths else [(0, 2), (2, 4), (4, 6)]
    rows = [x.flatten(0, 1) for x in call.tensors()]
    for n, (begin, end) in enumerate(spans):
        for t in range(begin, end):
            head = Call(*(x[None, begin : t + 1] for x in rows), {})
            assert relative_error(states[t], definition_from(head, start[n : n + 1])[1][0]) < 1e-12
    only_o, none = kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        ssm_state_indices=slots,
        num_accepted_tokens=accepted,
        inplace_final_state=False,
        **call.options,
    )
    assert none is None
    assert relative_error(only_o, o) < 1e-12


@pytest.mark.parametrize("wanted", [True, False])
def test_skipped_slots_out_of_place_start_from_zero(wanted: bool) -> None:
    """A negative slot, and a row with no accepted token."""
    call = pool_call(2)
    pool = torch.randn(8, 4, 6, 5, dtype=torch.float64)
    for slots, accepted, picked in (
        (torch.tensor([-1, 6, -1]), None, [-1, 6, -1]),
        (torch.tensor([[7, 2], [-1, 5], [0, 1]]), torch.tensor([0, 1, 2]), [-1, -1, 1]),
    ):
        o, states = kda.fused_recurrent_kda_fwd(
            *call.tensors(),
            initial_state=pool,
            ssm_state_indices=slots,
            num_accepted_tokens=accepted,
            inplace_final_state=False,
            output_final_state=wanted,
        )
        expected_o, expected = definition_from(call, start_state(pool, picked))
        assert relative_error(o, expected_o) < 1e-12
        if wanted:
            assert relative_error(states[1::2], expected) < 1e-12


def test_empty_sequence_keeps_its_slot() -> None:
    call = make_call(lengths=[0, 3, 0], state=False, key_dim=6, value_dim=5)
    pool = torch.randn(5, 2, 6, 5, dtype=torch.float64)
    before = pool.clone()
    kda.fused_recurrent_kda_fwd(
        *call.tensors(),
        initial_state=pool,
        ssm_state_indices=torch.tensor([4, 1, 0]),
        **call.options,
    )
    assert torch.equal(pool[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    assert not torch.equal(pool[1], before[1])


def test_decode_continues_a_prefill() -> None:
    call = make_call(batch=1, tokens=90, key_dim=16, value_dim=16, dtype=torch.float32)
    whole, _ = definition(call)
    cut = 77
    o, state = kda.chunk_kda(
        *(x[:, :cut] for x in call.tensors()), output_final_state=True, **call.options
    )
    outputs = [o]
    for t in range(cut, 90):
        step = (x[:, t : t + 1] for x in call.tensors())
        o, state = kda.fused_recurrent_kda(*step, initial_state=state, output_final_state=True)
        outputs.append(o)
    assert relative_error(torch.cat(outputs, 1), whole) < 2e-6


def test_state_survives_thousands_of_weak_decays() -> None:
    """Decay of -8e-5 rounds to nothing in bfloat16; the gate stays in float32."""
    random = torch.Generator().manual_seed(1)
    steps = 4096
    q = torch.randn(1, steps, 1, 4, generator=random).to(torch.bfloat16)
    k = torch.zeros_like(q)
    v = torch.zeros_like(q)
    g = torch.full((1, steps, 1, 4), -8e-5)
    beta = torch.zeros(1, steps, 1)
    start = torch.randn(1, 1, 4, 4, generator=random)
    for function in (kda.fused_recurrent_kda, kda.chunk_kda):
        _, state = function(q, k, v, g, beta, initial_state=start, output_final_state=True)
        expected = start.double() * torch.exp(g[0, 0, 0, 0].double() * steps)
        assert relative_error(state, expected) < 1e-5
