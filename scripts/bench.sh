#!/usr/bin/env bash
# Benchmark tables of this machine: scripts/bench.sh BUILD. Prints one JSON line per case and a table.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/bench.sh BUILD}
printf 'machine: %s, %s cores; commit %s\n' \
  "$(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo)" "$(nproc)" \
  "$(git describe --always --dirty 2>/dev/null || echo unknown)"
"$build/bin/kda_bench_cpu"
.venv/bin/python bench/peers/cpu/torch_chunk.py
