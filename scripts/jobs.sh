#!/usr/bin/env bash
# Prints how many compile jobs fit: one per core, one per 2 GB of available memory, at least one.
set -eu
cores=$(nproc)
memory=$(awk '/MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
[ "$memory" -lt 1 ] && memory=1
[ "$memory" -lt "$cores" ] && cores=$memory
echo "$cores"
