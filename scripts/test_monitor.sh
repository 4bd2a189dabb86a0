#!/usr/bin/env bash
# Tests of `kda monitor` with the clients of all dashboards, in an environment of their own:
# scripts/test_monitor.sh [pytest options]. What .venv has (torch, pytest, plotly) is used from there.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/monitor-venv
python=$venv/bin/python
packages=(tensorboard swanlab wandb)
if [[ ! -x $python ]]; then
  .venv/bin/python -m venv "$venv"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kda-venv.pth"
fi
"$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
# A missing client would be skipped: here it is a failure.
"$python" -c 'import sys, importlib.util as u; sys.exit(sum(u.find_spec(p) is None for p in sys.argv[1:]))' \
  "${packages[@]}"
exec env OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider -m "slow or not slow" "$@" \
  tests/python/test_monitor_*.py
