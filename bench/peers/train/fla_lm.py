"""Tokens per second of training a plain KDA language model made of flash-linear-attention's layers.

    python bench/peers/train/fla_lm.py --config runs/x/config.json --batch 2 --seq-len 2048 --steps 12

The model has the shape that the config.json of one of our runs (or model folders) says: embedding,
blocks of RMSNorm, KimiDeltaAttention, RMSNorm, SwiGLU, a last RMSNorm, a tied head; the layers and
the fused loss are flash-linear-attention's own, called, never copied. fp32 weights, bf16 autocast,
fused AdamW, gradient clipping: what `kda train --dtype bf16` does. One JSON line comes out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import json
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn


def fla_parts() -> dict[str, Any]:
    """The layers, also where `transformers` is missing, which `fla.layers` as a whole wants."""
    fla = importlib.import_module("fla")
    if "fla.layers" not in sys.modules:
        package = types.ModuleType("fla.layers")
        package.__path__ = [str(Path(folder) / "layers") for folder in fla.__path__]
        package.__spec__ = importlib.machinery.ModuleSpec("fla.layers", None, is_package=True)
        sys.modules["fla.layers"] = package
    modules = importlib.import_module("fla.modules")
    return {
        "KimiDeltaAttention": importlib.import_module("fla.layers.kda").KimiDeltaAttention,
        "GatedMLP": modules.GatedMLP,
        "RMSNorm": modules.RMSNorm,
        "Loss": modules.FusedLinearCrossEntropyLoss,
    }


class Block(nn.Module):
    """One decoder layer, pre-normalised."""

    def __init__(self, parts: dict[str, Any], shape: dict[str, Any], index: int) -> None:
        super().__init__()
        width = shape["hidden_size"]
        attention = shape["linear_attn_config"]
        self.attn_norm = parts["RMSNorm"](width, eps=shape.get("rms_norm_eps", 1e-5))
        self.attn = parts["KimiDeltaAttention"](
            hidden_size=width,
            head_dim=attention["head_k_dim"],
            num_heads=attention["num_heads"],
            safe_gate=True,
            lower_bound=-5.0,
            layer_idx=index,
        )
        self.mlp_norm = parts["RMSNorm"](width, eps=shape.get("rms_norm_eps", 1e-5))
        self.mlp = parts["GatedMLP"](width, intermediate_size=shape["intermediate_size"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, d] to the same shape."""
        x = x + self.attn(self.attn_norm(x))[0]
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """Embedding, blocks, norm; the head is the embedding."""

    def __init__(self, parts: dict[str, Any], shape: dict[str, Any], recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(
            Block(parts, shape, i) for i in range(shape["num_hidden_layers"])
        )
        self.norm = parts["RMSNorm"](shape["hidden_size"])
        self.loss = parts["Loss"]()

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of [B, T] ids."""
        x = self.embed(ids)
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.loss(self.norm(x), targets, self.embed.weight)


def read_shape(path: Path) -> dict[str, Any]:
    """The model part of a run's or a model folder's config.json."""
    config = json.loads(path.read_text())
    shape = config.get("model", config)
    if "linear_attn_config" not in shape or "moe_config" in shape or "mla_config" in shape:
        raise SystemExit(f"{path}: expected a plain KDA model, without experts and MLA layers")
    return shape


def main() -> None:
    """Trains on random tokens and prints the speed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="measured, after 3 to warm up")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this comparison needs a GPU; none is visible")
    shape = read_shape(options.config)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model(fla_parts(), shape, options.recompute).cuda()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    size = (options.batch, options.seq_len + 1)
    seconds: list[float] = []
    loss = torch.zeros(())
    for step in range(3 + options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(options.grad_accum):
            ids = torch.randint(shape["vocab_size"], size, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(ids[:, :-1], ids[:, 1:].contiguous()) / options.grad_accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 3:
            seconds.append(time.perf_counter() - start)
    tokens = options.batch * options.seq_len * options.grad_accum
    result = {
        "engine": "fla",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_step": tokens,
        "median_ms": 1e3 * statistics.median(seconds),
        "min_ms": 1e3 * min(seconds),
        "max_ms": 1e3 * max(seconds),
        "tok_per_s": tokens / statistics.median(seconds),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "last_loss": loss.item() * options.grad_accum,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "fla": importlib.import_module("fla").__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
