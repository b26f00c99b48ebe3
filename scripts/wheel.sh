#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel that others install: with the Torch and JAX operators, and tagged with the oldest glibc that
# it runs with (auditwheel; what it links is libtorch alone, which the process has loaded).
#
#   bash scripts/wheel.sh OUT [cuda]     OUT: a folder; cuda: with the CUDA backend, by nvcc or $CUDACXX,
#                                        machine code for 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, and PTX
#
# A wheel by nvcc 12 runs with drivers for CUDA 12 too. Before 12.8 it knows no 10.0 and 12.0: they take PTX.
#
# Needs .venv with python/requirements-torch.txt and -jax.txt (scripts/test.sh torch makes it).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${2:-cuda}" != cuda ]; then
  sed -n '3,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
export CXX=${CXX:-c++}  # as CMake's own choice is spelt: ccache finds again what another build compiled
settings=(--config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON
  --config-settings=cmake.define.SLUICE_TORCH=ON --config-settings=cmake.define.SLUICE_JAX=ON)
if [ "${2:-}" = cuda ]; then
  further="86;89"
  nvcc=${CUDACXX:-nvcc}
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ "$(printf '%s\n' 12.8 "$release" | sort -V | head -1)" != 12.8 ] || further+=";100;120"
  settings+=(--config-settings=cmake.define.SLUICE_CUDA=ON
    "--config-settings=cmake.define.SLUICE_CUDA_FURTHER=$further"
    "--config-settings=cmake.define.CMAKE_CUDA_COMPILER=$(command -v "$nvcc")"
    --config-settings=build-dir=build/wheel-cuda)
fi
.venv/bin/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  "${settings[@]}" --wheel-dir "$plain" .
PATH=$PWD/.venv/bin:$PATH auditwheel repair --exclude 'libtorch*.so' --plat auto \
  --wheel-dir "$1" "$plain"/*.whl 2> "$plain/log" || { cat "$plain/log" >&2; exit 1; }
ls -l "$1"/*.whl
