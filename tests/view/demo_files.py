"""Small files of every kind that the viewer opens, with values that are easy to recognise."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32"}

WORDS = [
    "▁If",
    "▁you",
    "▁delete",
    "▁the",
    "▁file",
    ",",
    "▁the",
    "▁next",
    "▁run",
    "▁makes",
    "▁it",
    "▁again",
    "▁from",
    "▁the",
    "▁cache",
    ".",
]


def write_safetensors(
    path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> Path:
    """The format of docs/checkpoints.md: a header of JSON, then the data."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def kda_pass(rng: np.random.Generator, tokens: int, heads: int, channels: int) -> dict[str, Any]:
    """One KDA layer on random input, with everything that `kda extract` records of it."""
    shape = (tokens, heads, channels)
    slow = np.linspace(0.05, 2.5, channels)[None, None, :] * np.linspace(0.2, 1.2, heads)[:, None]
    decay = np.exp(-slow * (0.4 + rng.random(shape)))
    beta = 1 / (1 + np.exp(-rng.normal(0.5, 1.2, (tokens, heads))))
    q, k, v = (rng.normal(size=shape) for _ in range(3))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    state = np.zeros((heads, channels, channels))
    # Each state as a matrix that multiplies the values: o = M v.
    mixing = np.zeros((heads, channels, tokens))
    norms, values = np.zeros((tokens, heads)), np.zeros(shape)
    attention = np.zeros((heads, tokens, tokens))
    for t in range(tokens):
        for h in range(heads):
            d, key, b = decay[t, h], k[t, h], beta[t, h]
            state[h] *= d[:, None]
            mixing[h] *= d[:, None]
            mixing[h] -= b * np.outer(key, key @ mixing[h])
            mixing[h][:, t] += b * key
            state[h] += b * np.outer(key, v[t, h] - key @ state[h])
            attention[h, t] = q[t, h] @ mixing[h] / np.sqrt(channels)
            norms[t, h] = np.linalg.norm(state[h])
            values[t, h] = np.linalg.svd(state[h], compute_uv=False)
    return {
        "decay": (decay, ["token", "head", "channel"]),
        "beta": (beta, ["token", "head"]),
        "state_norm": (norms, ["token", "head"]),
        "state_singular_values": (values, ["token", "head", "index"]),
        "state": (state[None], ["sequence", "head", "row", "column"]),
        "attention_map": (attention, ["head", "token", "key_token"]),
    }


def extract_file(path: Path, tokens: int = 16, heads: int = 4, channels: int = 32) -> Path:
    """As `kda extract` writes it, for a model of one KDA, one MLA and one MoE layer."""
    rng = np.random.default_rng(7)
    tensors: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {}

    def add(source: str, kind: str, array: np.ndarray, axes: list[str]) -> None:
        tensors[f"{source}.{kind}"] = array.astype(np.float32)
        about[f"{source}.{kind}"] = {"kind": kind, "axes": axes, "source": source}

    for kind, (array, axes) in kda_pass(rng, tokens, heads, channels).items():
        add("model.layers.0.self_attn", kind, array, axes)
    scores = rng.normal(size=(heads, tokens, tokens)) * 2
    scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    softmax = np.exp(scores - scores.max(-1, keepdims=True))
    softmax /= softmax.sum(-1, keepdims=True)
    add("model.layers.3.self_attn", "attention", softmax, ["head", "token", "key_token"])
    weights = rng.dirichlet(np.full(12, 0.3), tokens)
    weights[weights < np.sort(weights, axis=-1)[:, -2:-1]] = 0
    moe = "model.layers.1.block_sparse_moe"
    add(moe, "load", (weights > 0).sum(0), ["expert"])
    add(moe, "router_weights", weights, ["token", "expert"])
    add(
        "model.layers.2.mlp_res",
        "source_weights",
        rng.dirichlet([2.0, 1.0, 3.0, 1.0], tokens),
        ["token", "source"],
    )
    words = [{"id": i, "text": WORDS[i % len(WORDS)]} for i in range(tokens)]
    return write_safetensors(
        path,
        tensors,
        {
            "format": "kda-extract",
            "version": "1",
            "tokens": json.dumps(words),
            "run": json.dumps({"program": "kda", "checkpoint": "demo"}),
            "tensors": json.dumps(about),
        },
    )


def checkpoint_file(path: Path) -> Path:
    """Tensors of every rank, one too large to be drawn cell by cell, one with odd values."""
    rng = np.random.default_rng(3)
    odd = np.linspace(-1, 1, 64, dtype=np.float32)
    odd[[3, 9, 20]] = [np.nan, np.inf, -np.inf]
    return write_safetensors(
        path,
        {
            "model.embed_tokens.weight": rng.normal(size=(2048, 96)).astype(np.float32) * 0.02,
            "model.norm.weight": np.ones(96, np.float32),
            "conv.weight": np.arange(24 * 6 * 5, dtype=np.float32).reshape(24, 6, 5),
            "odd": odd,
            "steps": np.arange(12, dtype=np.int64),
            "scalar": np.array(2.5, np.float64),
            "empty": np.zeros((0, 4), np.float32),
        },
        {"format": "pt"},
    )


def metrics_file(path: Path, steps: int = 5000) -> Path:
    """A run with more steps than a curve has points."""
    rng = np.random.default_rng(5)
    with path.open("w") as out:
        for step in range(1, steps + 1):
            loss = 9 * np.exp(-step / 900) + 2 + rng.normal() * 0.1
            row = {"kind": "step", "step": step, "tokens": 1024 * step, "lr": 1e-3 / step}
            row |= {"loss": loss, "grad_norm": 1 + rng.random(), "tok_per_s": 900 + rng.random()}
            out.write(json.dumps(row) + "\n")
            if step % 1000 == 0:
                row = {"kind": "eval", "step": step, "heldout_loss": loss + 0.2}
                out.write(json.dumps(row) + "\n")
                row = {"kind": "sample", "step": step, "prompt": "The <b>file</b>", "text": "is…"}
                out.write(json.dumps(row) + "\n")
    return path
