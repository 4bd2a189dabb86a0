#!/usr/bin/env bash
# Runs the tests that docs/status.md shows and writes it: scripts/status.sh BUILD
# Programs that a build does not have are rows that say "not run". Results stay in BUILD/status.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/status.sh BUILD}
out=$build/status
rm -rf "$out"
mkdir -p "$out"
export OMP_NUM_THREADS=1

# program:filter
programs=(
  "ref_test:*"
  "conformance_test:All/ChunkConformance*:All/GateConformance*:All/RecurrentConformance*:All/PoolConformance*"
  "model_test:K3*:GatedMla*:Moe_*:Router_*:Experts_*:Situ_*:Balance_*:AttnRes_*:Decode_*"
  "kda_train_test:Overfit.*:Resume.*:Accumulation.*:RunFolder.*:NonFinite.*"
  "inspect_test:*"
  "view_test:*"
)
for entry in "${programs[@]}"; do
  program=${entry%%:*}
  [ -x "$build/bin/$program" ] || continue
  echo "== $program"
  "$build/bin/$program" --gtest_brief=1 --gtest_filter="${entry#*:}" \
    --gtest_output="xml:$out/$program.xml" >"$out/$program.log" 2>&1 || tail -n 5 "$out/$program.log"
done
echo "== Python"
files=()
for name in chunk gate recurrent hf_checkpoints notes learn; do files+=("tests/python/test_$name.py"); done
KDA_EXECUTABLE=$PWD/$build/bin/kda .venv/bin/python -m pytest -q -p no:cacheprovider \
  -o junit_family=xunit1 --junitxml="$out/python.xml" \
  "${files[@]}" >"$out/python.log" 2>&1 || tail -n 5 "$out/python.log"
if [ -x "$build/bin/view_serve" ]; then
  KDA_VIEW_SERVE=$PWD/$build/bin/view_serve .venv/bin/python -m pytest -q -p no:cacheprovider \
    -o junit_family=xunit1 --junitxml="$out/view_python.xml" tests/view \
    >"$out/view_python.log" 2>&1 || tail -n 5 "$out/view_python.log"
fi

commit=$("$build/bin/kda" --version 2>/dev/null | sed -n 's/.*(commit \([^)]*\)).*/\1/p')
scripts/status_table.py "$out"/*.xml --out docs/status.md --device docs/status-gpu.json \
  --commit "Program and library of commit ${commit:-unknown}, tests on $(date -u +%Y-%m-%d)." &&
  echo "docs/status.md"
