"""What callers get wrong, and the texts that tell them."""

from __future__ import annotations

import re

import pytest
import torch

import kda
from oracle import Call, make_call


def fails(error: type[Exception], text: str):
    return pytest.raises(error, match=re.escape(text))


def chunk(call: Call, **extra):
    return kda.chunk_kda(*call.tensors(), **{**call.options, **extra})


def with_tensor(name: str, value: torch.Tensor, **shape) -> Call:
    call = make_call(**{"tokens": 9, **shape})
    setattr(call, name, value)
    return call


BASE = {"batch": 2, "tokens": 9, "heads": 2, "group": 2, "key_dim": 6, "value_dim": 5}


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("q", (2, 9, 6), "q: expected [B,T,H,K] (rank 4), given rank 3"),
        ("v", (2, 9, 5), "v: expected [B,T,HV,V] (rank 4), given rank 3"),
        ("k", (2, 9, 2, 4), "k: expected [B=2,T=9,H=2,K=6], given [2,9,2,4]"),
        ("k", (2, 8, 2, 6), "k: expected [B=2,T=9,H=2,K=6], given [2,8,2,6]"),
        ("v", (2, 9, 3, 5), "v: expected HV to be a positive multiple of H=2, given HV=3"),
        ("v", (2, 9, 1, 5), "v: expected HV to be a positive multiple of H=2, given HV=1"),
        ("g", (2, 9, 2, 6), "g_ln: expected [B=2,T=9,HV=4,K=6], given [2,9,2,6]"),
        ("g", (2, 9, 4), "g_ln: expected [B=2,T=9,HV=4,K=6], given [2,9,4]"),
        ("beta", (2, 9, 2), "beta: expected [B=2,T=9,HV=4], given [2,9,2]"),
        ("beta", (2, 9, 4, 5), "beta: expected [B=2,T=9,HV=4], given [2,9,4,5]"),
    ],
)
def test_shapes(name: str, shape: tuple[int, ...], text: str) -> None:
    with fails(ValueError, text):
        chunk(with_tensor(name, torch.randn(shape, dtype=torch.float64), **BASE))


@pytest.mark.parametrize("name", ["k", "v"])
def test_one_dtype(name: str) -> None:
    call = make_call(**BASE, dtype=torch.bfloat16)
    setattr(call, name, getattr(call, name).float())
    with fails(ValueError, f"{name}: expected dtype bf16, given f32"):
        chunk(call)


def test_operands_that_cannot_be_widened() -> None:
    call = make_call(**BASE, dtype=torch.float32)
    call.g = call.g.double()
    with fails(ValueError, "g_ln: expected dtype f32, given f64"):
        chunk(call)
    call = make_call(**BASE, dtype=torch.float32)
    with fails(ValueError, "initial_state_kv: expected dtype f32, given f64"):
        chunk(call, initial_state=call.options["initial_state"].double())
    call = make_call(**BASE)
    call.q = call.q.long()
    with fails(ValueError, "q: expected dtype f64 or f32 or bf16 or f16, given i64"):
        chunk(call)
    call.q = make_call(**BASE).q.to(torch.complex128)
    with fails(ValueError, "q: expected dtype f64 or f32 or bf16 or f16, given ComplexDouble"):
        chunk(call)


def test_head_sizes() -> None:
    with fails(ValueError, "q: K: expected 1 to 256, given 257"):
        chunk(make_call(tokens=1, key_dim=257, value_dim=4))
    with fails(ValueError, "v: V: expected 1 to 256, given 512"):
        chunk(make_call(tokens=1, key_dim=4, value_dim=512))


def test_initial_state() -> None:
    call = make_call(**BASE)
    with fails(ValueError, "initial_state_kv: expected [N=2,HV=4,K=6,V=5], given [2,4,5,6]"):
        chunk(call, initial_state=call.options["initial_state"].mT)
    with fails(
        ValueError, "initial_state: expected [N=2,HV=4,V=5,K=6] (state_v_first), given [2,4,6,5]"
    ):
        chunk(call, state_v_first=True)
    with fails(ValueError, "initial_state_kv: expected [N=2,HV=4,K=6,V=5], given [1,4,6,5]"):
        chunk(call, initial_state=call.options["initial_state"][:1])


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([0, 8], "cu_seqlens[1]: expected the token count T=9, given 8"),
        ([0, 10], "cu_seqlens[1]: expected the token count T=9, given 10"),
        ([1, 9], "cu_seqlens[0]: expected 0, given 1"),
        ([0, 6, 4, 9], "cu_seqlens[2]: expected >= 6 (non-decreasing), given 4"),
        ([], "cu_seqlens: expected at least the leading 0, given [0]"),
        ([[0, 9]], "cu_seqlens: expected [N+1] (rank 1), given [1,2]"),
        ([0.0, 9.0], "cu_seqlens: expected dtype i32 or i64, given f32"),
    ],
)
@pytest.mark.parametrize("function", [kda.chunk_kda, kda.fused_recurrent_kda])
def test_offsets(function, offsets: list, text: str) -> None:
    call = make_call(batch=1, tokens=9, state=False)
    tensor = torch.tensor(offsets) if offsets else torch.zeros(0, dtype=torch.int64)
    with fails(ValueError, text):
        function(*call.tensors(), cu_seqlens=tensor)


def test_packed_needs_one_row() -> None:
    call = make_call(batch=2, tokens=9, state=False)
    offsets = torch.tensor([0, 9])
    with fails(ValueError, "q: packed sequences (cu_seqlens) need B=1, given B=2"):
        chunk(call, cu_seqlens=offsets)
    with fails(ValueError, "cu_seqlens_cpu is a copy of cu_seqlens, which is missing"):
        chunk(call, cu_seqlens_cpu=offsets)
    with fails(ValueError, "cu_seqlens_cpu: expected the shape of cu_seqlens [2], given [3]"):
        chunk(call, cu_seqlens=offsets, cu_seqlens_cpu=torch.tensor([0, 4, 9]))
    call = make_call(lengths=[4, 5])
    with fails(ValueError, "initial_state_kv: expected [N=2,HV=2,K=8,V=8], given [1,2,8,8]"):
        chunk(call, initial_state=call.options["initial_state"][:1])


def test_gate_parameters() -> None:
    call = make_call(**BASE, gate_kind="standard")
    with fails(ValueError, "a_log: required by the standard gate"):
        chunk(call, A_log=None)
    with fails(ValueError, "a_log: expected [HV=4], given [2]"):
        chunk(call, A_log=torch.zeros(2, dtype=torch.float64))
    with fails(ValueError, "dt_bias: expected [HV=4,K=6], given [4]"):
        chunk(call, dt_bias=torch.zeros(4, dtype=torch.float64))
    with fails(ValueError, "lower_bound_ln: expected a finite value < 0, given 0"):
        chunk(call, lower_bound=0.0)
    with fails(ValueError, "safe_gate with use_gate_in_kernel needs lower_bound"):
        chunk(call, safe_gate=True)
    ready = make_call(**BASE)
    for name in ("A_log", "dt_bias"):
        with fails(ValueError, f"{name} is a parameter of the gate, which was not asked for"):
            chunk(ready, **{name: torch.zeros(4)})


def test_flags() -> None:
    call = make_call(**BASE)
    with fails(ValueError, "allow_neg_eigval doubles sigmoid(beta)"):
        chunk(call, allow_neg_eigval=True)
    with fails(ValueError, "chunk: expected 16, 32, 64 or 128, given 48"):
        chunk(call, chunk_size=48)
    with fails(ValueError, "chunk: expected 16, 32, 64 or 128, given 2147483647"):
        chunk(call, chunk_size=2**32 + 64)
    with fails(ValueError, "scale: expected a finite value, given inf"):
        chunk(call, scale=float("inf"))
    with fails(ValueError, "backend: expected auto, ref, cpu or cuda, given 'gpu'"):
        chunk(call, backend="gpu")
    with fails(NotImplementedError, "backend cuda cannot serve this call"):
        chunk(call, backend="cuda")
    with fails(NotImplementedError, "context parallelism"):
        chunk(call, cp_context=object())
    with fails(ValueError, "state_v_first and its deprecated alias transpose_state_layout"):
        chunk(call, state_v_first=True, transpose_state_layout=True)


def test_intermediate_states_need_inference_mode() -> None:
    call = make_call(**BASE)
    with fails(ValueError, "needs torch.inference_mode()"):
        chunk(call, return_intermediate_states=True)
    with torch.inference_mode():
        with fails(ValueError, "needs disable_recompute=False"):
            chunk(call, return_intermediate_states=True, disable_recompute=True)
        with fails(ValueError, "needs chunk_size=64, given 32"):
            chunk(call, return_intermediate_states=True, chunk_size=32)


@pytest.mark.parametrize(
    ("function", "keyword", "hint"),
    [
        (kda.chunk_kda, "use_qk_l2norm", "did you mean 'use_qk_l2norm_in_kernel'?"),
        (kda.chunk_kda, "a_log", "did you mean 'A_log'?"),
        (kda.chunk_kda, "initial_states", "did you mean 'initial_state'?"),
        (kda.chunk_kda, "ssm_state_indices", "it belongs to fused_recurrent_kda_fwd"),
        (kda.chunk_kda, "zzz", ""),
        (kda.fused_recurrent_kda, "num_accepted_tokens", "it belongs to fused_recurrent_kda_fwd"),
        (kda.fused_recurrent_kda, "chunk_size", ""),
        (kda.fused_recurrent_kda_fwd, "ssm_state_index", "did you mean 'ssm_state_indices'?"),
        (kda.explain, "lower", "did you mean 'lower_bound'?"),
    ],
)
def test_unknown_keywords(function, keyword: str, hint: str) -> None:
    call = make_call(**BASE)
    with fails(TypeError, f"unknown keyword '{keyword}'") as caught:
        function(*call.tensors(), **{keyword: None})
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "function", [kda.chunk_kda, kda.fused_recurrent_kda, kda.fused_recurrent_kda_fwd]
)
def test_not_a_tensor(function) -> None:
    call = make_call(**BASE)
    with fails(TypeError, "v: expected a torch.Tensor, given list"):
        function(call.q, call.k, [1.0], call.g, call.beta)


def decode(pool: torch.Tensor | None, **extra):
    call = make_call(batch=2, tokens=2, key_dim=6, value_dim=5, state=False)
    return kda.fused_recurrent_kda_fwd(*call.tensors(), initial_state=pool, **extra)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"ssm_state_indices": [0, 7]}, "pool.slots[1]: expected < S=7, given 7"),
        ({"ssm_state_indices": [3, 3]}, "pool.slots[1]: slot 3 is named twice"),
        ({"ssm_state_indices": [3]}, "pool.slots: expected [N=2], given [1]"),
        ({"ssm_state_indices": [[1], [2]]}, "row 0 has 2 tokens, but only Tmax=1 slots"),
        (
            {"ssm_state_indices": [[1, 2], [3, 4]], "num_accepted_tokens": [3, 1]},
            "pool.num_accepted[0]: expected 0 to 2, given 3",
        ),
        (
            {"ssm_state_indices": [1, 2], "num_accepted_tokens": [1, 1]},
            "pool.num_accepted: needs pool.slots of shape [N,Tmax]",
        ),
        ({"num_accepted_tokens": [1, 1]}, "num_accepted_tokens needs ssm_state_indices"),
        ({}, "initial_state: expected one state for each of N=2 sequences, given [7, 2, 6, 5]"),
    ],
)
def test_pool_arguments(extra: dict, text: str) -> None:
    pool = torch.randn(7, 2, 6, 5, dtype=torch.float64)
    before = pool.clone()
    with fails(ValueError, text):
        decode(pool, **{name: torch.tensor(value) for name, value in extra.items()})
    assert torch.equal(pool, before)


def test_pool_itself() -> None:
    slots = torch.tensor([0, 1])
    with fails(ValueError, "inplace_final_state writes into initial_state, given None"):
        decode(None)
    with fails(ValueError, "ssm_state_indices select rows of initial_state, given None"):
        decode(None, inplace_final_state=False, ssm_state_indices=slots)
    with fails(ValueError, "pool.pool_kv: expected [S=7,HV=2,K=6,V=5], given [7,2,5,6]"):
        decode(torch.zeros(7, 2, 5, 6, dtype=torch.float64), ssm_state_indices=slots)
    with fails(ValueError, "pool: expected [S,HV=2,V=5,K=6] (state_v_first), given [7,2,6,5]"):
        decode(
            torch.zeros(7, 2, 6, 5, dtype=torch.float64),
            ssm_state_indices=slots,
            state_v_first=True,
        )
    with fails(ValueError, "pool.pool_kv: output elements overlap"):
        decode(
            torch.zeros(1, 2, 6, 5, dtype=torch.float64).expand(7, 2, 6, 5),
            ssm_state_indices=slots,
        )
    with fails(
        ValueError, "out: expected [2,2,2,5] Double (the shape of v), given [2,2,2,4] Double"
    ):
        decode(
            torch.zeros(7, 2, 6, 5, dtype=torch.float64),
            ssm_state_indices=slots,
            out=torch.zeros(2, 2, 2, 4, dtype=torch.float64),
        )


@pytest.mark.parametrize("name", ["k", "v", "g", "beta"])
def test_a_meta_tensor_among_real_ones(name: str) -> None:
    call = make_call(**BASE)
    setattr(call, name, getattr(call, name).to("meta"))
    for function in (kda.chunk_kda, kda.fused_recurrent_kda):
        with fails(ValueError, f"{name}: expected on cpu like q, given on meta"):
            function(*call.tensors(), **call.options)
    call = make_call(**BASE)
    with fails(ValueError, "initial_state: expected on cpu like q, given on meta"):
        chunk(call, initial_state=call.options["initial_state"].to("meta"))
    with fails(ValueError, "a_log: expected on cpu like g, given on meta"):
        kda.fused_kda_gate(torch.randn(2, 3, 4), torch.zeros(3, device="meta"))


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("chunk_size", 16.0, "chunk_size: expected an int, given float"),
        ("chunk_size", True, "chunk_size: expected an int, given bool"),
        ("scale", "1", "scale: expected a number or None, given str"),
        ("lower_bound", "x", "lower_bound: expected a number or None, given str"),
        ("backend", None, "backend: expected a str, given NoneType"),
        ("cu_seqlens", [0, 9], "cu_seqlens: expected a torch.Tensor, given list"),
        ("initial_state", 0.0, "initial_state: expected a torch.Tensor, given float"),
    ],
)
def test_types_of_options(option: str, value: object, text: str) -> None:
    with fails(TypeError, f"chunk_kda: {text}"):
        chunk(make_call(**BASE), **{option: value})


def test_host_offsets_that_differ() -> None:
    call = make_call(tokens=9)
    offsets = torch.tensor([0, 4, 9])
    with fails(ValueError, "cu_seqlens_cpu: expected the values of cu_seqlens [0, 4, 9]"):
        chunk(call, cu_seqlens=offsets, cu_seqlens_cpu=torch.tensor([0, 5, 9]))
    with fails(ValueError, "cu_seqlens: expected dtype i32 or i64, given Short"):
        chunk(call, cu_seqlens=offsets.short())


@pytest.mark.parametrize(
    ("slots", "accepted", "text"),
    [
        (torch.zeros(2), None, "ssm_state_indices: expected int32 or int64 [N=2] or [N, Tmax]"),
        (torch.tensor([0, 1, 2]), None, "ssm_state_indices: expected int32 or int64 [N=2]"),
        (torch.tensor([0, 7]), None, "ssm_state_indices: expected slots below S=7, given 7"),
        (
            torch.tensor([[0, 1], [2, 3]]),
            torch.tensor([1, 3]),
            "num_accepted_tokens: expected 0 to Tmax=2, given 3",
        ),
        (
            torch.tensor([[0, 1], [2, 3]]),
            torch.tensor([-1, 1]),
            "num_accepted_tokens: expected 0 to Tmax=2, given -1",
        ),
        (
            torch.tensor([0, 1]),
            torch.tensor([1, 1]),
            "num_accepted_tokens needs ssm_state_indices [N, Tmax], given [2]",
        ),
    ],
)
def test_slots_of_a_pool_that_is_only_read(
    slots: torch.Tensor, accepted: torch.Tensor | None, text: str
) -> None:
    call = make_call(batch=2, tokens=2, heads=2, key_dim=6, value_dim=5)
    with fails(ValueError, text):
        kda.fused_recurrent_kda_fwd(
            *call.tensors(),
            initial_state=torch.zeros(7, 2, 6, 5, dtype=torch.float64),
            ssm_state_indices=slots,
            num_accepted_tokens=accepted,
            inplace_final_state=False,
        )


def test_out_that_overlaps_the_pool() -> None:
    call = make_call(batch=2, tokens=1, heads=2, key_dim=6, value_dim=5)
    pool = torch.zeros(7, 2, 6, 5, dtype=torch.float64)
    with fails(ValueError, "out: expected memory apart from the pool's"):
        kda.fused_recurrent_kda_fwd(
            *call.tensors(),
            initial_state=pool,
            ssm_state_indices=torch.tensor([0, 1]),
            out=pool.view(-1)[:20].view(2, 1, 2, 5),
        )


def test_other_functions() -> None:
    with fails(ValueError, "output_dtype: expected a floating-point dtype, given torch.int32"):
        kda.fused_kda_gate(torch.randn(3, 4), output_dtype=torch.int32)
    with fails(ValueError, "g: expected [..., HV, K], given [4]"):
        kda.fused_kda_gate(torch.randn(4))
    with fails(ValueError, "a_log: expected [HV=3], given [2]"):
        kda.fused_kda_gate(torch.randn(1, 3, 4), torch.zeros(2))
    with fails(ValueError, "chunk: expected >= 1, given 0"):
        kda.kda_gate_chunk_cumsum(torch.randn(1, 2, 3, 4), None, 0)
    with fails(ValueError, "chunk_size: expected >= 1, given 0"):
        call = make_call(tokens=2)
        kda.naive_chunk_kda(*call.tensors(), chunk_size=0)
    with fails(ValueError, "v: expected HV to be a multiple of H=2, given HV=3"):
        call = make_call(tokens=2)
        kda.naive_recurrent_kda(
            call.q, call.k, call.v.repeat(1, 1, 2, 1)[:, :, :3], call.g, call.beta
        )
    with fails(ValueError, "eps: expected a finite value > 0"):
        torch.ops.kda.l2norm_fwd(torch.randn(1, 1, 1, 2), 0.0)
    with fails(ValueError, "count: expected at most 4096, given 5000"):
        kda.set_num_threads(5000)


def test_errors_leave_no_trace_in_autograd() -> None:
    call = make_call(**BASE).recorded()
    with pytest.raises(ValueError, match="chunk: expected"):
        chunk(call, chunk_size=5)
    o, _ = chunk(call)
    o.sum().backward()
    assert call.q.grad.isfinite().all()
