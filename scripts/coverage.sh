#!/usr/bin/env bash
# Line coverage of the torch-free layers by their tests: a table per file, then one per folder.
#
# Usage: scripts/coverage.sh [GCOVR-OPTION...]
# Fails when a test fails or a folder has less than 90 % of its lines covered. SIMD kernels are
# compiled once per instruction set from the same lines; a line counts when any of them ran it.
# Instruction sets that this machine lacks are compiled but cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 0
fi

build=build/coverage
jobs=$(scripts/jobs.sh)
cmake --preset coverage >/dev/null
cmake --build "$build" --parallel "$jobs"
find "$build" -name '*.gcda' -delete

# Whole programs, not one process per test: each process merges its counters into the files.
run() {
  "$@" >"$build/test.log" 2>&1 || { tail -n 40 "$build/test.log" >&2
    echo "coverage: failed: $*" >&2
    exit 1; }
}
for program in "$build"/bin/*_test; do
  echo "coverage: running $(basename "$program")"
  run env OMP_NUM_THREADS=1 "$program" --gtest_brief=1
done
run ctest --test-dir "$build" --output-on-failure -R '^fuzz_replay_'

.venv/bin/gcovr --root . --object-directory "$build" -j "$jobs" --gcov-ignore-parse-errors \
  --merge-mode-functions=separate --exclude-throw-branches \
  --filter 'src/(core|dispatch|ref|cpu|io|text)/' --sort uncovered-percent \
  --txt --json-summary "$build/summary.json" "$@"

.venv/bin/python - "$build/summary.json" <<'PYTHON'
import json
import sys

MINIMUM = 90.0  # per cent of lines
folders: dict[str, list[int]] = {}
with open(sys.argv[1], encoding="utf-8") as file:
    for entry in json.load(file)["files"]:
        counts = folders.setdefault(entry["filename"].rsplit("/", 1)[0], [0, 0])
        counts[0] += entry["line_covered"]
        counts[1] += entry["line_total"]
print(f"{'folder':<14}{'lines':>8}{'covered':>9}{'percent':>9}")
low = []
for folder, (covered, total) in sorted(folders.items()):
    percent = 100.0 * covered / total
    print(f"{folder:<14}{total:>8}{covered:>9}{percent:>9.1f}")
    if percent < MINIMUM:
        low.append(folder)
if low:
    sys.exit(f"coverage: below {MINIMUM:.0f} % of lines: {', '.join(low)}")
PYTHON
