"""Kimi-Linear and Kimi-K3 as plain loops over tokens in float64, and synthetic checkpoints of them.

Written from the two reports (arXiv 2510.26692, 2607.24653) and the released names; it shares no code
with the program, so that both can be wrong only independently. Nothing here is fast.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Config = dict[str, Any]

# ---------------------------------------------------------------------------- files


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_safetensors(path: Path, tensors: Weights) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    blobs = []
    for name, tensor in tensors.items():
        flat = tensor.contiguous().flatten()
        blob = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_safetensors(path: Path) -> Weights:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
        tensors[name] = raw.view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors


def write_model(folder: Path, config: Config, tensors: Weights, shards: int = 1) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write_safetensors(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read_model(folder: Path) -> tuple[Config, Weights]:
    config = json.loads((folder / "config.json").read_text())
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return config, read_safetensors(folder / "model.safetensors")
    tensors: Weights = {}
    for file in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(read_safetensors(folder / file))
    return config, tensors


# ---------------------------------------------------------------------------- MXFP4

_FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def unpack_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    """[out, in/2] bytes with the even column in the low half, [out, in/32] powers of two."""
    table = torch.tensor(_FP4 + [-value for value in _FP4], dtype=torch.float64)
    low = table[(packed & 15).long()]
    high = table[(packed >> 4).long()]
    values = torch.stack([low, high], dim=-1).flatten(1)
    factors = torch.pow(2.0, scale.double() - 127).repeat_interleave(32, dim=1)
    return values * factors


def unpacked(tensors: Weights) -> Weights:
    """In float64, under the names without prefix, MXFP4 as matrices, vision left out."""
    out: Weights = {}
    for stored, tensor in tensors.items():
        name = stored.removeprefix("language_model.")
        if name.startswith(("vision_tower.", "mm_projector.")) or name.endswith("_scale"):
            continue
        if name.endswith("_packed"):
            scale = tensors[stored.removesuffix("_packed") + "_scale"]
            out[name.removesuffix("_packed")] = unpack_mxfp4(tensor, scale)
        else:
            out[name] = tensor.double()
    return out


# ---------------------------------------------------------------------------- layers


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, text: Config) -> Tensor:
    g, u = x @ gate.T, x @ up.T
    if text["hidden_act"] == "silu":
        return (g * torch.sigmoid(g) * u) @ down.T
    beta, linear = text["activation_situ_beta"], text["activation_situ_linear_beta"]
    capped = linear * torch.tanh(u / linear) if linear else u
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * capped) @ down.T


def kda_attention(x: Tensor, w: Callable[[str], Tensor], text: Config) -> Tensor:
    kind = text["linear_attn_config"]
    heads, size = kind["num_heads"], kind["head_dim"]
    tokens = x.shape[0]

    def mixed(name: str) -> Tensor:
        y = x @ w(f"{name}_proj.weight").T
        kernel = w(f"{name}_conv1d.weight")[:, 0, :]  # [C, W], the last column is the current token
        width = kernel.shape[1]
        padded = torch.cat([y.new_zeros(width - 1, y.shape[1]), y])
        z = sum(kernel[:, j] * padded[j : j + tokens] for j in range(width))
        return (z * torch.sigmoid(z)).view(tokens, heads, size)

    def unit(v: Tensor) -> Tensor:
        return v * torch.rsqrt(v.square().sum(-1, keepdim=True) + 1e-6)

    q, k, v = unit(mixed("q")), unit(mixed("k")), mixed("v")
    z = (x @ w("f_a_proj.weight").T @ w("f_b_proj.weight").T + w("dt_bias")).view(
        tokens, heads, size
    )
    a = torch.exp(w("A_log").flatten()[:heads])[:, None]
    bound = kind.get("gate_lower_bound")
    g = -a * torch.nn.functional.softplus(z) if bound is None else bound * torch.sigmoid(a * z)
    beta = torch.sigmoid(x @ w("b_proj.weight").T)  # [T, H]

    state = x.new_zeros(heads, size, size)  # [H, K, V]
    out = []
    for t in range(tokens):
        state = state * torch.exp(g[t])[:, :, None]
        rest = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + beta[t][:, None, None] * k[t][:, :, None] * rest[:, None, :]
        out.append(torch.einsum("hkv,hk->hv", state, q[t] / math.sqrt(size)))
    o = rms_norm(torch.stack(out), w("o_norm.weight"), text["rms_norm_eps"])
    if kind.get("use_full_rank_gate", False):
        gate = x @ w("g_proj.weight").T
    else:
        gate = x @ w("g_a_proj.weight").T @ w("g_b_proj.weight").T
    return (o * torch.sigmoid(gate).view_as(o)).flatten(1) @ w("o_proj.weight").T


def mla_attention(x: Tensor, w: Callable[[str], Tensor], text: Config) -> Tensor:
    heads, rank = text["num_attention_heads"], text["kv_lora_rank"]
    nope, rope, size = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
    tokens = x.shape[0]
    if text["q_lora_rank"] is None:
        q = x @ w("q_proj.weight").T
    else:
        q = rms_norm(x @ w("q_a_proj.weight").T, w("q_a_layernorm.weight"), 1e-6)
        q = q @ w("q_b_proj.weight").T
    q = q.view(tokens, heads, nope + rope)
    compressed = x @ w("kv_a_proj_with_mqa.weight").T
    latent = rms_norm(compressed[:, :rank], w("kv_a_layernorm.weight"), 1e-6)
    shared = compressed[:, rank:]  # one key for all heads, never rotated
    kv = (latent @ w("kv_b_proj.weight").T).view(tokens, heads, nope + size)
    k = torch.cat([kv[..., :nope], shared[:, None].expand(-1, heads, -1)], dim=-1)
    logits = torch.einsum("thc,shc->hts", q, k) / math.sqrt(nope + rope)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    p = torch.softmax(logits.masked_fill(future, -math.inf), dim=-1)
    o = torch.einsum("hts,shv->thv", p, kv[..., nope:]).flatten(1)
    if text.get("mla_use_output_gate", False):
        o = o * torch.sigmoid(x @ w("g_proj.weight").T)
    return o @ w("o_proj.weight").T


def experts(x: Tensor, w: Callable[[str], Tensor], text: Config, leak: bool) -> Tensor:
    """`leak`: the mixture weights contain the selection bias, as in Kimi-Linear's released code."""
    s = torch.sigmoid(x @ w("gate.weight").T)
    biased = s + w("gate.e_score_correction_bias")
    k, total = text["num_experts_per_token"], text["num_experts"]
    groups, kept = text.get("num_expert_group", 1), text.get("topk_group", 1)
    latent = text.get("routed_expert_hidden_size")
    z = x if latent is None else x @ w("routed_expert_down_proj.weight").T
    rows = []
    for t in range(x.shape[0]):
        choice = biased[t].clone()
        if kept < groups:
            per_group = choice.view(groups, total // groups)
            rank = per_group.topk(min(2, total // groups), dim=-1).values.sum(-1)
            inside = torch.zeros(groups, dtype=torch.bool)
            inside[rank.topk(kept).indices] = True
            outside = ~inside.repeat_interleave(total // groups)
            choice[outside] = 0.0 if leak else -math.inf
        chosen = choice.topk(k).indices
        p = (biased if leak else s)[t][chosen]
        if text["moe_renormalize"] and k > 1:
            p = p / (p.sum() + 1e-20)
        p = p * text["routed_scaling_factor"]
        row = 0.0
        for weight, e in zip(p, chosen.tolist(), strict=True):
            parts = [w(f"experts.{e}.{name}.weight") for name in ("w1", "w3", "w2")]
            row = row + weight * feed_forward(z[t : t + 1], *parts, text)
        rows.append(row)
    u = torch.cat(rows)
    if text.get("latent_moe_use_norm", False):
        u = rms_norm(u, w("routed_expert_norm.weight"), text["rms_norm_eps"])
    if latent is not None:
        u = u @ w("routed_expert_up_proj.weight").T
    if text["num_shared_experts"] > 0:
        shared = [w(f"shared_experts.{name}_proj.weight") for name in ("gate", "up", "down")]
        u = u + feed_forward(x, *shared, text)
    return u


def attn_res(sources: list[Tensor], weight: Tensor, query: Tensor, eps: float) -> Tensor:
    values = torch.stack(sources)  # [M, T, d]
    logits = rms_norm(values, weight, eps) @ query.flatten()
    return (torch.softmax(logits, dim=0)[..., None] * values).sum(0)


def forward(config: Config, tensors: Weights, ids: list[int], leak: bool | None = None) -> Tensor:
    """Logits [T, vocab] of one sequence in float64."""
    text = config.get("text_config", config)
    weights = unpacked(tensors)
    if leak is None:
        leak = "text_config" not in config
    eps = text["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    block = text.get("attn_res_block_size")
    finished: list[Tensor] = []
    running: Tensor | None = x

    for layer in range(text["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."

        def w(name: str, prefix: str = prefix) -> Tensor:
            return weights[prefix + name]

        def attention(h: Tensor, prefix: str = prefix, layer: int = layer) -> Tensor:
            full = layer + 1 in text["linear_attn_config"]["full_attn_layers"]
            layer_type = mla_attention if full else kda_attention
            return layer_type(h, lambda name: weights[prefix + "self_attn." + name], text)

        def mlp(h: Tensor, prefix: str = prefix, layer: int = layer) -> Tensor:
            if layer < text["first_k_dense_replace"]:
                parts = [weights[f"{prefix}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")]
                return feed_forward(h, *parts, text)
            name_of = prefix + "block_sparse_moe."
            return experts(h, lambda name: weights[name_of + name], text, leak)

        input_norm = w("input_layernorm.weight")
        post_norm = w("post_attention_layernorm.weight")
        if block is None:
            x = x + attention(rms_norm(x, input_norm, eps))
            x = x + mlp(rms_norm(x, post_norm, eps))
            continue

        def mix(name: str, last: Tensor, prefix: str = prefix) -> Tensor:
            return attn_res(
                [*finished, last],
                weights[f"{prefix}{name}_res_norm.weight"],
                weights[f"{prefix}{name}_res_proj.weight"],
                eps,
            )

        assert running is not None
        h = mix("self_attention", running) if finished else running
        if layer % block == 0:
            finished.append(running)
            running = None
        a = attention(rms_norm(h, input_norm, eps))
        running = a if running is None else running + a
        running = running + mlp(rms_norm(mix("mlp", running), post_norm, eps))

    if block is not None:
        assert running is not None
        x = attn_res(
            [*finished, running],
            weights["model.output_attn_res_norm.weight"],
            weights["model.output_attn_res_proj.weight"],
            eps,
        )
    x = rms_norm(x, weights["model.norm.weight"], eps)
    head = "model.embed_tokens" if text["tie_word_embeddings"] else "lm_head"
    return x @ weights[f"{head}.weight"].T


# ---------------------------------------------------------------------------- checkpoints


def kimi_linear_config(**changes: Any) -> Config:
    config: Config = {
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearForCausalLM"],
        "torch_dtype": "bfloat16",
        "vocab_size": 48,
        "hidden_size": 40,
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "intermediate_size": 56,
        "hidden_act": "silu",
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4, 5],
            "num_heads": 2,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True,
        "q_lora_rank": None,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "num_experts": 6,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 24,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 2.446,
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "model_max_length": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_theta": 10000.0,
        "use_cache": True,
    }
    return {**config, **changes}


def kimi_k3_config(**changes: Any) -> Config:
    text = kimi_linear_config(
        hidden_size=64,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
        q_lora_rank=20,
        mla_use_output_gate=True,
        num_shared_experts=2,
        moe_intermediate_size=32,
        routed_scaling_factor=1.0,
        routed_expert_hidden_size=32,
        latent_moe_use_norm=True,
        attn_res_block_size=2,
        max_position_embeddings=1048576,
    )
    del text["model_max_length"]
    text["linear_attn_config"] |= {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    return {"model_type": "kimi_k3", "text_config": {**text, **changes}}


@dataclasses.dataclass
class Maker:
    """Random tensors of a checkpoint with the released names, shapes and types."""

    config: Config
    seed: int = 0
    mxfp4: bool = False
    vision: bool = False

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.text = self.config.get("text_config", self.config)
        self.k3 = "text_config" in self.config
        self.tensors: Weights = {}

    def random(self, *shape: int, scale: float, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return (torch.randn(*shape, generator=self.generator) * scale).to(dtype)

    def matrix(self, name: str, out: int, inputs: int) -> None:
        self.tensors[name] = self.random(out, inputs, scale=1.2 / math.sqrt(inputs))

    def norm(self, name: str, size: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.tensors[name] = (1 + self.random(size, scale=0.2, dtype=torch.float32)).to(dtype)

    def expert_matrix(self, name: str, out: int, inputs: int) -> None:
        if not self.mxfp4:
            return self.matrix(name, out, inputs)
        bytes_of = torch.randint(0, 256, (out, inputs // 2), generator=self.generator)
        scales = torch.randint(122, 126, (out, inputs // 32), generator=self.generator)
        self.tensors[f"{name}_packed"] = bytes_of.to(torch.uint8)
        self.tensors[f"{name}_scale"] = scales.to(torch.uint8)
        return None

    def kda(self, at: str) -> None:
        text, kind = self.text, self.text["linear_attn_config"]
        d, heads, size = text["hidden_size"], kind["num_heads"], kind["head_dim"]
        width = heads * size
        for name in "qkv":
            self.matrix(f"{at}{name}_proj.weight", width, d)
            conv = self.random(width, 1, 4, scale=0.5, dtype=torch.float32)
            self.tensors[f"{at}{name}_conv1d.weight"] = conv
        self.matrix(f"{at}f_a_proj.weight", size, d)
        self.matrix(f"{at}f_b_proj.weight", width, size)
        self.matrix(f"{at}b_proj.weight", heads, d)
        if self.k3:
            self.matrix(f"{at}g_proj.weight", width, d)
        else:
            self.matrix(f"{at}g_a_proj.weight", size, d)
            self.matrix(f"{at}g_b_proj.weight", width, size)
        a_log = self.random(heads, scale=0.5, dtype=torch.float32)
        padded = torch.cat([a_log, torch.zeros(128 - heads)])
        self.tensors[f"{at}A_log"] = padded if self.k3 else a_log.view(1, 1, heads, 1)
        self.tensors[f"{at}dt_bias"] = self.random(width, scale=1.0, dtype=torch.float32) - 2
        self.norm(f"{at}o_norm.weight", size, torch.float32)
        self.matrix(f"{at}o_proj.weight", d, width)

    def mla(self, at: str) -> None:
        text = self.text
        d, heads, rank = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
        nope, rope, size = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
        low = text["q_lora_rank"]
        if low is None:
            self.matrix(f"{at}q_proj.weight", heads * (nope + rope), d)
        else:
            self.matrix(f"{at}q_a_proj.weight", low, d)
            self.norm(f"{at}q_a_layernorm.weight", low)
            self.matrix(f"{at}q_b_proj.weight", heads * (nope + rope), low)
        self.matrix(f"{at}kv_a_proj_with_mqa.weight", rank + rope, d)
        self.norm(f"{at}kv_a_layernorm.weight", rank)
        self.matrix(f"{at}kv_b_proj.weight", heads * (nope + size), rank)
        if self.k3:
            self.matrix(f"{at}g_proj.weight", heads * size, d)
        self.matrix(f"{at}o_proj.weight", d, heads * size)

    def moe(self, at: str) -> None:
        text = self.text
        d, inner, count = text["hidden_size"], text["moe_intermediate_size"], text["num_experts"]
        latent = text.get("routed_expert_hidden_size")
        self.matrix(f"{at}gate.weight", count, d)
        bias = self.random(count, scale=0.3, dtype=torch.float32)
        self.tensors[f"{at}gate.e_score_correction_bias"] = bias
        for e in range(count):
            self.expert_matrix(f"{at}experts.{e}.w1.weight", inner, latent or d)
            self.expert_matrix(f"{at}experts.{e}.w3.weight", inner, latent or d)
            self.expert_matrix(f"{at}experts.{e}.w2.weight", latent or d, inner)
        if latent:
            self.matrix(f"{at}routed_expert_down_proj.weight", latent, d)
            self.matrix(f"{at}routed_expert_up_proj.weight", d, latent)
            self.norm(f"{at}routed_expert_norm.weight", latent)
        shared = inner * text["num_shared_experts"]
        self.dense(f"{at}shared_experts.", shared)

    def dense(self, at: str, inner: int) -> None:
        d = self.text["hidden_size"]
        self.matrix(f"{at}gate_proj.weight", inner, d)
        self.matrix(f"{at}up_proj.weight", inner, d)
        self.matrix(f"{at}down_proj.weight", d, inner)

    def attn_res(self, name: str) -> None:
        if "attn_res_block_size" not in self.text:
            return
        d = self.text["hidden_size"]
        self.norm(f"{name}_norm.weight", d)
        self.tensors[f"{name}_proj.weight"] = self.random(1, d, scale=0.3)

    def make(self) -> Weights:
        text = self.text
        d, vocab = text["hidden_size"], text["vocab_size"]
        self.tensors["model.embed_tokens.weight"] = self.random(vocab, d, scale=1.0)
        for layer in range(text["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            self.norm(f"{at}input_layernorm.weight", d)
            self.norm(f"{at}post_attention_layernorm.weight", d)
            full = layer + 1 in text["linear_attn_config"]["full_attn_layers"]
            (self.mla if full else self.kda)(f"{at}self_attn.")
            if layer < text["first_k_dense_replace"]:
                self.dense(f"{at}mlp.", text["intermediate_size"])
            else:
                self.moe(f"{at}block_sparse_moe.")
            self.attn_res(f"{at}self_attention_res")
            self.attn_res(f"{at}mlp_res")
        self.attn_res("model.output_attn_res")
        self.norm("model.norm.weight", d)
        if not text["tie_word_embeddings"]:
            self.matrix("lm_head.weight", vocab, d)
        if self.k3:
            self.tensors = {f"language_model.{n}": t for n, t in self.tensors.items()}
        if self.vision:
            self.tensors["vision_tower.patch_embed.proj.weight"] = self.random(4, 3, scale=1.0)
            self.tensors["mm_projector.linear_1.bias"] = self.random(4, scale=1.0)
        return self.tensors
