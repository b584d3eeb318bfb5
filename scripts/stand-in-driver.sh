#!/usr/bin/env bash
# Builds the stand-in driver, a libcuda.so.1 for machines without a GPU, and a libnvidia-ml.so.1 beside it, and prints their
# folder:
#
#   folder=$(scripts/stand-in-driver.sh [FOLDER])      target/stand-in without one
#   LD_LIBRARY_PATH=$folder:$PWD/.cache/tools/cuda/nvidia/cu13/lib evergraph bench train --device cuda:0 ...
#
# What it does, and the environment variables that it reads, are at the top of tests/it/gpu/driver.cpp;
# the other library is tests/it/gpu/nvml.cpp.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$here/target/stand-in}
mkdir -p "$folder"
# Products and sums are fused, as by a compiler for a GPU, if the CPU can.
flags=-ffp-contract=fast
! grep -qw fma /proc/cpuinfo || flags="$flags -mfma"
# Into place in one step, since a program may be loading it.
g++ -std=c++17 -O2 -g1 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function $flags \
    -shared -fPIC -fvisibility=hidden -Wl,-z,nodelete -Wl,-soname,libcuda.so.1 \
    -o "$folder/libcuda.so.1.$$" "$here/tests/it/gpu/driver.cpp"
mv "$folder/libcuda.so.1.$$" "$folder/libcuda.so.1"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 \
    -o "$folder/libnvidia-ml.so.1.$$" "$here/tests/it/gpu/nvml.cpp"
mv "$folder/libnvidia-ml.so.1.$$" "$folder/libnvidia-ml.so.1"
# Without the number it is found first.
ln -sf libcuda.so.1 "$folder/libcuda.so"
echo "$folder"
