#!/usr/bin/env bash
# Installs what this project needs and does not find: Debian/Ubuntu packages, a Python environment
# in .venv (with torch), and a static SentencePiece in .deps. Safe to run again; changes nothing
# that is already right. Works as root or with sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build ccache git python3 python3-venv python3-dev
          libhwy-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libssl-dev libcpp-httplib-dev
          pkg-config libgtest-dev libbenchmark-dev)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

install_packages() {
  command -v dpkg-query >/dev/null || die "this script knows Debian and Ubuntu only; install these
  packages' equivalents yourself: ${packages[*]}"
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages (about a minute): ${missing[*]}"
  local run=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing and neither root nor sudo is here.
  Ask an administrator for: apt-get install ${missing[*]}"
    run=(sudo)
  fi
  "${run[@]}" apt-get update -q >/dev/null ||
    say "warning: apt-get update failed; trying with the package lists that are here"
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" >.deps/apt.log 2>&1 ||
    { tail -n 20 .deps/apt.log >&2; die "apt-get install failed (full log: .deps/apt.log)"; }
}

# A python3 that can make environments: pyenv and the like count, not only Debian's.
make_venv() {
  local stamp=.venv/.kda-setup wanted
  wanted=$(sha256sum scripts/requirements.txt | cut -d' ' -f1)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x .venv/bin/python ]; then return; fi
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with $(python3 --version)"
    python3 -m venv .venv
  fi
  say "installing Python packages into .venv (torch 2.11.0 and its libraries: about 3 GB to fetch once, some minutes)"
  .venv/bin/python -m pip install -q --disable-pip-version-check -r scripts/requirements.txt
  # `import kda` works from anywhere with this environment.
  local site
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  printf '%s\n' "$PWD/python" >"$site/kda-dev.pth"
  printf '%s' "$wanted" >"$stamp"
}

mkdir -p .deps
install_packages
make_venv
scripts/build_sentencepiece.sh
say "ready"
