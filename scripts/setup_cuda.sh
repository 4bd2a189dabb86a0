#!/usr/bin/env bash
# A CUDA compiler for machines that have none: nvcc 13.0 from its Python packages (105 MB to fetch,
# 271 MB on disk) in .deps/cuda, where CMake looks. Enough to build with -DKDA_CUDA=ON; running
# needs a GPU and its driver. Does nothing where nvcc is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
root=.deps/cuda/nvidia/cu13

say() { printf 'setup_cuda: %s\n' "$*"; }

for found in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -n "$found" ] && [ -x "$found" ]; then say "using $found"; exit 0; fi
done
if [ ! -f .deps/cuda/complete ]; then
  [ -x .venv/bin/python ] || { say "error: run scripts/setup.sh first"; exit 1; }
  say "fetching nvcc 13.0 into .deps/cuda"
  rm -rf .deps/cuda
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --target .deps/cuda \
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  chmod +x $root/bin/* $root/nvvm/bin/*
  ln -sfn lib $root/lib64 && ln -sfn libcudart.so.13 $root/lib/libcudart.so  # what CMake looks for
  touch .deps/cuda/complete
fi
say "nvcc is $PWD/$root/bin/nvcc"
