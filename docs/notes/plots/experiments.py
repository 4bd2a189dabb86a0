#!/usr/bin/env python3
"""Measures the errors that the notes plot and writes them to ../data/*.csv.

    .venv/bin/python docs/notes/plots/experiments.py [NAME ...]

All but `operator` run a small model of the chunk form in float32 with chosen factors and roundings;
`operator` calls the package itself (make build). The reference is always the token recurrence in
float64 on the same rounded inputs. An error that is not finite is written as nan.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

NOTES = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(NOTES))
sys.path.insert(0, str(NOTES.parents[1] / "python"))

from kda_model import Inputs, chunk_terms, local_gradients, recurrence, reverse_step  # noqa: E402

Rows = list[dict[str, float]]
Rounding = Callable[[Tensor], Tensor]

DECAYS = [2.0**e for e in range(-7, 6)]  # nat per token
#: a decay beyond this is below the resolution of a float32 state
CLAMP = -20.0


def exact(x: Tensor) -> Tensor:
    return x


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def fp16(x: Tensor) -> Tensor:
    return x.half().to(x.dtype)


def relative(given: Tensor, expected: Tensor) -> float:
    """RMS of the difference over the RMS of what is expected."""
    given, expected = given.detach().double(), expected.detach().double()
    error = (given - expected).square().mean().sqrt()
    value = float(error / expected.square().mean().sqrt())
    return value if math.isfinite(value) else math.nan


def make(T: int, K: int, decay: float, *, seed: int, noise: float = math.inf) -> Inputs:
    """float64 inputs that bf16 holds exactly; noise is that of keys around one direction."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    k = normal(T, K)
    if math.isfinite(noise):
        k = normal(1, K) + noise * k
    spread = 0.5 + torch.rand(T, K, generator=random, dtype=torch.float64)
    return Inputs(
        bf16(F.normalize(normal(T, K), dim=-1)),
        bf16(F.normalize(k, dim=-1)),
        bf16(normal(T, K)),
        (-decay * spread).float().double(),
        torch.sigmoid(normal(T)).float().double(),
        normal(K, K).float().double(),
        K**-0.5,
    )


def narrow(x: Inputs) -> Inputs:
    return Inputs(*(t.float() for t in x.leaves()), x.scale)


# ------------------------------------------------------------------------------ factored products


def product(left: Tensor, right: Tensor, G: Tensor, frames: str, cast: Rounding) -> Tensor:
    """sum_d left_id right_jd e^(G_i - G_j) for i >= j by factors relative to a frame."""
    rows = len(G)

    def block(i: slice, j: slice, frame: Tensor) -> Tensor:
        return cast(left[i] * (G[i] - frame).exp()) @ cast(right[j] * (frame - G[j]).exp()).T

    out = torch.zeros(rows, rows, dtype=G.dtype)
    if frames == "start":
        out = block(slice(None), slice(None), torch.zeros_like(G[0]))
    else:
        for begin in range(0, rows, 16):
            i = slice(begin, min(begin + 16, rows))
            if begin > 0:
                out[i, :begin] = block(i, slice(0, begin), G[begin])
            if frames == "middle":
                out[i, i] = block(i, i, G[min(begin + 8, rows - 1)])
                continue
            half = slice(begin + 8, i.stop)
            if half.start < rows:
                out[half, begin : begin + 8] = block(half, slice(begin, begin + 8), G[begin + 8])
            for start in (begin, begin + 8):
                part = slice(start, min(start + 8, rows))
                if start < rows:
                    out[part, part] = block(part, part, G[min(start + 4, rows - 1)])
    # Selected, not multiplied: what lies above the diagonal may be infinite.
    return torch.where(torch.ones(rows, rows, dtype=torch.bool).tril(), out, torch.zeros(()))


def forward(
    x: Inputs, C: int, frames: str, cast: dict[str, Rounding] | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs and final state in float32; `cast` rounds operands: factors, A, N, U, S."""
    rounding = cast or {}

    def rounded(name: str, t: Tensor) -> Tensor:
        return rounding.get(name, exact)(t)

    x, rows, state = narrow(x), [], x.state.float()
    for begin in range(0, x.q.shape[0], C):
        part = x.rows(begin, min(begin + C, x.q.shape[0]), state)
        G = part.g.cumsum(0)
        inner = part.g.clamp(min=CLAMP).cumsum(0) if frames == "split" else G
        factor = rounding.get("factors", exact)
        n = product(part.q, part.k, inner, frames, factor)
        lam = part.beta.unsqueeze(1) * product(part.k, part.k, inner, frames, factor).tril(-1)
        eye = torch.eye(len(G))
        A = torch.linalg.solve_triangular(eye + lam, eye, upper=False, unitriangular=True)
        kt, qt = factor(part.k * G.exp()), factor(part.q * G.exp())
        kh = factor(part.k * (G[-1] - G).exp())
        S = rounded("S", state)
        U = rounded("A", A) @ rounded("U", part.beta.unsqueeze(1) * (part.v - kt @ S))
        U = rounded("U", U)
        rows.append(x.scale * (qt @ S + rounded("N", n) @ U))
        state = G[-1].exp().unsqueeze(1) * state + kh.T @ U
    return torch.cat(rows), state


# ------------------------------------------------------------------------------ experiments


def frames() -> Rows:
    """Error of o against gate strength for the ways to place the frame of the exponents."""
    rows = []
    for decay in DECAYS:
        x = make(256, 32, decay, seed=1)
        expected, _ = recurrence(x)
        row = {"decay": decay}
        for name, C, kind in (
            ("start64", 64, "start"),
            ("start16", 16, "start"),
            ("middle", 64, "middle"),
            ("split", 64, "split"),
        ):
            row[name] = relative(forward(x, C, kind)[0], expected)
        rows.append(row)
    return rows


def chunk_length() -> Rows:
    """Error of o against the chunk length, for ordinary and nearly equal keys."""
    everything = dict.fromkeys(("factors", "A", "N", "U", "S"), bf16)
    rows = []
    for C in (4, 8, 16, 32, 64, 128):
        row: dict[str, float] = {"C": C}
        for name, noise in (("random", math.inf), ("close", 0.1)):
            x = make(256, 64, 0.03125, seed=2, noise=noise)
            expected, _ = recurrence(x)
            row[f"{name}_f32"] = relative(forward(x, C, "split")[0], expected)
            row[f"{name}_bf16"] = relative(forward(x, C, "split", everything)[0], expected)
        rows.append(row)
    return rows


def roundings() -> Rows:
    """Error of o when only some operands are rounded to bf16."""
    groups = {
        "none": (),
        "factors": ("factors",),
        "A": ("A",),
        "N": ("N",),
        "U": ("U",),
        "S": ("S",),
        "all": ("factors", "A", "N", "U", "S"),
    }
    rows = []
    for decay in DECAYS[:-1]:
        x = make(256, 64, decay, seed=3)
        expected, _ = recurrence(x)
        row = {"decay": decay}
        for name, members in groups.items():
            row[name] = relative(forward(x, 64, "split", dict.fromkeys(members, bf16))[0], expected)
        rows.append(row)
    return rows


def substitution(lam: Tensor, cast: Rounding) -> Tensor:
    """Row by row, operands rounded, sums in float32."""
    rows = len(lam)
    A = torch.eye(rows)
    lam = cast(lam)
    for i in range(1, rows):
        A[i, :i] = -(lam[i, :i] @ A[:i, :i])
    return A


def series(lam: Tensor, cast: Rounding) -> Tensor:
    """(I - L)(I + L^2)(I + L^4)...: exact in exact arithmetic, since L is nilpotent."""
    eye = torch.eye(len(lam))
    total, power, span = cast(eye - lam), cast(lam), 2
    while span < len(lam):
        power = cast(power @ power)
        total = cast(total @ (eye + power))
        span *= 2
    return total


def inverse() -> Rows:
    """Error of (I + L)^-1 for 64 nearly equal keys and no decay against beta."""
    rows = []
    k = make(64, 64, 0.0, seed=4, noise=0.05).k
    for step in range(1, 21):
        beta = step / 10
        lam = (beta * (k @ k.T)).tril(-1)
        expected = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + lam)
        narrow_lam = lam.float()
        rows.append(
            {
                "beta": beta,
                "substitution_f32": relative(substitution(narrow_lam, exact), expected),
                "series_f32": relative(series(narrow_lam, exact), expected),
                "series_bf16": relative(series(narrow_lam, bf16), expected),
                "series_fp16": relative(series(narrow_lam, fp16), expected),
                "largest_entry": float(expected.abs().max()),
            }
        )
    return rows


def decode() -> Rows:
    """Error of a slowly fading float32 state against the number of steps, exp and expm1."""
    random = torch.Generator().manual_seed(5)
    g = (-8e-5 * (0.5 + torch.rand(512, generator=random))).float()
    S = torch.randn(512, generator=random)
    by_exp, by_expm1, expected = S.clone(), S.clone(), S.double()
    rows = []
    for step in range(1, 2**15 + 1):
        write = torch.randn(512, generator=random) * 0.01
        by_exp = by_exp * g.exp() + write
        by_expm1 = by_expm1 + by_expm1 * torch.expm1(g) + write
        expected = expected * g.double().exp() + write.double()
        if step & (step - 1) == 0:
            rows.append(
                {
                    "steps": step,
                    "exp": relative(by_exp, expected),
                    "expm1": relative(by_expm1, expected),
                }
            )
    return rows


def dg_by_pairs(x: Inputs, do: Tensor, D: Tensor) -> Tensor:
    """Equation bwd-dg-pairs: no difference is taken."""
    c = chunk_terms(x)
    part = local_gradients(x, c, do, D)
    _, X, _ = reverse_step(x, c, do, D)
    b = x.beta.unsqueeze(1)
    U = c.A @ (b * (x.v - c.kt @ x.state))
    left = part.dn.unsqueeze(-1) * x.q.unsqueeze(1) + part.p.unsqueeze(-1) * (b * x.k).unsqueeze(1)
    pairs = left * x.k.unsqueeze(0) * c.decay
    reads = x.scale * c.qt * (do @ x.state.T) - b * c.kt * (X @ x.state.T)
    writes = c.kh * (U @ D.T)
    through = c.last * (x.state * D).sum(1)
    return torch.stack(
        [
            pairs[t:, :t].sum((0, 1)) + reads[t:].sum(0) + writes[:t].sum(0) + through
            for t in range(len(x.g))
        ]
    )


def decay_gradient() -> Rows:
    """Error of dg in float32: as a difference of sums, and pair by pair."""
    rows = []
    random = torch.Generator().manual_seed(6)
    do, D = (torch.randn(64, 32, generator=random, dtype=torch.float64) for _ in range(2))
    D = D[:32]
    for decay in DECAYS[:-1]:
        x = make(64, 32, decay, seed=7)
        leaf = x.g.clone().requires_grad_()
        o, state = recurrence(Inputs(x.q, x.k, x.v, leaf, x.beta, x.state, x.scale))
        ((o * do).sum() + (state * D).sum()).backward()
        assert leaf.grad is not None
        y = narrow(x)
        by_difference = local_gradients(y, chunk_terms(y), do.float(), D.float()).dg
        rows.append(
            {
                "decay": decay,
                "difference": relative(by_difference, leaf.grad),
                "pairs": relative(dg_by_pairs(y, do.float(), D.float()), leaf.grad),
            }
        )
    return rows


def operator() -> Rows:
    """Errors of the package's CPU operator in float32 and bf16 tensors."""
    import kda

    rows = []
    names = ("q", "k", "v", "g", "beta")
    for decay in DECAYS:
        x = make(256, 64, decay, seed=8)
        random = torch.Generator().manual_seed(9)
        do = bf16(torch.randn(256, 64, generator=random, dtype=torch.float64))
        leaves = [t.clone().requires_grad_() for t in x.leaves()[:5]]
        o, _ = recurrence(Inputs(*leaves, x.state, x.scale))
        expected = torch.autograd.grad((o * do).sum(), leaves)
        row = {"decay": decay}
        for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            given = [
                t.to(dtype if i < 3 else torch.float32)[None, :, None].clone().requires_grad_()
                for i, t in enumerate(x.leaves()[:5])
            ]
            state = x.state.float()[None, None]
            out, _ = kda.chunk_kda(*given, initial_state=state)
            got = torch.autograd.grad((out * do[None, :, None].to(out.dtype)).sum(), given)
            row[f"o_{label}"] = relative(out[0, :, 0], o.detach())
            for name, a, b in zip(names, got, expected, strict=True):
                row[f"d{name}_{label}"] = relative(a[0, :, 0], b)
        rows.append(row)
    return rows


EXPERIMENTS: dict[str, Callable[[], Rows]] = {
    "frames": frames,
    "chunk_length": chunk_length,
    "roundings": roundings,
    "inverse": inverse,
    "decode": decode,
    "decay_gradient": decay_gradient,
    "operator": operator,
}


def main() -> int:
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    for name in names:
        rows = EXPERIMENTS[name]()
        path = NOTES / "data" / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: f"{value:.4g}" for key, value in row.items()} for row in rows)
        print(f"{path.relative_to(NOTES.parents[1])}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
