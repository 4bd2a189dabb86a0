#!/usr/bin/env bash
# Rewrites C++ and Python to the project's format; with --check only reports, exit 1 on a difference.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-write}
mapfile -t cpp < <(git ls-files --cached --others --exclude-standard -- \
  '*.h' '*.cpp' '*.cu' '*.cuh' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
if [ "$mode" = --check ]; then
  .venv/bin/clang-format --dry-run --Werror "${cpp[@]}"
  .venv/bin/ruff format --check -q python tests scripts bench docs/notes docs/learn
  .venv/bin/ruff check -q python tests scripts bench docs/notes docs/learn
else
  .venv/bin/clang-format -i "${cpp[@]}"
  .venv/bin/ruff format -q python tests scripts bench docs/notes docs/learn
  .venv/bin/ruff check -q --fix python tests scripts bench docs/notes docs/learn
fi
