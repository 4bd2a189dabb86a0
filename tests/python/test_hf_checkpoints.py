"""The program against an independent forward on checkpoints with the released names.

Needs the program: KDA_EXECUTABLE, or the newest build/*/bin/kda.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import oracle
import plain_k3
from plain_k3 import Config, Maker, Weights

IDS = [3, 17, 44, 17, 5, 9, 9, 30, 21, 2, 40, 7, 33]


def find_program() -> str | None:
    given = os.environ.get("KDA_EXECUTABLE")
    if given:
        return given
    root = Path(__file__).resolve().parents[2]
    built = sorted(root.glob("build/*/bin/kda"), key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else None


PROGRAM = find_program()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no program: run `make program` or set KDA_EXECUTABLE"
)


def kda(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    assert PROGRAM is not None
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done


def logits(folder: Path, dtype: str = "fp64") -> torch.Tensor:
    ids = ",".join(map(str, IDS))
    done = kda(*("ckpt", "logits", folder, "--ids", ids, "--dtype", dtype, "--top", "0", "--json"))
    rows = [position["logits"] for position in json.loads(done.stdout)["positions"]]
    return torch.tensor(rows, dtype=torch.float64)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).square().mean() / want.square().mean()).sqrt().item()


CASES: dict[str, tuple[Config, dict[str, Any], int]] = {
    "kimi_linear": (plain_k3.kimi_linear_config(), {}, 1),
    "kimi_linear_groups": (
        plain_k3.kimi_linear_config(num_expert_group=3, topk_group=2, first_k_dense_replace=0),
        {},
        3,
    ),
    "kimi_linear_tied": (plain_k3.kimi_linear_config(tie_word_embeddings=True), {}, 1),
    "kimi_k3": (plain_k3.kimi_k3_config(), {"vision": True}, 4),
    "kimi_k3_mxfp4": (plain_k3.kimi_k3_config(), {"vision": True, "mxfp4": True}, 2),
    "kimi_k3_plain_residuals": (
        plain_k3.kimi_k3_config(
            attn_res_block_size=None, latent_moe_use_norm=True, activation_situ_linear_beta=None
        ),
        {},
        1,
    ),
}


def make(name: str, folder: Path, seed: int = 0) -> tuple[Config, Weights]:
    config, options, shards = CASES[name]
    text = config.get("text_config", config)
    if text.get("attn_res_block_size", 0) is None:
        del text["attn_res_block_size"]
    tensors = Maker(config, seed, **options).make()
    plain_k3.write_model(folder, config, tensors, shards)
    return config, tensors


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_plain_forward(name: str, tmp_path: Path) -> None:
    config, tensors = make(name, tmp_path / "model")
    want = plain_k3.forward(config, tensors, IDS)
    assert want.std() > 0.1
    assert oracle.relative_error(logits(tmp_path / "model"), want) < 1e-9
    assert relative_error(logits(tmp_path / "model", "fp32"), want) < 1e-5


def test_mixture_weights_of_kimi_linear_contain_the_bias(tmp_path: Path) -> None:
    config, tensors = make("kimi_linear", tmp_path / "model")
    without = plain_k3.forward(config, tensors, IDS, leak=False)
    assert relative_error(logits(tmp_path / "model"), without) > 1e-3


@pytest.mark.parametrize("name", ["kimi_linear", "kimi_k3_mxfp4"])
def test_conversion_there_and_back(name: str, tmp_path: Path) -> None:
    config, tensors = make(name, tmp_path / "model")
    want = plain_k3.forward(config, tensors, IDS)
    kda("ckpt", "convert", tmp_path / "model", tmp_path / "ours", "--to", "kda")
    assert relative_error(logits(tmp_path / "ours"), want) < 1e-9
    assert "sound" in kda("ckpt", "verify", tmp_path / "ours").stdout

    kda(
        *("ckpt", "convert", tmp_path / "ours", tmp_path / "back", "--to", "hf"),
        *("--shard-size", "50k"),
    )
    again, stored = plain_k3.read_model(tmp_path / "back")
    assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 2
    assert all(file.stat().st_size < 70_000 for file in (tmp_path / "back").glob("*.safetensors"))
    assert again["model_type"] == config["model_type"]
    assert relative_error(plain_k3.forward(again, stored, IDS), want) < 1e-9

    # The released names, all of them and no other; the values are the very same.
    original = plain_k3.unpacked(tensors)
    exported = plain_k3.unpacked(stored)
    assert exported.keys() == original.keys()
    for key, value in original.items():
        assert torch.equal(exported[key], value), key
    prefix = "language_model." if "text_config" in config else ""
    a_log = stored[f"{prefix}model.layers.0.self_attn.A_log"]
    assert list(a_log.shape) == ([128] if prefix else [1, 1, 2, 1])


def test_bf16_export_keeps_gates_wide(tmp_path: Path) -> None:
    config, tensors = make("kimi_k3", tmp_path / "model")
    kda(
        *("ckpt", "convert", tmp_path / "model", tmp_path / "back", "--to", "hf"),
        *("--dtype", "bf16"),
    )
    again, stored = plain_k3.read_model(tmp_path / "back")
    for key, value in stored.items():
        assert value.dtype == tensors[key].dtype, key
        assert torch.equal(value, tensors[key]), key  # bf16 was what they had
    assert (
        relative_error(plain_k3.forward(again, stored, IDS), plain_k3.forward(config, tensors, IDS))
        < 1e-12
    )


def test_vision_tensors_are_skipped_with_a_message(tmp_path: Path) -> None:
    make("kimi_k3", tmp_path / "model")
    done = kda("ckpt", "logits", tmp_path / "model", "--ids", "1,2")
    assert "2 tensors of the vision part skipped" in done.stderr
    assert "position" in done.stdout


def test_missing_and_left_over_tensors_are_listed(tmp_path: Path) -> None:
    config, tensors = make("kimi_k3_mxfp4", tmp_path / "model")
    moe = "language_model.model.layers.2.block_sparse_moe."
    for name in ("gate.e_score_correction_bias", "experts.3.w2.weight_packed"):
        del tensors[moe + name]
    tensors["language_model.model.layers.2.surprise"] = torch.zeros(2)
    plain_k3.write_model(tmp_path / "broken", config, tensors)
    text = kda("ckpt", "logits", tmp_path / "broken", "--ids", "1", code=1).stderr
    for part in (
        "layers.2.block_sparse_moe.gate.e_score_correction_bias: missing",
        "layers.2.block_sparse_moe.experts.3.w2.weight: missing",
        "experts.3.w2.weight_scale: not part of this model",
        "layers.2.surprise: not part of this model",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda packed, scale: (packed, scale[:, :0]), "no MXFP4 matrix"),
        (lambda packed, scale: (packed[:-1], scale), "no MXFP4 matrix"),
        (lambda packed, scale: (packed.float(), scale), "no MXFP4 matrix"),
        (lambda packed, scale: (packed[:-1].clone(), scale[:-1].clone()), "expected [32,32]"),
    ],
)
def test_wrong_mxfp4_shapes_are_refused(change: Any, part: str, tmp_path: Path) -> None:
    config, tensors = make("kimi_k3_mxfp4", tmp_path / "model")
    name = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"
    packed, scale = change(tensors[f"{name}_packed"], tensors[f"{name}_scale"])
    tensors[f"{name}_packed"], tensors[f"{name}_scale"] = packed, scale
    plain_k3.write_model(tmp_path / "broken", config, tensors)
    assert part in kda("ckpt", "logits", tmp_path / "broken", "--ids", "1", code=1).stderr


def test_conversion_never_writes_over_a_folder(tmp_path: Path) -> None:
    make("kimi_linear", tmp_path / "model")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    done = kda("ckpt", "convert", tmp_path / "model", tmp_path / "full", code=1)
    assert "new or empty" in done.stderr
    assert (tmp_path / "full" / "file").read_text() == "mine"
