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
  --filter 'src/(core|dispatch|ref|cpu|io|text)/' --json "$build/lines.json" "$@" 2>"$build/gcovr.log"

.venv/bin/python - "$build/lines.json" <<'PYTHON'
import json
import sys

MINIMUM = 90.0  # per cent of lines
with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)["files"]
folders: dict[str, list[int]] = {}
rows = []
for entry in report:
    # a line of a template appears once per instance
    counts: dict[int, int] = {}
    for line in entry["lines"]:
        number = line["line_number"]
        counts[number] = max(counts.get(number, 0), line["count"])
    missing = [number for number, count in sorted(counts.items()) if count == 0]
    rows.append((len(missing) / max(1, len(counts)), entry["file"], len(counts), missing))
    folder = folders.setdefault(entry["file"].rsplit("/", 1)[0], [0, 0])
    folder[0] += len(counts) - len(missing)
    folder[1] += len(counts)
for share, name, lines, missing in sorted(rows, reverse=True):
    text = ",".join(map(str, missing[:16])) + (",..." if len(missing) > 16 else "")
    print(f"{name:<36}{lines:>6}{100 * (1 - share):>7.1f}  {text}")
print(f"\n{'folder':<14}{'lines':>8}{'covered':>9}{'percent':>9}")
low = []
for name, (covered, lines) in sorted(folders.items()):
    percent = 100 * covered / lines
    print(f"{name:<14}{lines:>8}{covered:>9}{percent:>9.1f}")
    if percent < MINIMUM:
        low.append(name)
if low:
    sys.exit(f"coverage: below {MINIMUM:.0f} %: {', '.join(low)}")
PYTHON
