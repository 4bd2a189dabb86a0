"""The backward of the chunk form, each piece against automatic differentiation."""

from __future__ import annotations

import torch
from kda_model import (
    Inputs,
    chunk_backward,
    chunk_terms,
    local_gradients,
    recurrence,
    reverse_step,
)
from torch import Tensor

from .operator_forward import sample
from .registry import Random, difference, formula, gradients, worst


def one_chunk() -> tuple[Inputs, Tensor, Tensor, Tensor]:
    """A chunk, d o, D (the gradient of its end state) and the loss that has both."""
    x = sample(T=9, seed=11)
    random = Random(12)
    do, D = random.normal(9, 4), random.normal(5, 4)
    o, state = recurrence(x)
    return x, do, D, (o * do).sum() + (state * D).sum()


def expected() -> dict[str, Tensor]:
    x, _, _, loss = one_chunk()
    names = ("dq", "dk", "dv", "dg", "dbeta", "dS")
    return dict(zip(names, gradients(loss, *x.leaves()), strict=True))


def parts() -> tuple[Inputs, dict[str, Tensor], Tensor]:
    """The chunk form with its intermediate matrices as leaves, and the loss."""
    x, do, D, _ = one_chunk()
    c = chunk_terms(x)
    m = {
        name: getattr(c, name).detach().requires_grad_() for name in ("lam", "n", "kt", "qt", "kh")
    }
    R = (x.beta.unsqueeze(1) * (x.v - m["kt"] @ x.state)).detach().requires_grad_()
    eye = torch.eye(9, dtype=torch.float64)
    U = torch.linalg.solve_triangular(eye + m["lam"], R, upper=False)
    o = x.scale * (m["qt"] @ x.state + m["n"] @ U)
    state = c.last.unsqueeze(1) * x.state + m["kh"].T @ U
    return x, {**m, "R": R, "U": U}, (o * do).sum() + (state * D).sum()


@formula("eq:scan-du")
def _() -> float:
    x, do, D, _ = one_chunk()
    _, m, loss = parts()
    dU, _, _ = reverse_step(x, chunk_terms(x), do, D)
    return difference(dU, gradients(loss, m["U"])[0])


@formula("eq:scan-x")
def _() -> float:
    x, do, D, _ = one_chunk()
    _, m, loss = parts()
    _, X, _ = reverse_step(x, chunk_terms(x), do, D)
    return difference(X, gradients(loss, m["R"])[0])


@formula("eq:scan-ds")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(reverse_step(x, chunk_terms(x), do, D)[2], expected()["dS"])


@formula("eq:bwd-dn")
def _() -> float:
    x, do, D, _ = one_chunk()
    _, m, loss = parts()
    return difference(
        local_gradients(x, chunk_terms(x), do, D).dn, gradients(loss, m["n"])[0].tril()
    )


@formula("eq:bwd-dlam")
def _() -> float:
    x, do, D, _ = one_chunk()
    _, m, loss = parts()
    return difference(
        local_gradients(x, chunk_terms(x), do, D).p, gradients(loss, m["lam"])[0].tril(-1)
    )


@formula("eq:bwd-collapse")
def _() -> float:
    """The long way through d A gives the same matrix."""
    x, do, D, _ = one_chunk()
    c = chunk_terms(x)
    dU, X, _ = reverse_step(x, c, do, D)
    R = x.beta.unsqueeze(1) * (x.v - c.kt @ x.state)
    dA = dU @ R.T
    return difference(-(c.A.T @ dA @ c.A.T).tril(-1), -(X @ (c.A @ R).T).tril(-1))


@formula("eq:bwd-factors")
def _() -> float:
    x, do, D, _ = one_chunk()
    _, m, loss = parts()
    c = chunk_terms(x)
    _, X, _ = reverse_step(x, c, do, D)
    kt = c.kt.detach().requires_grad_()  # R depends on kt, which parts() cuts off
    R = x.beta.unsqueeze(1) * (x.v - kt @ x.state)
    return worst(
        {
            "qt": (x.scale * do @ x.state.T, gradients(loss, m["qt"])[0]),
            "kh": (m["U"] @ D.T, gradients(loss, m["kh"])[0]),
            "kt": (-x.beta.unsqueeze(1) * (X @ x.state.T), gradients((R * X).sum(), kt)[0]),
        }
    )


@formula("eq:bwd-dv")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(local_gradients(x, chunk_terms(x), do, D).dv, expected()["dv"])


@formula("eq:bwd-dbeta")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(local_gradients(x, chunk_terms(x), do, D).dbeta, expected()["dbeta"])


@formula("eq:bwd-dq")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(local_gradients(x, chunk_terms(x), do, D).dq, expected()["dq"])


@formula("eq:bwd-dk")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(local_gradients(x, chunk_terms(x), do, D).dk, expected()["dk"])


@formula("eq:bwd-dgcum")
def _() -> float:
    """d G with G itself as the leaf."""
    x, do, D, _ = one_chunk()
    G = x.g.cumsum(0).detach().requires_grad_()
    g = torch.cat([G[:1], G[1:] - G[:-1]])
    o, state = recurrence(Inputs(x.q, x.k, x.v, g, x.beta, x.state, x.scale))
    (by_autograd,) = gradients((o * do).sum() + (state * D).sum(), G)
    return difference(local_gradients(x, chunk_terms(x), do, D).dG, by_autograd)


@formula("eq:bwd-dg")
def _() -> float:
    x, do, D, _ = one_chunk()
    return difference(local_gradients(x, chunk_terms(x), do, D).dg, expected()["dg"])


@formula("eq:bwd-dg-pairs")
def _() -> float:
    """Token l collects every pair whose decay spans it; nothing is subtracted."""
    x, do, D, _ = one_chunk()
    c = chunk_terms(x)
    part = local_gradients(x, c, do, D)
    _, X, _ = reverse_step(x, c, do, D)
    U = c.A @ (x.beta.unsqueeze(1) * (x.v - c.kt @ x.state))
    left = part.dn.unsqueeze(-1) * x.q.unsqueeze(1) + part.p.unsqueeze(-1) * (
        x.beta.unsqueeze(1) * x.k
    ).unsqueeze(1)
    pairs = left * x.k.unsqueeze(0) * c.decay  # [i,j,K]
    reads = x.scale * c.qt * (do @ x.state.T) - x.beta.unsqueeze(1) * c.kt * (X @ x.state.T)
    writes = c.kh * (U @ D.T)
    through = c.last * (x.state * D).sum(1)
    dg = torch.stack(
        [
            pairs[t:, :t].sum((0, 1)) + reads[t:].sum(0) + writes[:t].sum(0) + through
            for t in range(9)
        ]
    )
    return difference(dg, expected()["dg"])


@formula("eq:bwd-whole")
def _() -> float:
    """Both parts together, several chunks, the last one ragged."""
    x = sample()
    random = Random(13)
    do, d_final = random.normal(37, 4), random.normal(5, 4)
    o, state = recurrence(x)
    by_autograd = gradients((o * do).sum() + (state * d_final).sum(), *x.leaves())
    worst_of_all = 0.0
    for C in (1, 5, 8, 64):
        given = chunk_backward(x, C, do, d_final)
        names = ("dq", "dk", "dv", "dg", "dbeta", "dS0")
        pairs = {n: (given[n], e) for n, e in zip(names, by_autograd, strict=True)}
        worst_of_all = max(worst_of_all, worst(pairs))
    return worst_of_all


@formula("eq:gva-fold")
def _() -> float:
    """Two value heads that share one query and key head."""
    x = sample(T=6, seed=14)
    other = sample(T=6, seed=15)
    second = Inputs(x.q, x.k, other.v, other.g, other.beta, other.state, x.scale)
    do = Random(16).normal(2, 6, 4)
    zero = torch.zeros(5, 4, dtype=torch.float64)
    loss = sum((recurrence(y)[0] * do[i]).sum() for i, y in enumerate((x, second)))
    assert isinstance(loss, Tensor)
    folded = [chunk_backward(y, 4, do[i], zero) for i, y in enumerate((x, second))]
    dq, dk = gradients(loss, x.q, x.k)
    return worst(
        {
            "q": (folded[0]["dq"] + folded[1]["dq"], dq),
            "k": (folded[0]["dk"] + folded[1]["dk"], dk),
        }
    )


@formula("eq:affine-reverse")
def _() -> float:
    x, do, D, _ = one_chunk()
    c = chunk_terms(x)
    M = torch.diag(c.last) - c.kh.T @ (c.A @ (x.beta.unsqueeze(1) * c.kt))
    _, _, from_zero = reverse_step(x, c, do, torch.zeros_like(D))
    return difference(M.T @ D + from_zero, expected()["dS"])
