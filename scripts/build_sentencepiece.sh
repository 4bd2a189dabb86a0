#!/usr/bin/env bash
# Builds SentencePiece as two static libraries with hidden symbols, for cmake/SentencePiece.cmake.
#
# Why not the distribution's shared library: it exports a variable `FLAGS_minloglevel` that libc10
# exports too with another size, and whichever loads second writes over the other's memory.
#
# Usage: scripts/build_sentencepiece.sh [--prefix DIR] [--compiler CXX] [--flags "FLAGS"] [--jobs N]
#   --prefix    where headers and libraries go          (default: .deps/sentencepiece)
#   --compiler  C++ compiler                            (default: c++)
#   --flags     extra compiler flags, e.g. sanitizers   (default: none)
#   --jobs      parallel compilations                   (default: 2)
# Needs: the project's .venv (pip), cmake, ninja, a C++17 compiler; ccache is used when present.
# Does nothing when the prefix already holds this version built with the same compiler and flags.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.1
sha256=8138cec27c2f2282f4a34d9a016e3374cd40e5c6e9cb335063db66a0a3b71fad
prefix=.deps/sentencepiece
compiler=c++
flags=
jobs=2
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix) prefix=$2; shift 2 ;;
    --compiler) compiler=$2; shift 2 ;;
    --flags) flags=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "build_sentencepiece: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

stamp="sentencepiece $version sha256 $sha256 compiler $("$compiler" --version | head -n 1) flags '$flags'"
if [ -f "$prefix/stamp" ] && [ "$(cat "$prefix/stamp")" = "$stamp" ]; then
  echo "build_sentencepiece: $prefix is up to date (SentencePiece $version)"
  exit 0
fi

archive=.deps/src/sentencepiece-$version.tar.gz
check() { echo "$sha256  $archive" | sha256sum --check --status; }
if ! { [ -f "$archive" ] && check; }; then
  python=${KDA_PYTHON:-.venv/bin/python}
  if [ ! -x "$python" ]; then
    echo "build_sentencepiece: no Python at $python; run 'make setup' or set KDA_PYTHON" >&2
    exit 1
  fi
  echo "build_sentencepiece: downloading the source package $version into .deps/src"
  mkdir -p .deps/src
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary sentencepiece "sentencepiece==$version" --dest .deps/src
fi
if ! check; then
  echo "build_sentencepiece: $archive has another sha256 than the pinned one; delete it and retry" >&2
  exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/kda-sentencepiece.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "build_sentencepiece: unpacking and compiling (about a minute on two cores)"
tar -xzf "$archive" -C "$work"
source=$work/sentencepiece-$version/sentencepiece
launcher=()
if command -v ccache > /dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1  # the folder's name is random, the objects are not
fi
cmake -S "$source" -B "$work/build" -G Ninja "${launcher[@]}" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags" \
  -DSPM_ENABLE_SHARED=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON \
  -DCMAKE_POLICY_VERSION_MINIMUM=3.5 > "$work/configure.log" 2>&1 \
  || { cat "$work/configure.log" >&2; exit 1; }
cmake --build "$work/build" -j "$jobs" --target sentencepiece-static sentencepiece_train-static \
  > "$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" >&2; exit 1; }

rm -rf "$prefix"
mkdir -p "$prefix/lib" "$prefix/include/sentencepiece" "$prefix/include/google"
find "$work/build" -name 'libsentencepiece*.a' -exec cp {} "$prefix/lib/" \;
cp "$source"/src/sentencepiece_processor.h "$source"/src/sentencepiece_trainer.h \
  "$source"/src/builtin_pb/sentencepiece_model.pb.h "$source"/src/builtin_pb/sentencepiece.pb.h \
  "$prefix/include/sentencepiece/"
cp -r "$source"/third_party/protobuf-lite/google/protobuf "$prefix/include/google/"
cp "$work/sentencepiece-$version"/sentencepiece/LICENSE "$prefix/" 2> /dev/null || true
cp "$work/sentencepiece-$version"/test/test_model.model \
  "$work/sentencepiece-$version"/test/test_ja_model.model "$prefix/"
echo "$stamp" > "$prefix/stamp"
echo "build_sentencepiece: installed $(ls "$prefix/lib" | tr '\n' ' ')in $prefix"
