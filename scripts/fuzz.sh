#!/usr/bin/env bash
# Builds the fuzzers with clang, AddressSanitizer and UBSan, and runs each for a while.
#
# Usage: scripts/fuzz.sh [SECONDS] [TARGET...]
#   SECONDS  running time of each target (default 60)
#   TARGET   config, corpus, jsonl, manifest, safetensors, settings, shard, tokenizer_model,
#            view_request, view_trace (default: all)
# Environment: KDA_FUZZ_BUILD  build folder (default build/fuzz)
# Needs the Debian packages clang and libomp-dev beside those of scripts/setup.sh.
# A finding stops the script; its input lies in <build>/findings. Once it is fixed, keep the input in
# tests/fuzz/regressions/<target>, where every build replays it.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0"
  exit 0
fi
seconds=${1:-60}
[ $# -gt 0 ] && shift
all=(config corpus jsonl manifest safetensors settings shard tokenizer_model view_request
     view_trace)
targets=("$@")
[ ${#targets[@]} -eq 0 ] && targets=("${all[@]}")
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: expected a number of seconds, got '$seconds' (see --help)" >&2
  exit 2
fi
for target in "${targets[@]}"; do
  if [[ " ${all[*]} " != *" $target "* ]]; then
    echo "fuzz: unknown target '$target'; known: ${all[*]}" >&2
    exit 2
  fi
done

compiler=$(command -v clang++ || true)
if [ -z "$compiler" ] || ! "$compiler" -fopenmp -fsanitize=fuzzer -x c++ -o /dev/null - \
  >/dev/null 2>&1 <<<'#include <omp.h>
extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return omp_in_parallel(); }'; then
  echo "fuzz: clang with OpenMP and libFuzzer not found: apt-get install clang libomp-dev" >&2
  exit 1
fi

build=${KDA_FUZZ_BUILD:-build/fuzz}
mkdir -p "$build/findings"
instrument="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
# The library is instrumented for memory errors only: its own arithmetic is not ours to judge.
scripts/build_sentencepiece.sh --prefix .deps/sentencepiece-fuzz --compiler "$compiler" \
  --flags "-fsanitize=fuzzer-no-link,address -g1"
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS="$instrument" -DKDA_FUZZ=ON -DKDA_TORCH=OFF -DKDA_CUDA=OFF -DKDA_BENCH=OFF \
  -DKDA_SENTENCEPIECE_DIR="$PWD/.deps/sentencepiece-fuzz" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -j "$(scripts/jobs.sh)" --target kda_fuzzers fuzz_make_seeds | tail -n 1

"$build/bin/fuzz_make_seeds" "$build/seeds"
cp .deps/sentencepiece-fuzz/test_model.model "$build/seeds/tokenizer_model/"
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/seeds/$target"
  echo "fuzz: $target for $seconds s"
  "$build/bin/${target}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 \
    -max_len=65536 -print_final_stats=1 -verbosity=1 -artifact_prefix="$build/findings/$target-" \
    "$build/corpus/$target" "$build/seeds/$target" "tests/fuzz/regressions/$target" \
    > "$build/$target.log" 2>&1 \
    || { tail -n 40 "$build/$target.log" >&2; echo "fuzz: $target found something" >&2; exit 1; }
  grep -E "^(#[0-9]+\s+DONE|stat::number_of_executed_units|stat::peak_rss_mb)" "$build/$target.log" || true
done
echo "fuzz: no findings"
