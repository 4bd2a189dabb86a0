"""The decay gate alone, and its prefix sum inside chunks."""

from __future__ import annotations

import math
from typing import Any

import torch

from kda.ops._arguments import (
    check_float_dtype,
    check_number,
    check_optional_tensors,
    check_tensors,
    check_whole,
    refuse_unknown,
)

_LN2 = math.log(2.0)


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Natural-log decay from pre-activations, with gradients for g, A_log and dt_bias.

    ``-exp(A_log) * softplus(g + dt_bias)``, or with ``lower_bound``
    ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``; computed in float32 (float64 when g is).

    Args:
        g: [..., HV, K], any float dtype.
        A_log: HV elements in any shape; None means exp(A_log) = 1.
        dt_bias: [HV * K] or [HV, K]; None means zero.
        lower_bound: < 0, or None.
        output_dtype: dtype of the result.

    Returns:
        [..., HV, K].

    Raises:
        ValueError: a wrong shape, dtype or value.
    """
    check_tensors("fused_kda_gate", g=g)
    check_optional_tensors("fused_kda_gate", A_log=A_log, dt_bias=dt_bias)
    check_number("fused_kda_gate", "lower_bound", lower_bound)
    check_float_dtype("fused_kda_gate", "output_dtype", output_dtype)
    if A_log is None and lower_bound is None:
        A_log = _unit_scale(g)
    decay = torch.ops.kda.gate(g, A_log, dt_bias, lower_bound=lower_bound)
    return decay.to(output_dtype)


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    chunk_size: int,
    scale: float | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.float32,
    chunk_indices: torch.Tensor | None = None,
    lower_bound: float | None = None,
    use_graph: bool = False,
    **kwargs: Any,
) -> torch.Tensor:
    """The gate followed by an inclusive prefix sum that restarts at every chunk and sequence.

    Args:
        g: [B, T, HV, K] pre-activations, any float dtype; B = 1 with ``cu_seqlens``.
        A_log, dt_bias, lower_bound: as in :func:`fused_kda_gate`.
        chunk_size: tokens per chunk, at least 1.
        scale: multiplies the sums: None or 1 for natural logarithms, 1 / ln 2 for base 2.
        cu_seqlens: [N + 1] int32 or int64 token offsets of packed sequences.
        output_dtype: dtype of the result; None means the dtype of g.
        chunk_indices, use_graph: accepted and not needed.

    Returns:
        [B, T, HV, K]. Differentiating it raises RuntimeError.

    Raises:
        ValueError: a wrong shape, dtype or value. TypeError: an unknown keyword.
    """
    del chunk_indices, use_graph
    check_tensors("kda_gate_chunk_cumsum", g=g)
    check_optional_tensors(
        "kda_gate_chunk_cumsum", A_log=A_log, dt_bias=dt_bias, cu_seqlens=cu_seqlens
    )
    check_whole("kda_gate_chunk_cumsum", "chunk_size", chunk_size)
    check_number("kda_gate_chunk_cumsum", "scale", scale)
    check_number("kda_gate_chunk_cumsum", "lower_bound", lower_bound)
    if output_dtype is not None:
        check_float_dtype("kda_gate_chunk_cumsum", "output_dtype", output_dtype)
    refuse_unknown("kda_gate_chunk_cumsum", kwargs, _CUMSUM_KEYWORDS)
    if A_log is None and lower_bound is None:
        A_log = _unit_scale(g)
    wide = torch.float64 if g.dtype == torch.float64 else torch.float32
    log2 = torch.ops.kda.gate_cumsum(
        g,
        None if A_log is None else A_log.reshape(-1).to(wide),
        _bias_matrix(dt_bias, g, wide),
        cu_seqlens,
        raw_gate=True,
        lower_bound=lower_bound,
        chunk=chunk_size,
    )
    factor = _LN2 * (1.0 if scale is None else scale)
    if not math.isclose(factor, 1.0, rel_tol=1e-7):
        log2 = log2 * factor
    return log2.to(g.dtype if output_dtype is None else output_dtype)


_CUMSUM_KEYWORDS = (
    "g",
    "A_log",
    "chunk_size",
    "scale",
    "dt_bias",
    "cu_seqlens",
    "output_dtype",
    "chunk_indices",
    "lower_bound",
    "use_graph",
)


def _unit_scale(g: torch.Tensor) -> torch.Tensor:
    if g.ndim < 2:
        raise ValueError(f"g: expected [..., HV, K], given {list(g.shape)}")
    wide = torch.float64 if g.dtype == torch.float64 else torch.float32
    return torch.zeros(g.shape[-2], dtype=wide, device=g.device)


def _bias_matrix(
    dt_bias: torch.Tensor | None, g: torch.Tensor, wide: torch.dtype
) -> torch.Tensor | None:
    if dt_bias is None:
        return None
    if dt_bias.ndim != 2 and g.ndim == 4 and dt_bias.numel() == g.shape[-2] * g.shape[-1]:
        dt_bias = dt_bias.reshape(g.shape[-2:])
    return dt_bias.to(wide)
