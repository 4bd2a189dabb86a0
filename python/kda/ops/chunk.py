"""``chunk_kda``: the operator over whole sequences, with gradients."""

from __future__ import annotations

from typing import Any

import torch

from kda.ops._arguments import check_tensors, native_options

#: tokens between two kept states, whatever the chunk size
_STATE_BLOCK = 64


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    backend: str = "auto",
    **kwargs: Any,
) -> tuple[torch.Tensor, ...]:
    """Kimi Delta Attention over whole sequences (training, prefill).

    Per sequence and value head, with the state S [K, V] and a = exp(g):
    ``S_t = diag(a_t) S_{t-1} + beta_t k_t (v_t - (diag(a_t) S_{t-1})^T k_t)^T``,
    ``o_t = scale * S_t^T q_t`` (arXiv 2510.26692, equations 1-9).

    Dimensions: B batch, T tokens, H query/key heads, HV value heads (a multiple of H; value head
    hv reads query/key head hv // (HV // H)), K and V head sizes (at most 256), N sequences. Any
    strides.

    Args:
        q, k: [B, T, H, K], float64, float32, bfloat16 or float16; v has the same dtype.
        v: [B, T, HV, V].
        g: [B, T, HV, K], the natural logarithm of the decay, <= 0; with ``use_gate_in_kernel`` the
            gate's pre-activation. float32 or the dtype of q (narrower floats are widened).
        beta: [B, T, HV], the step size in [0, 1] (or [0, 2]); with
            ``use_beta_sigmoid_in_kernel`` its logit. dtype as for g.
        scale: multiplies q once; None means K ** -0.5.
        initial_state: [N, HV, K, V] (see ``state_v_first``), float32, or float64 when q is.
            bfloat16 and float16 are accepted and widened, and their gradient comes back as they
            are; the final state is float32 all the same. None means zero.
        output_final_state: return the states after the last tokens. A sequence without tokens
            returns its initial state.
        use_qk_l2norm_in_kernel: divide q and k by sqrt(sum x^2 + 1e-6) per head first, rounded to
            their dtype.
        use_gate_in_kernel: ``g = -exp(A_log) * softplus(g + dt_bias)``, or with ``lower_bound``
            ``g = lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``; in float32.
        use_beta_sigmoid_in_kernel: ``beta = sigmoid(beta)``, doubled with ``allow_neg_eigval``.
        safe_gate: promise that g >= -5. A hint for speed: every backend is exact without it, and
            none needs it. With ``use_gate_in_kernel`` it requires ``lower_bound``.
        lower_bound: < 0; selects the bounded gate. Not used when g is ready-made.
        disable_recompute: also keep what the backward pass would compute again from the inputs
            (on CUDA about 6 K + 260 bytes per token and value head for 16-bit tensors, nothing on a
            host). No effect on the results, to the bit. The state at every 64th token is kept with
            either value (2 K V / 64 bytes per token and value head, 4 in float32).
        return_intermediate_states: also return the state at the start of every 64-token chunk;
            only inside ``torch.inference_mode()``, with ``chunk_size`` 64 and
            ``disable_recompute`` False.
        state_v_first: states are [N, HV, V, K] instead, in and out. (The deprecated keyword
            ``transpose_state_layout`` means the same.)
        cu_seqlens: [N + 1] int32 or int64, token offsets of packed sequences:
            0 = cu[0] <= ... <= cu[N] = T, with B = 1.
        cu_seqlens_cpu: a copy of cu_seqlens in host memory. Needed by nothing; with it
            ``return_intermediate_states`` on a GPU does not wait for the device.
        cp_context: context parallelism is not supported; must be None.
        use_graph: a hint without effect: every call can be captured into a CUDA graph and
            replayed with new contents of all tensors, ``cu_seqlens`` included. Pad it with empty
            sequences at the end; rows behind its last offset are undefined in the results.
        max_num_seqs: with ``use_graph``, the number N of sequences that cu_seqlens is padded to.
        A_log: HV elements in any shape, float32 (narrower is widened); optional with
            ``lower_bound``. Only with ``use_gate_in_kernel``.
        dt_bias: [HV * K] or [HV, K], float32 (narrower is widened), or None for zero. Only with
            ``use_gate_in_kernel``.
        chunk_size: 16, 32, 64 or 128 tokens. Changes the order of the work, not the result beyond
            rounding.
        backend: "auto", "ref", "cpu" or "cuda"; :func:`kda.explain` says what "auto" chooses.

    Returns:
        ``(o, final_state)``: o [B, T, HV, V] in the dtype of q; final_state float32 (float64 when
        q is), or None when not asked for. With ``return_intermediate_states``
        ``(o, final_state, h)``, h [B, NT, HV, K, V] ([..., V, K] with ``state_v_first``) in the
        dtype of k, where NT = ceil(T / 64), or the sum of that over packed sequences.

    Gradients, once, for q, k, v, g, beta, A_log, dt_bias and initial_state, in their dtypes.

    Raises:
        ValueError: a wrong shape, dtype or value; the text names the argument, what was expected
            and what was given.
        TypeError: an unknown keyword (the text names the nearest), or not a tensor.
        NotImplementedError: the backend cannot serve the call (the text says why), or
            ``cp_context`` was given.
    """
    check_tensors("chunk_kda", q=q, k=k, v=v, g=g, beta=beta)
    if cp_context is not None:
        raise NotImplementedError(
            "chunk_kda: cp_context: context parallelism (one sequence over several devices) is not "
            "supported; expected None"
        )
    options = native_options(
        "chunk_kda",
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        A_log=A_log,
        dt_bias=dt_bias,
        chunk_size=chunk_size,
        backend=backend,
        **kwargs,
    )
    if use_graph and max_num_seqs is not None and cu_seqlens is not None:
        _check_padding(cu_seqlens, max_num_seqs)
    if return_intermediate_states:
        return _with_states(q, k, v, g, beta, options, disable_recompute, cu_seqlens_cpu)
    o, final_state = torch.ops.kda.chunk(
        q, k, v, g, beta, **options, keep_factors=bool(disable_recompute)
    )
    return o, final_state if output_final_state else None


def _check_padding(cu_seqlens: torch.Tensor, max_num_seqs: int) -> None:
    if cu_seqlens.shape[0] != max_num_seqs + 1:
        raise ValueError(
            f"chunk_kda: cu_seqlens: with use_graph expected max_num_seqs + 1 = {max_num_seqs + 1} "
            f"offsets, given {cu_seqlens.shape[0]}"
        )


def _with_states(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    options: dict[str, Any],
    disable_recompute: bool,
    cu_seqlens_cpu: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    if not torch.is_inference_mode_enabled():
        raise ValueError(
            "chunk_kda: return_intermediate_states records no gradient and needs "
            "torch.inference_mode()"
        )
    if disable_recompute:
        raise ValueError("chunk_kda: return_intermediate_states needs disable_recompute=False")
    if options["chunk"] != _STATE_BLOCK:
        raise ValueError(
            f"chunk_kda: return_intermediate_states gives the state at every {_STATE_BLOCK}th "
            f"token and needs chunk_size={_STATE_BLOCK}, given {options['chunk']}"
        )
    o, final_state, h = torch.ops.kda.chunk_states(q, k, v, g, beta, **options)
    cu_seqlens = options["cu_seqlens"] if cu_seqlens_cpu is None else cu_seqlens_cpu
    if cu_seqlens is None:
        h = h.unflatten(0, (q.shape[0], -1)) if q.shape[0] else h.unsqueeze(1)
    else:
        blocks = (cu_seqlens.diff() + (_STATE_BLOCK - 1)).div(_STATE_BLOCK, rounding_mode="floor")
        h = h[: int(blocks.sum())].unsqueeze(0)
    if options["state_v_first"]:
        h = h.transpose(-1, -2)
    return o, final_state if options["output_final_state"] else None, h.to(k.dtype)
