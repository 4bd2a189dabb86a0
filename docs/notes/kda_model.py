"""The operator of one head in torch, written from the formulas of the notes: slow, any dtype.

Shapes: q, k, g [T,K]; v [T,V]; beta [T]; states [K,V]. g is the natural logarithm of the decay.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass
class Inputs:
    """Arguments of one head."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor
    scale: float

    def rows(self, begin: int, end: int, state: Tensor) -> Inputs:
        part = slice(begin, end)
        return Inputs(
            self.q[part],
            self.k[part],
            self.v[part],
            self.g[part],
            self.beta[part],
            state,
            self.scale,
        )

    def leaves(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.g, self.beta, self.state


def recurrence(x: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs [T,V] and final state [K,V], token by token: the definition."""
    state = x.state
    rows = []
    for t in range(x.q.shape[0]):
        state = state * x.g[t].exp().unsqueeze(1)
        error = x.v[t] - state.T @ x.k[t]
        state = state + x.beta[t] * torch.outer(x.k[t], error)
        rows.append(x.scale * (state.T @ x.q[t]))
    return torch.stack(rows), state


@dataclasses.dataclass
class Chunk:
    """What the chunk form computes from the rows of one chunk; C rows."""

    G: Tensor  # [C,K] inclusive sums of g
    kt: Tensor  # [C,K] k e^G
    qt: Tensor  # [C,K] q e^G
    kh: Tensor  # [C,K] k e^(G_last - G)
    last: Tensor  # [K] e^G_last
    decay: Tensor  # [C,C,K] e^(G_i - G_j) for j <= i, else 0
    kk: Tensor  # [C,C] strictly lower: sum_d k_id k_jd e^(G_i - G_j)
    lam: Tensor  # [C,C] diag(beta) kk
    n: Tensor  # [C,C] lower: sum_d q_id k_jd e^(G_i - G_j)
    A: Tensor  # [C,C] (I + lam)^-1


def chunk_terms(x: Inputs) -> Chunk:
    rows = x.q.shape[0]
    G = x.g.cumsum(0)
    lower = torch.ones(rows, rows, dtype=torch.bool).tril()
    gap = G.unsqueeze(1) - G.unsqueeze(0)
    # Masked before the exponential: above the diagonal it would overflow.
    decay = gap.masked_fill(~lower.unsqueeze(-1), -torch.inf).exp()
    kk = torch.einsum("id,jd,ijd->ij", x.k, x.k, decay).tril(-1)
    n = torch.einsum("id,jd,ijd->ij", x.q, x.k, decay)
    lam = x.beta.unsqueeze(1) * kk
    eye = torch.eye(rows, dtype=x.q.dtype)
    A = torch.linalg.solve_triangular(eye + lam, eye, upper=False, unitriangular=True)
    return Chunk(
        G, x.k * G.exp(), x.q * G.exp(), x.k * (G[-1] - G).exp(), G[-1].exp(), decay, kk, lam, n, A
    )


def chunk_forward(x: Inputs, C: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, final state and the states at the starts of the chunks."""
    state, rows, starts = x.state, [], []
    for begin in range(0, x.q.shape[0], C):
        part = x.rows(begin, min(begin + C, x.q.shape[0]), state)
        c = chunk_terms(part)
        starts.append(state)
        U = c.A @ (part.beta.unsqueeze(1) * (part.v - c.kt @ state))
        rows.append(x.scale * (c.qt @ state + c.n @ U))
        state = c.last.unsqueeze(1) * state + c.kh.T @ U
    return torch.cat(rows), state, starts


def reverse_step(x: Inputs, c: Chunk, do: Tensor, D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dU, X = A^T dU and the gradient of the chunk's start state, from that of its end."""
    dU = x.scale * c.n.T @ do + c.kh @ D
    X = c.A.T @ dU
    dS = c.last.unsqueeze(1) * D + x.scale * c.qt.T @ do - c.kt.T @ (x.beta.unsqueeze(1) * X)
    return dU, X, dS


@dataclasses.dataclass
class Local:
    """Gradients of one chunk, and what they are made of."""

    dn: Tensor
    p: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbeta: Tensor
    dG: Tensor
    dg: Tensor


def local_gradients(x: Inputs, c: Chunk, do: Tensor, D: Tensor) -> Local:
    """Chunk-local part of the backward; x.state is the state at the chunk's start."""
    S, b = x.state, x.beta.unsqueeze(1)
    Z = x.v - c.kt @ S
    U = c.A @ (b * Z)
    _, X, _ = reverse_step(x, c, do, D)
    dn = x.scale * (do @ U.T).tril()
    p = -(X @ U.T).tril(-1)
    row_q = torch.einsum("ij,jd,ijd->id", dn, x.k, c.decay)
    row_k = torch.einsum("ij,jd,ijd->id", p, x.k, c.decay)
    column = torch.einsum("ij,id,ijd->jd", dn, x.q, c.decay) + torch.einsum(
        "ij,id,ijd->jd", p, b * x.k, c.decay
    )
    dq = x.scale * c.G.exp() * (do @ S.T) + row_q
    plus = b * (row_k - c.G.exp() * (X @ S.T))
    end = (c.G[-1] - c.G).exp() * (U @ D.T)
    minus = end + column
    dG = x.q * dq + x.k * plus - x.k * minus
    dG = torch.cat([dG[:-1], dG[-1:] + (c.last * (S * D).sum(1) + (x.k * end).sum(0)).unsqueeze(0)])
    return Local(
        dn,
        p,
        dq,
        plus + minus,
        b * X,
        (X * Z).sum(1) + (row_k * x.k).sum(1),
        dG,
        dG.flip(0).cumsum(0).flip(0),
    )


def chunk_backward(x: Inputs, C: int, do: Tensor, d_final: Tensor) -> dict[str, Tensor]:
    """All six gradients by the reverse scan and the chunk-local part."""
    _, _, starts = chunk_forward(x, C)
    D = d_final
    parts: list[Local] = []
    for index in reversed(range(len(starts))):
        begin, end = index * C, min((index + 1) * C, x.q.shape[0])
        part = x.rows(begin, end, starts[index])
        c = chunk_terms(part)
        parts.append(local_gradients(part, c, do[begin:end], D))
        _, _, D = reverse_step(part, c, do[begin:end], D)
    joined = {
        name: torch.cat([getattr(part, name) for part in reversed(parts)])
        for name in ("dq", "dk", "dv", "dg", "dbeta")
    }
    return {**joined, "dS0": D}
