#!/usr/bin/env bash
# Line coverage of the torch-free layers by their tests, as a table per file.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(scripts/jobs.sh)
cmake --preset coverage >/dev/null
cmake --build build/coverage --parallel "$jobs"
find build/coverage -name '*.gcda' -delete
ctest --test-dir build/coverage --output-on-failure --parallel "$jobs" -LE package >/dev/null ||
  { echo "coverage: tests failed; run ctest --test-dir build/coverage" >&2; exit 1; }
# inline kernels are compiled once per SIMD target; a line counts when any target ran it
.venv/bin/gcovr --root . --object-directory build/coverage --gcov-ignore-parse-errors \
  --merge-mode-functions=separate --exclude-throw-branches \
  --filter 'src/(core|dispatch|ref|cpu|io|text)/' --sort uncovered-percent "$@"
