#!/usr/bin/env bash
# Installs a build with SLUICE_CUTLASS and compiles the example's host test against what was installed alone.
# Usage: consume_cutlass.sh BUILD CMAKE NVCC CUTLASS_DIR HALVE_TEST
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$2" --install "$1" --prefix "$work/installed" > "$work/install.log"
"$2" -S "$here/cutlass" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/installed" \
  -DCMAKE_CUDA_COMPILER="$3" -DCUTLASS_DIR="$4" -DHALVE_TEST="$5" > "$work/configure.log" \
  || { cat "$work/configure.log"; exit 1; }
"$2" --build "$work/build"
"$work/build/consumer" | tail -1
