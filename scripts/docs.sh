#!/usr/bin/env bash
# Reference of the public interfaces in build/docs: cpp (Doxygen over include/kda), python (pdoc).
# Any warning is an error: an undocumented public name, a wrong reference, a type that is not there.
# Needs Debian's doxygen; pdoc comes into .venv. The Python part needs a built op library.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v doxygen >/dev/null || {
  echo "docs: error: doxygen is missing (apt-get install --no-install-recommends doxygen)" >&2
  exit 1
}
rm -rf build/docs
mkdir -p build/docs
doxygen docs/api/Doxyfile
.venv/bin/python -c 'import pdoc' 2>/dev/null ||
  .venv/bin/python -m pip install -q --disable-pip-version-check -r scripts/requirements-docs.txt
# kda.corpus has no public functions: it is a program (docs/data.md).
OMP_NUM_THREADS=1 .venv/bin/python -W error -m pdoc -o build/docs/python \
  kda kda.integrations kda.evaluation kda.monitor '!kda.corpus'
echo "docs: build/docs/cpp/index.html, build/docs/python/index.html"
