"""The operator in plain PyTorch: slow, short, differentiable by autograd. For tests and reading.

Arithmetic is float32, or float64 when v is. Formulas: arXiv 2510.26692, equations 1-9.
"""

from __future__ import annotations

import torch


def naive_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The recurrence, token by token.

    Args:
        q, k: [B, T, H, K].
        v: [B, T, HV, V], HV a multiple of H.
        g: [B, T, HV, K], natural-log decay.
        beta: [B, T, HV].
        scale: None means K ** -0.5.
        initial_state: [B, HV, K, V], None means zero.
        output_final_state: return the state [B, HV, K, V] too.

    Returns:
        ``(o, final_state)``: o [B, T, HV, V] in the dtype of v; final_state or None.
    """
    query, key, value, decay, step, state = _prepared(q, k, v, g, beta, scale, initial_state)
    outputs = []
    for t in range(q.shape[1]):
        state = decay[:, t].exp()[..., None] * state
        predicted = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        correction = step[:, t, :, None] * (value[:, t] - predicted)
        state = state + key[:, t, :, :, None] * correction[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    o = torch.stack(outputs, dim=1) if outputs else value
    return o.to(v.dtype), state if output_final_state else None


def naive_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same, one chunk after the other, with pairwise decays: exact for every gate.

    Arguments and results as :func:`naive_recurrent_kda`; ``chunk_size`` >= 1 need not divide T.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size: expected >= 1, given {chunk_size}")
    query, key, value, decay, step, state = _prepared(q, k, v, g, beta, scale, initial_state)
    outputs = []
    for begin in range(0, q.shape[1], chunk_size):
        # [B, HV, L, ...]: one chunk, heads before tokens
        rows = [
            x[:, begin : begin + chunk_size].transpose(1, 2)
            for x in (query, key, value, decay, step)
        ]
        o, state = _chunk(*rows, state=state)
        outputs.append(o.transpose(1, 2))
    o = torch.cat(outputs, dim=1) if outputs else value
    return o.to(v.dtype), state if output_final_state else None


def _prepared(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Everything in one dtype and per value head; q scaled; a state to start from."""
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    batch, _, heads, key_dim = q.shape
    value_heads, value_dim = v.shape[2:]
    if value_heads % heads:
        raise ValueError(f"v: expected HV to be a multiple of H={heads}, given HV={value_heads}")
    group = value_heads // heads
    query = q.to(wide).repeat_interleave(group, dim=2) * (key_dim**-0.5 if scale is None else scale)
    key = k.to(wide).repeat_interleave(group, dim=2)
    if initial_state is None:
        state = query.new_zeros(batch, value_heads, key_dim, value_dim)
    else:
        state = initial_state.to(wide)
    return query, key, v.to(wide), g.to(wide), beta.to(wide), state


def _chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    step: torch.Tensor,
    *,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk of L tokens: output [B, HV, L, V] and the state behind it."""
    length = key.shape[2]
    sums = decay.cumsum(dim=2)
    ones = torch.ones(length, length, dtype=torch.bool, device=key.device)
    causal = ones.tril()
    # Decay from token j to token i of every channel; masked before exp, which may overflow.
    pair = (
        (sums[:, :, :, None] - sums[:, :, None])
        .masked_fill(~causal[:, :, None], float("-inf"))
        .exp()
    )
    key_key = torch.einsum("bhik,bhjk,bhijk->bhij", key, key, pair)
    query_key = torch.einsum("bhik,bhjk,bhijk->bhij", query, key, pair)
    lower = (step[..., None] * key_key).masked_fill(~ones.tril(-1), 0.0)
    eye = torch.eye(length, dtype=key.dtype, device=key.device)
    # Row i: u_i = beta_i (v_i - what the state before token i predicts), given the rows above it.
    predicted = (key * sums.exp()) @ state
    update = torch.linalg.solve_triangular(
        lower + eye,
        step[..., None] * (value - predicted),
        upper=False,
        unitriangular=True,
    )
    output = (query * sums.exp()) @ state + query_key @ update
    last = sums[:, :, -1:]
    carried = key * (last - sums).exp()
    state = last.transpose(-1, -2).exp() * state + carried.transpose(-1, -2) @ update
    return output, state
