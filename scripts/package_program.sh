#!/usr/bin/env bash
# The program as it is shipped: scripts/package_program.sh BUILD DIR fills DIR with bin, lib, share:
# the program, its libraries, the Python parts, completions for three shells, the manual page.
# Libraries that a user's machine may lack travel along. torch does not (package_tarball.py).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/package_program.sh BUILD DIR}
prefix=${2:?usage: scripts/package_program.sh BUILD DIR}

cmake --install "$build" --component program --prefix "$prefix" --strip >/dev/null
# Highway's name differs between releases of Debian and Ubuntu, OpenSSL may be absent.
for name in libhwy.so.1 libcrypto.so.3; do
  path=$(ldd "$prefix/bin/kda" "$prefix/lib/libkda_torch.so" |
    awk -v n=$name '$1 == n {print $3; exit}')
  [ -n "$path" ] || continue
  [ -f "$path" ] || { echo "package_program: $name is needed and not found" >&2; exit 1; }
  install -m 644 "$(readlink -f "$path")" "$prefix/lib/$name"
  file=$(basename "$(readlink -f "$path")")
  owner=$(dpkg -S "*/$file" 2>/dev/null | head -n 1 | cut -d: -f1) || true
  terms=/usr/share/doc/$owner/copyright
  [ ! -f "$terms" ] || install -D -m 644 "$terms" "$prefix/share/doc/kda/$name.copyright"
done
kda=$prefix/bin/kda
mkdir -p "$prefix"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$kda" completion bash >"$prefix/share/bash-completion/completions/kda"
"$kda" completion zsh >"$prefix/share/zsh/site-functions/_kda"
"$kda" completion fish >"$prefix/share/fish/vendor_completions.d/kda.fish"
mkdir -p "$prefix/share/man/man1"
python3 scripts/make_man.py "$kda" >"$prefix/share/man/man1/kda.1"
install -D -m 644 -t "$prefix/share/doc/kda" LICENSE README.md CHANGELOG.md docs/install.md
