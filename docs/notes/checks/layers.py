"""The layers around the operator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import Random, difference, formula, gradients, worst

EPS = 1e-5


def compare(loss: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Largest difference of (input, gradient by hand) pairs."""
    by_autograd = gradients(loss, *(x for x, _ in pairs))
    return worst({str(i): (pairs[i][1], by_autograd[i]) for i in range(len(pairs))})


@formula("eq:conv-grad")
def _() -> float:
    random = Random(31)
    x, w, dy = random.leaf(9, 3), random.leaf(3, 4), random.normal(9, 3)
    padded = torch.cat([torch.zeros(3, 3, dtype=torch.float64), x])
    c = sum(w[:, j] * padded[j : j + 9] for j in range(4))
    assert isinstance(c, Tensor)
    loss = (F.silu(c) * dy).sum()
    s = torch.sigmoid(c)
    dc = dy * s * (1 + c * (1 - s))
    later = torch.cat([dc, torch.zeros(3, 3, dtype=torch.float64)])
    dx = sum(w[:, j] * later[3 - j : 12 - j] for j in range(4))
    dw = torch.stack([(dc * padded[j : j + 9]).sum(0) for j in range(4)], 1)
    assert isinstance(dx, Tensor)
    return compare(loss, [(x, dx), (w, dw)])


@formula("eq:rms-grad")
def _() -> float:
    random = Random(32)
    x, gamma, dy = random.leaf(5, 6), random.leaf(6), random.normal(5, 6)
    r = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    n = x * r
    u = gamma * dy
    dx = r * (u - n * (u * n).mean(-1, keepdim=True))
    return compare((n * gamma * dy).sum(), [(x, dx), (gamma, (dy * n).sum(0))])


@formula("eq:gated-norm-grad")
def _() -> float:
    random = Random(33)
    x, gamma, z, dy = random.leaf(5, 6), random.leaf(6), random.leaf(5, 6), random.normal(5, 6)
    r = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    n, s = x * r, torch.sigmoid(z)
    u = dy * gamma * s
    return compare(
        (n * gamma * s * dy).sum(),
        [
            (x, r * (u - n * (u * n).mean(-1, keepdim=True))),
            (gamma, (dy * n * s).sum(0)),
            (z, dy * n * gamma * s * (1 - s)),
        ],
    )


# ------------------------------------------------------------------------------ MLA

WIDTHS = {"n": 4, "r": 3, "v": 5, "rho": 6}


class Mla:
    """One head, T tokens: expanded and absorbed, from the same leaves."""

    def __init__(self) -> None:
        random = Random(34)
        T, n, r, v, rho = 7, *WIDTHS.values()
        self.qc, self.qr = random.leaf(T, n), random.leaf(T, r)
        self.c, self.kappa = random.leaf(T, rho), random.leaf(T, r)
        self.wuk, self.wuv = random.leaf(n, rho), random.leaf(v, rho)
        self.do = random.normal(T, v)
        self.scale = (n + r) ** -0.5
        self.mask = torch.ones(T, T, dtype=torch.bool).tril()

    def leaves(self) -> tuple[Tensor, ...]:
        return self.qc, self.qr, self.c, self.kappa, self.wuk, self.wuv

    def softmax(self, z: Tensor) -> Tensor:
        return z.masked_fill(~self.mask, -torch.inf).softmax(-1)

    def expanded(self) -> Tensor:
        k = torch.cat([self.c @ self.wuk.T, self.kappa], 1)
        q = torch.cat([self.qc, self.qr], 1)
        return self.softmax(self.scale * q @ k.T) @ (self.c @ self.wuv.T)

    def absorbed(self) -> Tensor:
        q = torch.cat([self.qc @ self.wuk, self.qr], 1)
        p = self.softmax(self.scale * q @ torch.cat([self.c, self.kappa], 1).T)
        return (p @ self.c) @ self.wuv.T


@formula("eq:mla-absorbed")
def _() -> float:
    m = Mla()
    return difference(m.absorbed(), m.expanded())


@formula("eq:softmax-grad")
def _() -> float:
    random = Random(35)
    q, k, v, do = random.leaf(7, 4), random.leaf(7, 4), random.leaf(7, 5), random.normal(7, 5)
    z = (0.5 * q @ k.T).masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf)
    p = z.softmax(-1)
    o = p @ v
    dz = p * (do @ v.T - (do * o).sum(-1, keepdim=True))
    pairs = [(q, 0.5 * dz @ k), (k, 0.5 * dz.T @ q), (v, p.T @ do)]
    return compare((o * do).sum(), pairs)


@formula("eq:mla-absorbed-grad")
def _() -> float:
    m = Mla()
    qt = m.qc @ m.wuk
    p = m.softmax(m.scale * (qt @ m.c.T + m.qr @ m.kappa.T))
    ot = p @ m.c
    dot = m.do @ m.wuv
    dz = m.scale * p * (dot @ m.c.T - (dot * ot).sum(-1, keepdim=True))
    dqt = dz @ m.c
    by_hand = (
        dqt @ m.wuk.T,
        dz @ m.kappa,
        p.T @ dot + dz.T @ qt,
        dz.T @ m.qr,
        m.qc.T @ dqt,
        m.do.T @ ot,
    )
    return compare((m.expanded() * m.do).sum(), list(zip(m.leaves(), by_hand, strict=True)))


# ------------------------------------------------------------------------------ experts


@formula("eq:situ-grad")
def _() -> float:
    random = Random(36)
    g, u, dh = (random.normal(4, 9) * 6).requires_grad_(), random.leaf(4, 9), random.normal(4, 9)
    b1, b2 = 4.0, 25.0
    s, tg, tu = torch.sigmoid(g), torch.tanh(g / b1), torch.tanh(u / b2)
    h = b1 * tg * s * b2 * tu
    dg = dh * b2 * tu * ((1 - tg**2) * s + b1 * tg * s * (1 - s))
    return compare((h * dh).sum(), [(g, dg), (u, dh * b1 * tg * s * (1 - tu**2))])


@formula("eq:router-grad")
def _() -> float:
    random = Random(37)
    logit, bias, dp = random.leaf(6, 8), random.normal(8), random.normal(6, 3)
    c = 2.5
    s = torch.sigmoid(logit)
    chosen = (s + bias).topk(3, dim=-1).indices
    picked = s.gather(1, chosen)
    Z = picked.sum(-1, keepdim=True) + 1e-20
    p = picked / Z
    ds = c / Z * (dp - (dp * p).sum(-1, keepdim=True))
    dlogit = torch.zeros_like(s).scatter(1, chosen, ds * picked * (1 - picked))
    return compare((c * p * dp).sum(), [(logit, dlogit)])


@formula("eq:latent-scale")
def _() -> float:
    """A common factor of the routing weights leaves the normed sum alone, up to eps."""
    u = Random(38).normal(5, 6) * 100
    norm = [(c * u) * ((c * u).square().mean(-1, keepdim=True)).rsqrt() for c in (1.0, 2.446)]
    return difference(norm[1], norm[0])


@formula("eq:moe-grad")
def _() -> float:
    """Gradient that the weight of one expert gets."""
    random = Random(39)
    z, p, du = random.normal(5), random.leaf(3), random.normal(6)
    experts = random.normal(3, 6, 5)
    outputs = torch.stack([torch.tanh(w @ z) for w in experts])
    return compare(((p.unsqueeze(1) * outputs).sum(0) * du).sum(), [(p, outputs @ du)])


@formula("eq:quantile")
def _() -> float:
    """Strictly above the cut are at most m k / n tokens, at or above it more than that."""
    m, n, k = 96, 8, 2
    s = torch.sigmoid(Random(40).normal(m, n) + torch.linspace(-2, 2, n, dtype=torch.float64))
    alpha = s.topk(k + 1, dim=-1).values[:, k]
    margin = s - alpha.unsqueeze(1)
    q = m * k // n
    cut = margin.sort(0, descending=True).values[q]
    above, at_least = (margin > cut).sum(0), (margin >= cut).sum(0)
    assert (above == q).sum() > n // 2, "most experts have no tie at the cut"
    return 0.0 if bool((above <= q).all() and (at_least > q).all()) else 1.0


# ------------------------------------------------------------------------------ depth


def attn_res(sources: Tensor, gamma: Tensor, w: Tensor) -> Tensor:
    r = (sources.square().mean(-1, keepdim=True) + EPS).rsqrt()
    logit = (sources * r * gamma * w).sum(-1)
    return (logit.softmax(0).unsqueeze(-1) * sources).sum(0)


@formula("eq:attnres-grad")
def _() -> float:
    random = Random(41)
    v, gamma, w, dh = random.leaf(4, 6), random.leaf(6), random.leaf(6), random.normal(6)
    r = (v.square().mean(-1, keepdim=True) + EPS).rsqrt()
    key = v * r
    s = key @ (gamma * w)
    p = s.softmax(0)
    a = v @ dh
    ds = (p * (a - (p * a).sum())).unsqueeze(1)
    dv = p.unsqueeze(1) * dh + ds * r * (gamma * w - key * s.unsqueeze(1) / 6)
    pulled = (ds * key).sum(0)
    return compare(
        (attn_res(v, gamma, w) * dh).sum(), [(v, dv), (gamma, pulled * w), (w, pulled * gamma)]
    )


@formula("eq:attnres-merge")
def _() -> float:
    """Finished sources first, the running one joined by its own largest logit."""
    random = Random(42)
    v, gamma, w = random.normal(5, 6), random.normal(6), random.normal(6)
    r = (v.square().mean(-1, keepdim=True) + EPS).rsqrt()
    s = (v * r) @ (gamma * w)
    m1 = s[:4].max()
    o1 = ((s[:4] - m1).exp().unsqueeze(1) * v[:4]).sum(0)
    l1 = (s[:4] - m1).exp().sum()
    m = torch.maximum(m1, s[4])
    merged = ((m1 - m).exp() * o1 + (s[4] - m).exp() * v[4]) / (
        (m1 - m).exp() * l1 + (s[4] - m).exp()
    )
    return difference(merged, attn_res(v, gamma, w))


@formula("eq:ce-grad")
def _() -> float:
    random = Random(43)
    logits = random.leaf(5, 7)
    target = torch.tensor([0, 3, 6, 2, 2])
    by_hand = (logits.softmax(-1) - F.one_hot(target, 7)) / 5
    return compare(F.cross_entropy(logits, target), [(logits, by_hand)])
