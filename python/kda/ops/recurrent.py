"""``fused_recurrent_kda``: the operator token by token, for generation. No gradients."""

from __future__ import annotations

from typing import Any

import torch

from kda.ops._arguments import (
    KEYWORDS,
    check_number,
    check_optional_tensors,
    check_tensors,
    host_values,
    native_options,
    refuse_unknown,
)


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    out_norm_weight: torch.Tensor | None = None,
    out_gate: torch.Tensor | None = None,
    out_norm_eps: float = 1e-5,
    backend: str = "auto",
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The recurrence of :func:`kda.chunk_kda`, one token after the other.

    Arguments, shapes, dtypes and errors as there; beta may also be [B, T, HV, V], a step size per
    value channel. Differentiating the results raises RuntimeError.

    Args:
        out_norm_weight: [V] float32 (narrower is widened; float64 when q is); asks for a gated RMS
            norm of the output before it is rounded, per token and value head:
            ``o = out_norm_weight * o * rsqrt(mean(o^2) + out_norm_eps) * sigmoid(out_gate)``.
        out_gate: [B, T, HV, V], float32 or the dtype of q; None: no gate. With
            ``out_norm_weight`` only.
        out_norm_eps: >= 0.

    Returns:
        ``(o, final_state)``: o [B, T, HV, V] in the dtype of q; final_state [N, HV, K, V] float32
        (float64 when q is), or None when not asked for.
    """
    name = "fused_recurrent_kda"
    check_tensors(name, q=q, k=k, v=v, g=g, beta=beta)
    _refuse_unknown(name, kwargs)
    options = native_options(
        name,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        lower_bound=lower_bound,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        backend=backend,
        **kwargs,
    )
    options.update(_norm_options(name, out_norm_weight, out_gate, out_norm_eps))
    beta = _ready_beta(beta, v, options)
    o, final_state = torch.ops.kda.recurrent(q, k, v, g, beta, **options)
    return o, final_state if output_final_state else None


def fused_recurrent_kda_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: torch.Tensor | None = None,
    *,
    out_norm_weight: torch.Tensor | None = None,
    out_gate: torch.Tensor | None = None,
    out_norm_eps: float = 1e-5,
    backend: str = "auto",
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The recurrence on a pool of states: the decode step of a serving engine.

    ``initial_state`` is the pool, [S, HV, K, V] float32 or bfloat16 (float64 when q is), any
    strides. Slots that no sequence names stay bit-identical.

    Args:
        ssm_state_indices: which slots the sequences use, int32 or int64, any strides; a negative
            slot is skipped (the sequence starts from zero and leaves no state).
            [N]: sequence n starts from slot ``[n]`` and leaves its final state there.
            [N, Tmax]: it starts from slot ``[n, num_accepted_tokens[n] - 1]`` and leaves the state
            after its token t in slot ``[n, t]`` (speculative decoding).
            None: sequence n uses slot n.
        num_accepted_tokens: [N], with 2-D indices only; None means 1, and 0 starts from zero.
        inplace_final_state: write into ``initial_state`` (as above). Otherwise the pool is only
            read, and the states come back with ``output_final_state``: [N, HV, K, V] without
            indices, and with them one per token, [B * T, HV, K, V], float32.
        out: [B, T, HV, V] in the dtype of q; receives the output instead of a new tensor.
        out_norm_weight: [V] float32 (narrower is widened; float64 when q is); asks for a gated RMS
            norm of the output before it is rounded, per token and value head:
            ``o = out_norm_weight * o * rsqrt(mean(o^2) + out_norm_eps) * sigmoid(out_gate)``.
        out_gate: [B, T, HV, V], float32 or the dtype of q; None: no gate. With
            ``out_norm_weight`` only.
        out_norm_eps: >= 0.
        backend: as in :func:`kda.chunk_kda`, where all other arguments are explained too.

    Returns:
        ``(out, state)``: the state is the pool, the new states, or None.

    Raises:
        ValueError, TypeError, NotImplementedError: as :func:`kda.chunk_kda`.
        RuntimeError: an argument requires a gradient and gradients are being recorded, where the
            call would write in place.
    """
    name = "fused_recurrent_kda_fwd"
    check_tensors(name, q=q, k=k, v=v, g=g, beta=beta)
    check_optional_tensors(
        name,
        initial_state=initial_state,
        ssm_state_indices=ssm_state_indices,
        num_accepted_tokens=num_accepted_tokens,
        out=out,
    )
    _refuse_unknown(name, kwargs)
    options = native_options(
        name,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        lower_bound=lower_bound,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        backend=backend,
        **kwargs,
    )
    options.update(_norm_options(name, out_norm_weight, out_gate, out_norm_eps))
    tensors = (q, k, v, g, _ready_beta(beta, v, options))
    if num_accepted_tokens is not None and ssm_state_indices is None:
        raise ValueError(f"{name}: num_accepted_tokens needs ssm_state_indices [N, Tmax]")

    if inplace_final_state:
        if initial_state is None:
            raise ValueError(f"{name}: inplace_final_state writes into initial_state, given None")
        slots = ssm_state_indices
        if slots is None:
            slots = _all_slots(name, initial_state, q, cu_seqlens)
        o = _run_pool(tensors, options, initial_state, slots, num_accepted_tokens, out)
        return o, initial_state

    if ssm_state_indices is None:
        options.update(initial_state=initial_state, output_final_state=output_final_state)
        if out is None:
            out, state = torch.ops.kda.recurrent(*tensors, **options)
        else:
            state = torch.ops.kda.recurrent_out(out, *tensors, **options)
        return out, state if output_final_state else None

    if initial_state is None:
        raise ValueError(f"{name}: ssm_state_indices select rows of initial_state, given None")
    _check_slots(name, initial_state, ssm_state_indices, num_accepted_tokens, q, cu_seqlens)
    start = _start_states(initial_state, ssm_state_indices, num_accepted_tokens)
    if not output_final_state:
        options.update(initial_state=start, output_final_state=False)
        if out is None:
            return torch.ops.kda.recurrent(*tensors, **options)[0], None
        torch.ops.kda.recurrent_out(out, *tensors, **options)
        return out, None
    states, slots = _token_states(start, q, cu_seqlens)
    o = _run_pool(tensors, options, states, slots, None, out)
    return o, states


#: keywords of the ecosystem that have no parameter of their own here
_ALSO = ("safe_gate", "transpose_state_layout")


def _refuse_unknown(function: str, kwargs: dict[str, Any]) -> None:
    unknown = [name for name in kwargs if name not in _ALSO]
    if not unknown:
        return
    known = [name for name in KEYWORDS if name not in ("chunk_size", "cu_seqlens_cpu")]
    known += ["out_gate", "out_norm_eps", "out_norm_weight"]
    if function == "fused_recurrent_kda_fwd":
        known += ["inplace_final_state", "num_accepted_tokens", "out", "ssm_state_indices"]
    refuse_unknown(function, unknown, known)


def _norm_options(
    name: str, weight: torch.Tensor | None, gate: torch.Tensor | None, eps: float
) -> dict[str, Any]:
    check_optional_tensors(name, out_norm_weight=weight, out_gate=gate)
    if eps is None:
        raise TypeError(f"{name}: out_norm_eps: expected a number, given NoneType")
    check_number(name, "out_norm_eps", eps)
    return {"out_norm_weight": weight, "out_gate": gate, "out_norm_eps": eps}


def _ready_beta(beta: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """A step size per value channel is not activated by the operator, so it is done here."""
    if beta.ndim != v.ndim or not options["beta_is_logit"]:
        return beta
    ready = torch.sigmoid(beta.double() if beta.dtype == torch.float64 else beta.float())
    ready = ready * options["beta_max"]
    options.update(beta_is_logit=False, beta_max=1.0)
    return ready


def _all_slots(
    name: str, pool: torch.Tensor, q: torch.Tensor, cu_seqlens: torch.Tensor | None
) -> torch.Tensor:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if pool.shape[0] != sequences:
        raise ValueError(
            f"{name}: initial_state: expected one state for each of N={sequences} sequences, "
            f"given {list(pool.shape)}"
        )
    return torch.arange(sequences, device=q.device)


def _run_pool(
    tensors: tuple[torch.Tensor, ...],
    options: dict[str, Any],
    pool: torch.Tensor,
    slots: torch.Tensor,
    num_accepted: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if out is None:
        return torch.ops.kda.recurrent_pool(pool, slots, num_accepted, *tensors, **options)
    torch.ops.kda.recurrent_pool_out(out, pool, slots, num_accepted, *tensors, **options)
    return out


def _check_slots(
    name: str,
    pool: torch.Tensor,
    indices: torch.Tensor,
    num_accepted: torch.Tensor | None,
    q: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> None:
    """What the operator checks itself where it works in place. Values on the host only: a look at
    those of a device would wait for it."""
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    whole = (torch.int32, torch.int64)
    if indices.ndim not in (1, 2) or indices.shape[0] != sequences or indices.dtype not in whole:
        raise ValueError(
            f"{name}: ssm_state_indices: expected int32 or int64 [N={sequences}] or [N, Tmax], "
            f"given {indices.dtype} {list(indices.shape)}"
        )
    if num_accepted is not None:
        if indices.ndim != 2:
            raise ValueError(
                f"{name}: num_accepted_tokens needs ssm_state_indices [N, Tmax], given "
                f"{list(indices.shape)}"
            )
        if list(num_accepted.shape) != [sequences] or num_accepted.dtype not in whole:
            raise ValueError(
                f"{name}: num_accepted_tokens: expected int32 or int64 [N={sequences}], given "
                f"{num_accepted.dtype} {list(num_accepted.shape)}"
            )
    if indices.numel() and host_values(indices) and int(indices.max()) >= pool.shape[0]:
        raise ValueError(
            f"{name}: ssm_state_indices: expected slots below S={pool.shape[0]}, given "
            f"{int(indices.max())}"
        )
    if num_accepted is not None and num_accepted.numel() and host_values(num_accepted):
        low, high = int(num_accepted.min()), int(num_accepted.max())
        if low < 0 or high > indices.shape[1]:
            raise ValueError(
                f"{name}: num_accepted_tokens: expected 0 to Tmax={indices.shape[1]}, given "
                f"{low if low < 0 else high}"
            )


def _start_states(
    pool: torch.Tensor, indices: torch.Tensor, num_accepted: torch.Tensor | None
) -> torch.Tensor:
    """The states that the sequences start from, [N, ...] float32 (float64): copies."""
    slots = indices if indices.ndim == 1 else indices[:, 0]
    if num_accepted is not None:
        last = (num_accepted - 1).clamp(min=0).long()
        slots = indices.gather(1, last[:, None])[:, 0]
        slots = torch.where(num_accepted > 0, slots, -1)
    wide = pool.dtype if pool.dtype == torch.float64 else torch.float32
    picked = pool[slots.clamp(min=0).long()].to(wide)
    return torch.where((slots >= 0)[:, None, None, None], picked, 0)


def _token_states(
    start: torch.Tensor, q: torch.Tensor, cu_seqlens: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pool with one slot for every token, and the slots of every sequence's tokens.

    Every sequence finds its start state in the slot of its first token, which it overwrites. Made
    without a look at the values, which may be on a device: sequences without tokens put their
    start state into a spare slot behind the pool.
    """
    batch, tokens = q.shape[:2]
    total = batch * tokens
    states = start.new_zeros(total + 1, *start.shape[1:])
    if cu_seqlens is None:
        slots = torch.arange(total, device=q.device).view(batch, tokens)
        first = torch.arange(batch, device=q.device) * tokens
        if not tokens:
            first = torch.full_like(first, total)
    else:
        offsets = cu_seqlens.to(q.device, torch.int64)
        lengths = offsets.diff()
        steps = torch.arange(tokens, device=q.device)
        slots = torch.where(steps < lengths[:, None], offsets[:-1, None] + steps, -1)
        first = torch.where(lengths > 0, offsets[:-1], total)
    states.index_copy_(0, first, start)
    return states[:total], slots
