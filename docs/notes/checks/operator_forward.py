"""Gates, normalisation, the recurrence and its chunk form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from kda_model import Inputs, chunk_forward, chunk_terms, recurrence

from .registry import Random, difference, formula, gradients, worst


def sample(T: int = 37, K: int = 5, V: int = 4, seed: int = 1, beta_max: float = 2.0) -> Inputs:
    random = Random(seed)
    return Inputs(
        random.leaf(T, K),
        F.normalize(random.normal(T, K), dim=-1).requires_grad_(),
        random.leaf(T, V),
        F.logsigmoid(random.normal(T, K)).requires_grad_(),
        (beta_max * torch.sigmoid(random.normal(T))).requires_grad_(),
        random.leaf(K, V),
        K**-0.5,
    )


# ------------------------------------------------------------------------------ gates


@formula("eq:gate-standard-grad")
def _() -> float:
    random = Random(2)
    x, A, b, dg = random.leaf(6, 5), random.leaf(1), random.leaf(5), random.normal(6, 5)
    g = -A.exp() * F.softplus(x + b)
    dx = -dg * A.exp() * torch.sigmoid(x + b)
    by_hand = (dx, (dg * g).sum().reshape(1), dx.sum(0))
    return worst(dict(enumerate(zip(by_hand, gradients((g * dg).sum(), x, A, b), strict=True))))


@formula("eq:gate-safe-grad")
def _() -> float:
    random = Random(3)
    x, A, b, dg = random.leaf(6, 5), random.leaf(1), random.leaf(5), random.normal(6, 5)
    bound = -5.0
    g = bound * torch.sigmoid(A.exp() * (x + b))
    y = torch.sigmoid(A.exp() * (x + b))
    dx = dg * bound * y * (1 - y) * A.exp()
    by_hand = (dx, (dx * (x + b)).sum().reshape(1), dx.sum(0))
    return worst(dict(enumerate(zip(by_hand, gradients((g * dg).sum(), x, A, b), strict=True))))


@formula("eq:dt-bias")
def _() -> float:
    step = torch.logspace(-4, 0, 9, dtype=torch.float64)
    return difference(F.softplus(step + torch.log(-torch.expm1(-step))), step)


@formula("eq:beta-grad")
def _() -> float:
    random = Random(4)
    z, dbeta = random.leaf(9), random.normal(9)
    beta = 2 * torch.sigmoid(z)
    (expected,) = gradients((beta * dbeta).sum(), z)
    return difference(dbeta * beta * (1 - beta / 2), expected)


@formula("eq:l2norm-grad")
def _() -> float:
    random = Random(5)
    x, dy = random.leaf(7, 6), random.normal(7, 6)
    r = (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    y = x * r
    (expected,) = gradients((y * dy).sum(), x)
    return difference(r * (dy - (dy * y).sum(-1, keepdim=True) * y), expected)


# ------------------------------------------------------------------------------ one step


@formula("eq:step-householder")
def _() -> float:
    x = sample(T=1)
    k, beta = x.k[0], x.beta[0]
    _, state = recurrence(x)
    reflected = (torch.eye(5, dtype=torch.float64) - beta * torch.outer(k, k)) @ (
        x.g[0].exp().unsqueeze(1) * x.state
    ) + beta * torch.outer(k, x.v[0])
    return difference(reflected, state)


@formula("eq:step-descent")
def _() -> float:
    x = sample(T=1)
    decayed = (x.g[0].exp().unsqueeze(1) * x.state).detach().requires_grad_()
    (slope,) = gradients(0.5 * (decayed.T @ x.k[0] - x.v[0]).square().sum(), decayed)
    return difference(decayed - x.beta[0] * slope, recurrence(x)[1])


@formula("eq:step-grad")
def _() -> float:
    x = sample(T=1)
    random = Random(6)
    do, dS_next = random.normal(4), random.normal(5, 4)
    o, state = recurrence(x)
    loss = (o[0] * do).sum() + (state * dS_next).sum()
    q, k, v, g, beta = x.q[0], x.k[0], x.v[0], x.g[0], x.beta[0]
    decayed = g.exp().unsqueeze(1) * x.state
    r = v - decayed.T @ k
    dS = dS_next + x.scale * torch.outer(q, do)
    dr = beta * dS.T @ k
    d_decayed = dS - torch.outer(k, dr)
    by_hand = {
        "q": x.scale * state @ do,
        "k": beta * dS @ r - decayed @ dr,
        "v": dr,
        "g": (d_decayed * decayed).sum(1),
        "beta": k @ dS @ r,
        "state": g.exp().unsqueeze(1) * d_decayed,
    }
    expected = gradients(loss, *x.leaves())
    expected = [e[0] if i < 5 else e for i, e in enumerate(expected)]
    return worst(dict(enumerate(zip(by_hand.values(), expected, strict=True))))


# ------------------------------------------------------------------------------ chunks


@formula("eq:unrolled")
def _() -> float:
    x = sample(T=9)
    c = chunk_terms(x)
    state, rows = x.state, []
    for t in range(9):
        decayed = x.g[t].exp().unsqueeze(1) * state
        rows.append(x.beta[t] * (x.v[t] - decayed.T @ x.k[t]))
        state = decayed + torch.outer(x.k[t], rows[-1])
    U = torch.stack(rows)
    i = 6
    unrolled = c.G[i].exp().unsqueeze(1) * x.state + sum(
        torch.outer(x.k[j] * (c.G[i] - c.G[j]).exp(), U[j]) for j in range(i + 1)
    )
    return difference(unrolled, recurrence(x.rows(0, i + 1, x.state))[1])


@formula("eq:chunk-u")
def _() -> float:
    x = sample(T=9)
    c = chunk_terms(x)
    U = c.A @ (x.beta.unsqueeze(1) * (x.v - c.kt @ x.state))
    state, rows = x.state, []
    for t in range(9):
        decayed = x.g[t].exp().unsqueeze(1) * state
        rows.append(x.beta[t] * (x.v[t] - decayed.T @ x.k[t]))
        state = decayed + torch.outer(x.k[t], rows[-1])
    return difference(U, torch.stack(rows))


@formula("eq:chunk-out")
def _() -> float:
    x = sample()
    o, _ = recurrence(x)
    return max(difference(chunk_forward(x, C)[0], o) for C in (1, 5, 8, 16, 64))


@formula("eq:chunk-state")
def _() -> float:
    x = sample()
    _, state = recurrence(x)
    return max(difference(chunk_forward(x, C)[1], state) for C in (1, 5, 8, 16, 64))


@formula("eq:wy")
def _() -> float:
    x = sample(T=9)
    c = chunk_terms(x)
    b = x.beta.unsqueeze(1)
    U = c.A @ (b * (x.v - c.kt @ x.state))
    return difference(c.A @ (b * x.v) - (c.A @ (b * c.kt)) @ x.state, U)


@formula("eq:affine")
def _() -> float:
    x = sample()
    segment_map = torch.eye(5, dtype=torch.float64)
    offset = torch.zeros(5, 4, dtype=torch.float64)
    for begin in range(0, 37, 8):
        part = x.rows(begin, min(begin + 8, 37), x.state)
        c = chunk_terms(part)
        b = part.beta.unsqueeze(1)
        M = torch.diag(c.last) - c.kh.T @ (c.A @ (b * c.kt))
        E = c.kh.T @ (c.A @ (b * part.v))
        segment_map, offset = M @ segment_map, M @ offset + E
    return difference(segment_map @ x.state + offset, recurrence(x)[1])


@formula("eq:affine-compose")
def _() -> float:
    random = Random(7)
    M1, M2, S = random.normal(5, 5), random.normal(5, 5), random.normal(5, 4)
    E1, E2 = random.normal(5, 4), random.normal(5, 4)
    return difference((M2 @ M1) @ S + (M2 @ E1 + E2), M2 @ (M1 @ S + E1) + E2)


@formula("eq:expm1")
def _() -> float:
    x = sample(T=1)
    g, S = x.g[0].unsqueeze(1), x.state
    return difference(S + S * torch.expm1(g), g.exp() * S)
