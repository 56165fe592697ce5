#!/bin/bash
# Measure the census on a machine with an NVIDIA GPU, a CUDA toolkit (nvcc) and PyTorch.
# Usage: census_device.sh OUT SECONDS WORKLOADS.py PART[:N][@SECONDS] ...
#   parts: loads programs extreme[:repeats] cost[:repeats or load,load] duty[:repeats] idle[:repeats] lag kills[:runs] switching[:runs] smi
# OUT gets log.txt and results.tar.xz: one JSON a part, and the census files of loads, programs, lag and smi.
set -u
here=$(cd "$(dirname "$0")" && pwd); out=$1 seconds=$2 workloads=$3; shift 3
mkdir -p "$out"; work=$(mktemp -d /tmp/census-bench.XXXXXX); cuda=${CUDA_HOME:-/usr/local/cuda}
export PYTHONPATH=$here:$here/..${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
find='from nsysparse.census import build; c = build.find_cupti(); print(c.library, *("-I" + str(i) for i in c.includes))'
read -r so includes < <(python3 -c "$find")
{
  date -u; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; echo "CUPTI $so $includes"
  gcc -O2 -fPIC -shared $includes "$here/census_floor.c" -o "$work/floor.so" "$so" -Wl,-rpath,"$(dirname "$so")" || echo "no floor"
  "$cuda/bin/nvcc" -O2 -arch=native -std=c++17 "$here/census_launch.cu" -o "$work/census_launch" \
    || "$cuda/bin/nvcc" -O2 -std=c++17 "$here/census_launch.cu" -o "$work/census_launch" || echo "no native loads"
  timeout -k 5 $((seconds + 20)) python3 "$here/census_measure.py" "$work/json" "$work" "$((seconds - 20))" "$workloads" "$@"
} 2>&1 | tee "$out/log.txt"
mkdir -p "$work/json" "$work/dumps"; tar -C "$work" -cJf "$out/results.tar.xz" json dumps
ls -la "$out"; rm -rf "$work"
