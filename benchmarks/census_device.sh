#!/bin/bash
# Measure the census on a machine with an NVIDIA GPU, a CUDA toolkit (nvcc) and PyTorch.
# Usage: census_device.sh OUT SECONDS WORKLOADS.py PART[:N][@SECONDS] ...
#   parts: loads programs extreme[:repeats] cost[:repeats] duty[:repeats] idle[:repeats] lag kills[:runs] smi
# OUT gets one JSON a part, log.txt and dumps.tar.xz (the census files of loads, programs, lag and smi).
set -u
here=$(cd "$(dirname "$0")" && pwd); out=$1 seconds=$2 workloads=$3; shift 3
mkdir -p "$out"; work=$(mktemp -d /tmp/census-bench.XXXXXX); cuda=${CUDA_HOME:-/usr/local/cuda}
inc=$(dirname "$(find -L "$cuda/include" "$cuda/extras/CUPTI/include" "$cuda"/targets/*/include -maxdepth 1 -name cupti.h 2>/dev/null | head -1)")
lib=$(dirname "$(find -L "$cuda/lib64" "$cuda/extras/CUPTI/lib64" "$cuda"/targets/*/lib -maxdepth 1 -name 'libcupti.so*' 2>/dev/null | head -1)")
so=$(ls "$lib"/libcupti.so.1[0-9]* 2>/dev/null | head -1); so=${so:-$lib/libcupti.so}
{
  date -u; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; echo "CUPTI $so"
  gcc -O2 -fPIC -shared -I"$inc" -I"$cuda/include" "$here/census_floor.c" -o "$work/floor.so" "$so" -Wl,-rpath,"$lib" || echo "no floor"
  "$cuda/bin/nvcc" -O2 -arch=native -std=c++17 "$here/census_launch.cu" -o "$work/census_launch" || echo "no native loads"
  PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$here" \
    timeout -k 5 $((seconds + 20)) python3 "$here/census_measure.py" "$out" "$work" "$((seconds - 15))" "$workloads" "$@"
} 2>&1 | tee "$out/log.txt"
[ -d "$work/dumps" ] && tar -C "$work" -cJf "$out/dumps.tar.xz" dumps
ls -la "$out"; rm -rf "$work"
