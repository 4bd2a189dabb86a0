#!/usr/bin/env bash
# docs/notes/notes.tex -> BUILD/notes/notes.pdf: scripts/build_notes.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/${1:?usage: scripts/build_notes.sh BUILD}/notes
packages="latexmk texlive-latex-recommended texlive-pictures lmodern"
for tool in latexmk pdflatex; do
  if ! command -v "$tool" >/dev/null; then
    echo "make notes: $tool is missing. Debian, Ubuntu: sudo apt-get install --no-install-recommends $packages" >&2
    exit 1
  fi
done
mkdir -p "$out"
cd docs/notes
if ! latexmk -pdf -interaction=nonstopmode -halt-on-error -outdir="$out" notes.tex >"$out/latexmk.log" 2>&1; then
  grep -A4 '^!' "$out/notes.log" >&2 || tail -n 20 "$out/latexmk.log" >&2
  echo "make notes: failed, see $out/latexmk.log" >&2
  exit 1
fi
if grep -E '^(LaTeX|Package natbib) Warning: .*(undefined|multiply)' "$out/notes.log" >&2; then
  echo "make notes: undefined references" >&2
  exit 1
fi
echo "${out#"$OLDPWD"/}/notes.pdf"
