"""The operator's definition as a loop over tokens in float64, and random calls of it.

Written from the formulas alone and sharing no code with the package, so that both can be wrong only
independently.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch

#: largest relative RMS error against float64 that a result in a dtype may have
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.bfloat16: 1.2e-2,
    torch.float16: 1.2e-2,  # the CUDA backend multiplies both in bf16
}
GRADIENT_TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 2.5e-2,
    torch.float16: 2.5e-2,
}


@dataclasses.dataclass
class Call:
    """Arguments of one call, with the public names."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    options: dict[str, Any]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k, self.v, self.g, self.beta

    def differentiable(self) -> dict[str, torch.Tensor]:
        named = {name: getattr(self, name) for name in ("q", "k", "v", "g", "beta")}
        for name in ("A_log", "dt_bias", "initial_state"):
            if self.options.get(name) is not None:
                named[name] = self.options[name]
        return named

    def to(self, device: str) -> Call:
        """The same call with every tensor on a device."""
        moved = {
            n: x.detach().to(device) if isinstance(x, torch.Tensor) else x
            for n, x in self.options.items()
        }
        return Call(*(x.detach().to(device) for x in self.tensors()), moved)

    def recorded(self) -> Call:
        """The same values as leaves that require gradients."""
        leaf = {n: t.detach().clone().requires_grad_() for n, t in self.differentiable().items()}
        options = {**self.options, **{n: t for n, t in leaf.items() if n in self.options}}
        return Call(leaf["q"], leaf["k"], leaf["v"], leaf["g"], leaf["beta"], options)


def definition(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, T, HV, V] and final states [N, HV, K, V], float64, of a call's (rounded) inputs."""
    option = call.options.get
    q, k, v, g, beta = (x.double() for x in call.tensors())
    heads, key_dim = q.shape[2:]
    value_heads = v.shape[2]
    if option("use_qk_l2norm_in_kernel"):
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    if option("use_gate_in_kernel"):
        g = gate(g, option("A_log"), option("dt_bias"), option("lower_bound"))
    if option("use_beta_sigmoid_in_kernel"):
        beta = torch.sigmoid(beta) * (2.0 if option("allow_neg_eigval") else 1.0)
    scale = option("scale")
    q = q * (1.0 / math.sqrt(key_dim) if scale is None else scale)

    offsets = option("cu_seqlens")
    if offsets is None:
        spans = [(row, 0, q.shape[1]) for row in range(q.shape[0])]
    else:
        ends = offsets.tolist()
        spans = [(0, a, b) for a, b in itertools.pairwise(ends)]
    start = option("initial_state")
    if start is not None and option("state_v_first"):
        start = start.transpose(-1, -2)

    outputs: dict[int, list[torch.Tensor]] = {row: [] for row in range(q.shape[0])}
    states = []
    head_of = torch.arange(value_heads, device=q.device) // (value_heads // heads)
    for n, (row, begin, end) in enumerate(spans):
        if start is None:
            state = q.new_zeros(value_heads, key_dim, v.shape[-1])
        else:
            state = start[n].double()
        for t in range(begin, end):
            key, query = k[row, t, head_of], q[row, t, head_of]  # [HV, K]
            state = state * g[row, t].exp().unsqueeze(-1)
            error = v[row, t] - (state * key.unsqueeze(-1)).sum(1)
            step = beta[row, t] if beta.ndim == 4 else beta[row, t].unsqueeze(-1)
            state = state + key.unsqueeze(-1) * (step * error).unsqueeze(1)
            outputs[row].append((state * query.unsqueeze(-1)).sum(1))
        states.append(state)
    o = torch.stack(
        [torch.stack(rows) if rows else v.new_zeros(v.shape[1:]) for rows in outputs.values()]
    )
    final = torch.stack(states) if states else q.new_zeros(0, value_heads, key_dim, v.shape[-1])
    return o, final


def gate(
    x: torch.Tensor,
    a_log: torch.Tensor | None,
    bias: torch.Tensor | None,
    lower_bound: float | None,
) -> torch.Tensor:
    """Natural-log decay [..., HV, K] in float64."""
    x = x.double()
    rate = x.new_ones(x.shape[-2], 1)
    if a_log is not None:
        rate = a_log.double().reshape(-1, 1).exp()
    if bias is not None:
        x = x + bias.double().reshape(x.shape[-2:])
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * x)
    return -rate * torch.logaddexp(x, torch.zeros_like(x))


#: what the comparisons of the running test found: largest difference over the largest value
#: expected (absolute where that is below 1)
differences: list[float] = []


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over the RMS of what is expected; inf for a wrong shape or NaN.

    A difference below what the arithmetic resolves of numbers around one counts as none.
    """
    if actual.shape != expected.shape:
        return math.inf
    if actual.numel() == 0:
        return 0.0
    floor = 1e-12 if actual.dtype == torch.float64 else 1e-6
    actual, expected = actual.detach().double(), expected.detach().double()
    difference = actual - expected
    if not difference.isfinite().all():
        return math.inf
    differences.append(float(difference.abs().max() / expected.abs().max().clamp(min=1.0)))
    rms = difference.square().mean().sqrt()
    return float(rms / (expected.square().mean().sqrt() + 1e-30)) if rms > floor else 0.0


def make_call(
    *,
    seed: int = 0,
    batch: int = 2,
    tokens: int = 70,
    heads: int = 2,
    group: int = 1,
    key_dim: int = 8,
    value_dim: int = 8,
    lengths: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
    gate_dtype: torch.dtype | None = None,
    gate_kind: str = "ready",
    beta_kind: str = "ready",
    l2norm: bool = False,
    state: bool = True,
    v_first: bool = False,
    **options: Any,
) -> Call:
    """A random call. ``lengths`` packs sequences into one row; ``gate_kind`` is one of "ready",
    "standard", "bounded", "bounded_unit"; ``beta_kind`` one of "ready", "logit", "negative"."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if lengths is not None:
        batch, tokens = 1, sum(lengths)
    value_heads = heads * group

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    q, k = normal(batch, tokens, heads, key_dim), normal(batch, tokens, heads, key_dim)
    if not l2norm:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = normal(batch, tokens, value_heads, key_dim)
    if gate_kind == "ready":
        g = torch.nn.functional.logsigmoid(g) * 0.5
    else:
        options["use_gate_in_kernel"] = True
        options["dt_bias"] = (normal(value_heads * key_dim) * 0.5).to(wide)
        if gate_kind != "bounded_unit":
            options["A_log"] = (normal(value_heads) * 0.3).to(wide)
        if gate_kind != "standard":
            options["lower_bound"] = -5.0
    beta = normal(batch, tokens, value_heads)
    if beta_kind == "ready":
        beta = torch.sigmoid(beta)
    else:
        options["use_beta_sigmoid_in_kernel"] = True
        options["allow_neg_eigval"] = beta_kind == "negative"
    if l2norm:
        options["use_qk_l2norm_in_kernel"] = True
    if lengths is not None:
        ends = torch.tensor([0, *lengths]).cumsum(0)
        options["cu_seqlens"] = ends
    sequences = batch if lengths is None else len(lengths)
    if v_first:
        options["state_v_first"] = True
    if state:
        shape = (value_dim, key_dim) if v_first else (key_dim, value_dim)
        options["initial_state"] = normal(sequences, value_heads, *shape).to(wide)
    return Call(
        q.to(dtype),
        k.to(dtype),
        normal(batch, tokens, value_heads, value_dim).to(dtype),
        g.to(gate_dtype or dtype),
        beta.to(gate_dtype or dtype),
        options,
    )
