#!/usr/bin/env bash
# Every check and test of a built tree: scripts/test.sh BUILD. Needs no GPU (GPU tests skip and say
# so). Ends with one line per stage and the exit status of the first failure.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/test.sh BUILD}
jobs=$(scripts/jobs.sh)
status=0
summary=()

stage() {
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then summary+=("ok    $name ($((SECONDS - began)) s)"); else
    summary+=("FAILED $name ($((SECONDS - began)) s)")
    status=1
  fi
}

stage "format" scripts/format.sh --check
stage "public headers compile alone" cmake --build "$build" --target all_verify_interface_header_sets
# One line per 250 cases that pass; all of what fails or skips.
cpp_tests() {
  ctest --test-dir "$build" --output-on-failure --parallel "$jobs" --timeout 900 |
    awk '/^ *Start +[0-9]+: /{next} / Passed +[0-9.]+ sec/{if (++n % 250 == 0) {print n " passed"; fflush()} next} {print; fflush()}'
}
stage "C++ tests" cpp_tests
stage "Python tests" env OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -p no:cacheprovider tests/python

grep -q '^KDA_CUDA:BOOL=ON' "$build/CMakeCache.txt" || summary+=(
  "note  the CUDA code was not compiled: make test-cuda does that")
printf '\n'
printf '%s\n' "${summary[@]}"
exit $status
