"""Exponent anchors and the triangular inverse."""

from __future__ import annotations

import math

import torch
from kda_model import chunk_terms
from torch import Tensor

from .operator_forward import sample
from .registry import Random, difference, formula


def lower(C: int, seed: int) -> Tensor:
    return Random(seed).normal(C, C).tril(-1) * 0.3


@formula("eq:anchor-off")
def _() -> float:
    """Rows 8..15 against columns 0..7, both factors relative to the row block's first row."""
    x = sample(T=16, seed=21)
    c = chunk_terms(x)
    a = c.G[8]
    rows = x.q[8:] * (c.G[8:] - a).exp()
    columns = x.k[:8] * (a - c.G[:8]).exp()
    assert (c.G[8:] <= a).all() and (a <= c.G[:8]).all()
    return difference(rows @ columns.T, c.n[8:, :8])


@formula("eq:anchor-mid")
def _() -> float:
    x = sample(T=16, seed=22)
    c = chunk_terms(x)
    a = c.G[8]
    product = (x.q * (c.G - a).exp()) @ (x.k * (a - c.G).exp()).T
    return difference(product.tril(), c.n)


@formula("eq:anchor-split")
def _() -> float:
    """Diagonal block in two levels: 16 = 8 + 8, each half anchored at its row 4."""
    x = sample(T=16, seed=23)
    c = chunk_terms(x)
    n = torch.zeros(16, 16, dtype=torch.float64)
    n[8:, :8] = (x.q[8:] * (c.G[8:] - c.G[8]).exp()) @ (x.k[:8] * (c.G[8] - c.G[:8]).exp()).T
    for begin in (0, 8):
        part = slice(begin, begin + 8)
        a = c.G[begin + 4]
        left = x.q[part] * (c.G[part] - a).exp()
        n[part, part] = (left @ (x.k[part] * (a - c.G[part]).exp()).T).tril()
    return difference(n, c.n)


@formula("eq:anchor-chain")
def _() -> float:
    """Three blocks of 8: columns of block 0 meet rows of block 2 through one factor per step."""
    x = sample(T=24, seed=24)
    c = chunk_terms(x)
    A = [c.G[8 * block + 4].round() for block in range(3)]
    left = x.q[16:] * (c.G[16:] - A[2]).exp()
    right = x.k[:8] * (A[0] - c.G[:8]).exp()
    chain = (A[1] - A[0]).exp() * (A[2] - A[1]).exp()
    return difference((left * chain) @ right.T, c.n[16:, :8])


@formula("eq:scale-after")
def _() -> float:
    """k e^-G and one scaling after the product, instead of k e^(G_last - G)."""
    x = sample(T=9, seed=25)
    c = chunk_terms(x)
    U = Random(26).normal(9, 4)
    small = c.last.unsqueeze(1) * x.state + c.kh.T @ U
    return difference(c.last.unsqueeze(1) * (x.state + (x.k * (-c.G).exp()).T @ U), small)


@formula("eq:substitution")
def _() -> float:
    lam = lower(16, 27)
    A = torch.zeros(16, 16, dtype=torch.float64)
    for i in range(16):
        A[i] = -(lam[i, :i].unsqueeze(1) * A[:i]).sum(0)
        A[i, i] = 1
    return difference(A, torch.linalg.inv(torch.eye(16, dtype=torch.float64) + lam))


@formula("eq:inverse-merge")
def _() -> float:
    lam = lower(32, 28)
    eye = torch.eye(16, dtype=torch.float64)
    A11 = torch.linalg.inv(eye + lam[:16, :16])
    A22 = torch.linalg.inv(eye + lam[16:, 16:])
    whole = torch.linalg.inv(torch.eye(32, dtype=torch.float64) + lam)
    return difference(-A22 @ lam[16:, :16] @ A11, whole[16:, :16])


@formula("eq:inverse-blocks")
def _() -> float:
    lam = lower(64, 29)
    whole = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + lam)
    block = [slice(16 * i, 16 * i + 16) for i in range(4)]
    worst = 0.0
    for i in range(4):
        for j in range(i):
            total = sum(lam[block[i], block[m]] @ whole[block[m], block[j]] for m in range(j, i))
            assert isinstance(total, Tensor)
            merged = -whole[block[i], block[i]] @ total
            worst = max(worst, difference(merged, whole[block[i], block[j]]))
    return worst


@formula("eq:inverse-identical")
def _() -> float:
    """Identical unit keys, no decay."""
    worst = 0.0
    for beta in (0.5, 1.0, 1.9):
        ones = torch.ones(24, 24, dtype=torch.float64).tril(-1)
        A = torch.linalg.inv(torch.eye(24, dtype=torch.float64) + beta * ones)
        i, j = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
        power = (1 - beta) ** (i - j - 1).clamp(min=0).double()
        closed = torch.where(i > j, -beta * power, (i == j).double())
        worst = max(worst, difference(A, closed))
    return worst


@formula("eq:inverse-powers")
def _() -> float:
    """Entries of the powers that a series would add up: binomial coefficients."""
    ones = torch.ones(24, 24, dtype=torch.float64).tril(-1)
    power = torch.linalg.matrix_power(ones, 9)
    closed = torch.zeros_like(ones)
    for i in range(24):
        for j in range(i):
            closed[i, j] = math.comb(i - j - 1, 8)
    return difference(power, closed)
