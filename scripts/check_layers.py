#!/usr/bin/env python3
"""Checks the layer rules of docs/architecture.md on the source tree; prints each violation, exit 1.

Rules: torch headers only where tensors of torch live; CUDA headers and `<<<` only in the CUDA
backend and in the layers' own CUDA kernels (src/model/cuda), PTX only in the backend; includes follow the arrows between layers; public headers include public headers only;
no file over 800 lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inc", ".def"}
MAX_LINES = 800

# layer -> layers whose headers it may include ("kda" = public headers).
ALLOWED: dict[str, set[str]] = {
    "include": {"kda"},
    "core": {"kda", "core"},
    "ref": {"kda", "core", "ref", "dispatch"},
    "cpu": {"kda", "core", "cpu", "dispatch"},
    "cuda": {"kda", "core", "cuda", "dispatch"},
    "dispatch": {"kda", "core", "ref", "cpu", "dispatch"},
    "binding": {"kda", "binding", "dispatch", "core"},
    "io": {"kda", "io"},
    "text": {"kda", "io", "text"},
    "view": {"kda", "core", "io", "view"},
    "model": {"kda", "binding", "io", "model"},
    "inspect": {"kda", "io", "model", "inspect"},
    "eval": {"kda", "io", "text", "model", "eval"},
    "train": {"kda", "binding", "io", "text", "model", "eval", "train"},
    "cli": {"kda", "binding", "io", "text", "model", "inspect", "eval", "train", "view", "cli"},
}
# A backend may see only the table it fills, not the dispatcher's choices.
ONLY_HEADER = {
    **{(layer, "dispatch"): "dispatch/backend_table.h" for layer in ("ref", "cpu", "cuda")},
    ("dispatch", "ref"): "ref/ref_backend.h",
    ("dispatch", "cpu"): "cpu/cpu_backend.h",
    ("binding", "dispatch"): "dispatch/backend_table.h",
    ("view", "core"): "core/float16.h",
}
TORCH_LAYERS = {"binding", "model", "inspect", "eval", "train", "cli"}
TORCH_INCLUDE = re.compile(r"^(torch|ATen|c10|caffe2)/")
CUDA_INCLUDE = re.compile(r"^(cuda|cuda_\w+|cublas\w*|cooperative_groups|mma|nv\w*)(\.h|/.*)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
LAUNCH = re.compile(r"<<<\s*\w")
PTX = re.compile(r"\basm\s+(volatile\s*)?\(|\basm\(")


def layer_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "include":
        return "include"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return None


def check_file(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    problems = []
    lines = text.count("\n")
    if lines > MAX_LINES:
        problems.append(f"{name}: {lines} lines, at most {MAX_LINES}")
    layer = layer_of(path)
    if layer is None:
        return problems
    if layer not in ALLOWED:
        return [*problems, f"{name}: src/{layer} is not a layer of docs/architecture.md"]
    layer_kernels = name.startswith("src/model/cuda/")
    cuda_glue = layer == "cuda" or layer_kernels or name == "src/binding/cuda.cpp"
    for include in INCLUDE.findall(text):
        if TORCH_INCLUDE.match(include):
            if layer not in TORCH_LAYERS or layer_kernels:
                problems.append(f"{name}: torch header <{include}> in layer {layer}")
            continue
        if CUDA_INCLUDE.match(include):
            if not cuda_glue:
                problems.append(f"{name}: CUDA header <{include}> outside the CUDA backend")
            continue
        target = include.split("/")[0] if "/" in include else None
        if target is None or target not in {*ALLOWED, "kda"} or target == "include":
            continue
        if target not in ALLOWED[layer]:
            problems.append(f"{name}: layer {layer} includes {include}")
        only = ONLY_HEADER.get((layer, target))
        if only is not None and include != only:
            problems.append(f"{name}: layer {layer} includes {include}, allowed is {only}")
    if LAUNCH.search(text) and layer != "cuda" and not layer_kernels:
        problems.append(f"{name}: kernel launch outside src/cuda and src/model/cuda")
    if cuda_glue and PTX.search(text) and "/ptx/" not in name:
        problems.append(f"{name}: inline PTX outside src/cuda/ptx")
    return problems


def main() -> int:
    folders = ["include", "src", "tests", "bench", "python", "scripts"]
    problems: list[str] = []
    count = 0
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if "lib" in path.relative_to(ROOT).parts[:3] and folder == "python":
                continue
            if path.is_file() and path.suffix in SUFFIXES | {".py", ".sh"}:
                count += 1
                problems += check_file(path)
    for problem in problems:
        print(problem)
    print(f"check_layers: {count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
