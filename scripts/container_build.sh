#!/usr/bin/env bash
# The steps of the Dockerfile, so that they run in any Debian 12 or Ubuntu 24.04 root, with or
# without a container engine (docs/containers.md). As root, from a copy of the source tree:
#   container_build.sh prepare       compilers, .venv with torch and clients, SentencePiece, nvcc
#   container_build.sh build         program, CUDA libraries, wheel
#   container_build.sh tests         the tests and benchmarks as well
#   container_build.sh pack DIR      DIR: what the image holds of the build; the wheel into .venv
#   container_build.sh runtime       in the image itself: packages that running needs, user, folders
# KDA_CUDA_ARCHS: GPU architectures; KDA_COMMIT: the commit of a tree without .git.
set -euo pipefail

forget_lists() { rm -rf /var/lib/apt/lists/* .deps/apt.log; }

configure() { # configure TESTS
  cmake --preset cuda -B build/image -DKDA_TESTS="$1" -DKDA_BENCH="$1" \
    "-DKDA_CUDA_ARCHS=${KDA_CUDA_ARCHS:-80-real;90a-real;100a-real;120a-real}"
}

prepare() {
  scripts/setup.sh
  scripts/setup_cuda.sh
  .venv/bin/python -m pip install -q --disable-pip-version-check \
    -r scripts/requirements-container.txt
  forget_lists
}

build() {
  configure OFF
  cmake --build build/image --parallel "$(scripts/jobs.sh)" \
    --target kda_program kda_torch_cuda kda_model_cuda
  .venv/bin/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
}

tests() {
  configure ON
  cmake --build build/image --parallel "$(scripts/jobs.sh)"
}

pack() { # pack DIR
  .venv/bin/python scripts/package_program.py build/image "$1"
  install -m 755 scripts/container_help.sh "$1/bin/container_help"
  # The package from the wheel in place of the tree's.
  rm -f .venv/lib/python3*/site-packages/kda-dev.pth
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall \
    dist/kda-*.whl
}

runtime() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  # python3-dev's headers: torch.compile builds small modules with them.
  apt-get install -y -q --no-install-recommends python3 python3-dev gcc libc6-dev ca-certificates \
    bash-completion >/dev/null
  forget_lists
  local uid=${KDA_UID:-1000} taken
  taken=$(getent passwd "$uid" | cut -d: -f1 || true)
  [ -z "$taken" ] || userdel -r "$taken" 2>/dev/null || true  # Ubuntu's images have a user 1000
  useradd --create-home --uid "$uid" --shell /bin/bash kda
  mkdir -p /workspace/kda/{data,runs,ckpts} /cache/huggingface
  chown -R kda: /workspace /cache
}

case "${1:-}" in
  prepare | build | tests | runtime) "$1" ;;
  pack) pack "${2:?usage: container_build.sh pack DIR}" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
