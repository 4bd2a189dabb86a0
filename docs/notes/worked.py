"""The numbers of the worked example, recomputed: key of a \\val in the text -> value."""

from __future__ import annotations

import math

import torch
from checks.layers import attn_res
from kda_model import Inputs, chunk_terms, local_gradients, recurrence, reverse_step
from torch import Tensor


def tensor(rows: list) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def flat(name: str, values: Tensor) -> dict[str, float]:
    """{"name.i.j": value}; 0-dimensional tensors keep the bare name."""
    if values.ndim == 0:
        return {name: float(values)}
    return {
        key: value
        for i, row in enumerate(values)
        for key, value in flat(f"{name}.{i}", row).items()
    }


def operator_values() -> dict[str, float]:
    x = Inputs(
        tensor([[1, 0], [0.6, 0.8], [0, 1]]),
        tensor([[0.8, 0.6], [1, 0], [0.6, -0.8]]),
        tensor([[1, 2], [-1, 0.5], [0.25, -2]]),
        tensor([[-0.1, -0.2], [-0.5, -0.05], [-1, -0.3]]),
        tensor([0.5, 0.9, 0.25]),
        torch.zeros(2, 2, dtype=torch.float64),
        2**-0.5,
    )
    do, D = tensor([[1, -1], [0.5, 2], [-0.3, 0.7]]), torch.zeros(2, 2, dtype=torch.float64)
    c = chunk_terms(x)
    o, state = recurrence(x)
    dU, X, dS = reverse_step(x, c, do, D)
    part = local_gradients(x, c, do, D)
    values = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "do": do}
    values |= {name: getattr(c, name) for name in ("G", "kt", "qt", "kh", "lam", "n", "A")}
    values |= {"U": c.A @ (x.beta.unsqueeze(1) * x.v), "o": o, "S": state}
    values |= {"dU": dU, "X": X, "dS": dS}
    values |= {
        name: getattr(part, name) for name in ("dn", "p", "dq", "dk", "dv", "dbeta", "dG", "dg")
    }
    return {key: v for name, t in values.items() for key, v in flat(name, t).items()}


def gate_values() -> dict[str, float]:
    def softplus(z: float) -> float:
        return math.log1p(math.exp(z))

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    return {
        "gate.standard.0": -softplus(0.0),
        "gate.standard.1": -2 * softplus(1.0),
        "gate.safe.0": -5 * sigmoid(0.0),
        "gate.safe.1": -5 * sigmoid(2.0),
        "bias.0": 1e-3 + math.log(-math.expm1(-1e-3)),
        "bias.1": 0.1 + math.log(-math.expm1(-0.1)),
    }


def layer_values() -> dict[str, float]:
    gate = tensor([1.0, -1.0, 10.0, 0.5]).requires_grad_()
    up = tensor([2.0, 3.0, -50.0, 0.5]).requires_grad_()
    h = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
    dg, du = torch.autograd.grad(h.sum(), (gate, up))
    sources = tensor([[1, 2], [-3, 0.5], [0.25, -1]])
    gamma, w = tensor([1.5, 0.5]).requires_grad_(), tensor([0.2, -0.4]).requires_grad_()
    mixed = attn_res(sources, gamma, w)
    dgamma, dw = torch.autograd.grad((mixed * tensor([1, -2])).sum(), (gamma, w))
    keys = sources * (sources.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    p = (keys @ (gamma * w)).softmax(0)
    scores = tensor(
        [
            [0.48, 0.62, 0.29, 0.52],
            [0.42, 0.65, 0.35, 0.06],
            [0.71, 0.50, 0.69, 0.46],
            [0.57, 0.34, 0.22, 0.09],
            [0.82, 0.45, 0.24, 0.22],
            [0.77, 0.63, 0.36, 0.52],
            [0.55, 0.37, 0.64, 0.13],
            [0.63, 0.76, 0.30, 0.06],
        ]
    )
    alpha = scores.topk(2, dim=-1).values[:, 1]
    raw = -(scores - alpha.unsqueeze(1)).sort(0, descending=True).values[2]
    bias = raw - raw.mean()

    def loads(b: Tensor) -> Tensor:
        return torch.bincount((scores + b).argmax(-1), minlength=4).double()

    values = {"situ": h, "situ.dg": dg[0], "situ.du": du[0], "mix.p": p, "mix.h": mixed}
    values |= {"mix.dw": dw, "mix.dgamma": dgamma, "qb.alpha": alpha, "qb.raw": raw, "qb.b": bias}
    values |= {"qb.before": loads(torch.zeros(4)), "qb.after": loads(bias), "qb.s": scores}
    return {key: v for name, t in values.items() for key, v in flat(name, t.detach()).items()}


def worked_values() -> dict[str, float]:
    return operator_values() | gate_values() | layer_values()
