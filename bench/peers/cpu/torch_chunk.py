"""KDA as one would batch it by hand in PyTorch: the anchor of the cpu benchmark.

Form W of the chunk equations with bmm and solve_triangular, all heads batched, a Python loop over
chunks, gradients by autograd. Prints one JSON line per shape, operation and chunk size with the
minimum and the median over interleaved runs.

    python bench/peers/cpu/torch_chunk.py --threads 2 --runs 20
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass

import torch

SHAPES = {"P1": (1, 2048, 8, 64), "P2": (1, 4096, 4, 128), "P3": (4, 512, 16, 64)}


@dataclass
class Inputs:
    """q, k, v, g [B,T,H,D], beta [B,T,H], state [B,H,D,D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor

    def leaves(self) -> list[torch.Tensor]:
        return [self.q, self.k, self.v, self.g, self.beta, self.state]


def make_inputs(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> Inputs:
    """Unit q and k, g = log sigmoid(N(0,1)), beta = sigmoid(N(0,1))."""
    batch, tokens, heads, dim = shape
    draw = torch.Generator().manual_seed(7)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    q = torch.nn.functional.normalize(normal(batch, tokens, heads, dim), dim=-1)
    k = torch.nn.functional.normalize(normal(batch, tokens, heads, dim), dim=-1)
    v = normal(batch, tokens, heads, dim)
    g = torch.nn.functional.logsigmoid(normal(batch, tokens, heads, dim))
    beta = torch.sigmoid(normal(batch, tokens, heads))
    state = normal(batch, heads, dim, dim)
    return Inputs(*(x.to(dtype) for x in (q, k, v, g, beta, state)))


def chunk_forward(x: Inputs, chunk: int) -> torch.Tensor:
    """o [B,T,H,D]; T must be a multiple of the chunk."""
    batch, tokens, heads, dim = x.q.shape
    chunks = tokens // chunk

    def split(t: torch.Tensor) -> torch.Tensor:  # [B,T,H,D] -> [B*H,NC,C,D]
        t = t.permute(0, 2, 1, 3).reshape(batch * heads, chunks, chunk, -1)
        return t

    q, k, v, g = (split(t) for t in (x.q, x.k, x.v, x.g))
    beta = x.beta.permute(0, 2, 1).reshape(batch * heads, chunks, chunk, 1)
    total = g.cumsum(2)
    last = total[:, :, -1:]
    middle = total[:, :, chunk // 2 : chunk // 2 + 1]
    up = (total - middle).exp()
    down = k * (middle - total).exp()
    from_start = total.exp()
    q_start = q * from_start * dim**-0.5
    k_start = k * from_start
    k_end = k * (last - total).exp()
    lower = (beta * (k * up) @ down.transpose(2, 3)).tril(-1)
    scores = ((q * up * dim**-0.5) @ down.transpose(2, 3)).tril()
    unit = lower + torch.eye(chunk, dtype=q.dtype)
    both = torch.linalg.solve_triangular(
        unit, beta * torch.cat([k_start, v], dim=-1), upper=False, unitriangular=True
    )
    w, u = both[..., :dim], both[..., dim:]
    decay = last.exp().transpose(2, 3)
    state = x.state.reshape(batch * heads, dim, dim)
    outputs = []
    # unbind, not indexing: the backward of w[:, c] would fill a whole tensor for every chunk.
    parts = (t.unbind(1) for t in (w, u, q_start, scores, decay, k_end.transpose(2, 3)))
    for w_c, u_c, q_c, scores_c, decay_c, k_c in zip(*parts, strict=True):
        new = torch.baddbmm(u_c, w_c, state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(q_c, state), scores_c, new))
        state = torch.baddbmm(decay_c * state, k_c, new)
    o = torch.stack(outputs, 1).reshape(batch, heads, tokens, dim)
    return o.permute(0, 2, 1, 3)


def recurrent_forward(x: Inputs) -> torch.Tensor:
    """The definition, token by token."""
    dim = x.q.shape[-1]
    state = x.state
    outputs = []
    for t in range(x.q.shape[1]):
        state = state * x.g[:, t, :, :, None].exp()
        key = x.k[:, t]
        error = x.v[:, t] - torch.einsum("bhkv,bhk->bhv", state, key)
        state = state + torch.einsum("bhk,bhv->bhkv", key, x.beta[:, t, :, None] * error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, x.q[:, t]) * dim**-0.5)
    return torch.stack(outputs, 1)


def check(chunk: int) -> float:
    """Relative RMS error in f32 against the recurrence in f64."""
    shape = (1, 2 * chunk, 2, 64)
    want = recurrent_forward(make_inputs(shape, torch.float64))
    got = chunk_forward(make_inputs(shape), chunk).double()
    return float((got - want).norm() / want.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for chunk in args.chunks:
        error = check(chunk)
        if not error < 1e-5:
            raise SystemExit(f"chunk {chunk}: error {error:.2e} against the f64 recurrence")
    for name in args.shapes:
        x = make_inputs(SHAPES[name])
        d_o = torch.randn(x.v.shape, generator=torch.Generator().manual_seed(8))
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(args.runs):
            for chunk in args.chunks:
                start = time.perf_counter()
                with torch.no_grad():
                    chunk_forward(x, chunk)
                times.setdefault(("forward", chunk), []).append(time.perf_counter() - start)
                for leaf in x.leaves():
                    leaf.grad = None
                    leaf.requires_grad_(True)
                start = time.perf_counter()
                chunk_forward(x, chunk).backward(d_o)
                times.setdefault(("train", chunk), []).append(time.perf_counter() - start)
        for (op, chunk), seconds in times.items():
            line = {
                "case": f"{op}/{name}",
                "chunk": chunk,
                "threads": args.threads,
                "runs": len(seconds),
                "min_ms": round(min(seconds) * 1e3, 3),
                "median_ms": round(statistics.median(seconds) * 1e3, 3),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
