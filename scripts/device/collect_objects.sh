#!/usr/bin/env bash
# Gathers the host objects of a CUDA build (cmake -DKDA_CUDA=ON) for build_cuda.sh.
# Usage: collect_objects.sh BUILD_FOLDER OBJECT_FOLDER
set -euo pipefail
build=$1
out=$2
rm -rf "$out"
mkdir -p "$out"
cp "$build/lib/libkda.a" "$out/"
find "$build/src/cuda/CMakeFiles/kda_cuda.dir" -name '*.cpp.o' -exec ar rcs "$out/libkda_cuda_host.a" {} +
for library in libgtest.a libgtest_main.a libhwy.so.1; do
  for folder in /usr/lib/x86_64-linux-gnu /usr/lib; do
    if [[ -f $folder/$library ]]; then cp "$folder/$library" "$out/"; fi
  done
done
for folder in "$build"/tests/cuda/CMakeFiles/*.dir "$build"/bench/cuda/CMakeFiles/*.dir; do
  [[ -d $folder ]] || continue
  name=$(basename "$folder" .dir)
  [[ $name == kda_cuda_test_kit || $name == kda_bench_copy || $name == kda_stage_model ]] && continue
  mkdir -p "$out/$name"
  find "$folder" -name '*.o' -exec cp {} "$out/$name/" \;
  if [[ $name == cuda_bench ]]; then
    cp "$build"/bench/cuda/CMakeFiles/kda_bench_copy.dir/*.o "$out/$name/"
  fi
  (cd "$out" && ls "$name"/*.o) >"$out/$name.objects"
  if [[ $name == *test* || $name == cuda_precision ]]; then
    mkdir -p "$out/kit"
    cp "$build"/tests/cuda/CMakeFiles/kda_cuda_test_kit.dir/*.o "$out/kit/"
    cp "$build/lib/libkda_test_kit.a" "$out/"
    (cd "$out" && ls kit/*.o) >>"$out/$name.objects"
    if [[ $name == cuda_stage* ]]; then
      cp "$build/lib/libkda_stage_model.a" "$out/"
      echo libkda_stage_model.a >>"$out/$name.objects"
    fi
    echo libkda_test_kit.a >>"$out/$name.objects"
    [[ $name == *test* ]] && echo libgtest_main.a >>"$out/$name.objects"
  fi
done
find "$out" -name '*.o' -exec strip -g {} +
strip -g "$out"/*.a
du -sh "$out"
