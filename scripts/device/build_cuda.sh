#!/usr/bin/env bash
# Compiles the CUDA sources on a GPU machine and links the test and bench programs with objects that
# were built elsewhere (collect_objects.sh): the GPU machine needs nvcc and g++ only.
# Usage: build_cuda.sh OBJECT_FOLDER OUT_FOLDER [nvcc options...]
set -euo pipefail
objects=$1
out=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
pids=()
for source in "$root"/src/cuda/{launch,inst,hopper}/*.cu; do
  nvcc -std=c++20 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a "$@" -I"$root/src" \
    -I"$root/include" -c "$source" -o "$out/$(basename "$source").o" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
ar rcs "$out/libkda_cuda_device.a" "$out"/*.cu.o
for list in "$objects"/*.objects; do
  program=$(basename "$list" .objects)
  mapfile -t parts < <(sed "s|^|$objects/|" "$list")
  g++ -o "$out/$program" "${parts[@]}" "$objects/libkda_cuda_host.a" "$out/libkda_cuda_device.a" \
    "$objects/libkda.a" "$objects"/libgtest.a "$objects"/libhwy.so.1 -Wl,-rpath,"$(realpath "$objects")" \
    -L/usr/local/cuda/lib64 -lcudart_static -lgomp -lpthread -ldl -lrt \
    2>"$out/$program.link.log" || { cat "$out/$program.link.log"; exit 1; }
done
