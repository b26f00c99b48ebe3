#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One command on a GPU host: tests, sanitizers, verification, ceilings, benches. Leaves JSON and
# logs in a folder, prints a short table last, exits 0 only if every step passed.
#
#   scripts/gpu_check.sh OUT [BUILD]
#
# OUT    results; made if missing, flat, one log a step
# BUILD  a build folder that holds bin/ and lib/ (they are relocatable: carry them from another
#        machine); without it build/cuda is configured and built here
# SLUICE_GPU_CHECK_STEPS="tests sanitize …" runs these steps alone. Some run only if asked for:
# `results`, the GPU lists of bench/problems (bench/results/h200 keeps their files), most
# telling first, or one of them, as `results.decode`; `random`, 400 random shapes of mlp and of
# gate_up beside cuBLASLt with the regret of each fifth, SLUICE_PART (1/8, 2/8, ...) of them, and 48 by mma.sync; a file
# of other parts in SLUICE_KEPT is completed; `models_tp`, the shapes of models at tensor parallel,
# or those of some token counts, as `models_tp.2048`; `soak`, nine minutes of mixed plans; `torch`, the
# Torch operators and vLLM's layers on the GPU, by SLUICE_SITE, a folder with the wheel; `python`, the programs of
# bench/ that need Torch, by that wheel and PYTHONPATH's engines and rivals, or one, as `python.numerics`.
set -uo pipefail

if [[ $# -lt 1 || $# -gt 2 || $1 == -* ]]; then
  sed -n '3,20p' "$0" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
build=${2:-$root/build/cuda}
steps=${SLUICE_GPU_CHECK_STEPS:-info tests verify bench tune sanitize}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >"$out/gpu.log" 2>&1; then
  echo "gpu_check: no GPU here (nvidia-smi finds none); nothing was run" >&2
  exit 3
fi

if [[ $# -eq 1 ]]; then
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON &&
    cmake --build "$build" -j "$(nproc)" || exit 1
fi
tests=$build/bin/sluice_gpu_tests
cli=$build/bin/sluice
for program in "$tests" "$cli"; do
  if [[ ! -x $program ]]; then
    echo "gpu_check: $program is missing; build first or name the build folder" >&2
    exit 2
  fi
done

# cuBLASLt of the toolkit, or of a Python environment, where the loader does not find it.
if ! ldconfig -p 2>/dev/null | grep -q libcublasLt; then
  for folder in /usr/local/cuda/lib64 \
    "$(python3 -c 'import nvidia, glob; print((sorted(f for p in nvidia.__path__ for f in glob.glob(p + "/cu*/lib")) + [""])[0])' 2>/dev/null)"; do
    if compgen -G "$folder/libcublasLt.so.1[23]" >/dev/null; then
      export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      break
    fi
  done
fi
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
export SLUICE_REQUIRE_GPU=1

names=() codes=() seconds=()
# step NAME SECONDS COMMAND…: runs it with a time limit, output to OUT/NAME.log.
step() {
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  [[ " $steps " == *" ${name%%.*} "* || " $steps " == *" $name "* ]] || return 0
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  names+=("$name") codes+=("$code") seconds+=($((SECONDS - start)))
  echo "== $name: exit $code, $((SECONDS - start)) s"
  [[ $code -eq 0 ]] || tail -n 15 "$out/$name.log"
}

# The sanitizers slow kernels by two orders of magnitude: small shapes, one test of each kind.
small='*SmallestAlignment*:GpuRun.CanBeCapturedAndReplayed:GpuRun.PlansShareAWorkspace*'
small+=':Variants/FewTiles.*:GpuDecode.OneTileOfEachOperator:GpuTensorMap.PlainMatrices*'
small+=':GpuCompare.*:GpuLaunch.ProgrammaticLaunches*:GpuGemm.CopiesAFewRows:GpuAnyWidth.*'

# All tools at once, each in shards: most of their time is the host's. Fails if one of them does.
# Not cuBLASLt's own kernels, in which racecheck reports hazards.
sanitize() {
  local failed=0 tool shards=$(($(nproc) / $#)) i pids=()
  [[ $shards -ge 1 ]] || shards=1
  for tool in "$@"; do
    for ((i = 0; i < shards; i++)); do
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$tool" \
        --kernel-regex-exclude kns=nvjet --error-exitcode 9 --print-limit 20 \
        "$tests" --gtest_filter="$small" --gtest_brief=1 >"$out/$tool.$i.log" 2>&1 &
      pids+=($!)
    done
  done
  for i in "${pids[@]}"; do wait "$i" || failed=1; done
  for tool in "$@"; do
    for ((i = 0; i < shards; i++)); do cat "$out/$tool.$i.log"; done >"$out/$tool.log"
    rm -f "$out/$tool".[0-9]*.log
    echo "$tool: $(grep -hE '(ERROR|RACECHECK) SUMMARY' "$out/$tool.log" || echo 'no summary')"
    grep -hE 'FAILED|PASSED' "$out/$tool.log"
  done
  return $failed
}

# The oracle is the host's work and one thread's: a shard for every second core, all at once; then,
# alone on the device, the tests that time it or count its memory.
run_shards() {
  local shards=$(($(nproc) / 2)) failed=0 i pids=() alone='GpuScheduler.*:GpuHarness.*:GpuSoak.*'
  [[ $shards -ge 1 ]] || shards=1
  for ((i = 0; i < shards; i++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$tests" --gtest_brief=1 \
      --gtest_filter="-$alone" >"$out/tests.$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    wait "${pids[i]}" || failed=1
    cat "$out/tests.$i.log"
  done
  "$tests" --gtest_brief=1 --gtest_filter="$alone" || failed=1
  return $failed
}

verify_list() {
  local failed=0 case
  for case in 192x4096x14336:gate_up 128x4096x14336:down 128x4096x14336:mlp \
    16x4096x14336:mlp 1x4096x14336:mlp 512x576x1536:mlp:add_norm:residual_norm_input \
    64x896x4864:mlp_grad:bias:bias_down \
    256x2880x2880:mlp:clamped_swiglu:interleaved1:bias:bias_down 4096x14336x14336:gate_mul \
    1024x64x14336:gate_mul_grad 96x2048x8192:gate_up_grad:fp16 33x1000x3001:mlp:fp32:gelu_erf; do
    echo "-- $case"
    "$cli" verify "$case" || failed=1
  done
  return $failed
}

cat >"$out/problems.txt" <<'LIST'
1x576x1536:mlp
16x576x1536:mlp
512x576x1536:mlp
128x4096x14336:mlp
192x4096x14336:gate_up
512x4096x14336:gate_up
128x4096x14336:down
1x4096x14336:mlp
4096x1x14336:gate_mul
LIST

step info 30 "$cli" info
export -f run_shards
export tests out
step tests 240 bash -c run_shards
export -f verify_list
export cli
step verify 60 bash -c verify_list
step bench 110 "$cli" bench --file "$out/problems.txt" --json "$out/bench.json"
step tune 40 "$cli" tune --model llama-3.1-8b --tokens 1,16,128 --seconds 15 --candidates \
  --tune-cache "$out/tune.cache"
# results LIST SECONDS OPTION…: OUT/LIST.json, as bench/results/h200/LIST.json is made.
results() {
  step "results.$1" "$2" "$cli" bench --file "$root/bench/problems/$1.txt" --json "$out/$1.json" "${@:3}"
}
results decode 150 --milliseconds 20 --baseline cublaslt_chain
results decode_fp16 150 --milliseconds 20 --baseline cublaslt_chain
results split_k 90 --variant cuda.sm90 --milliseconds 100
results decode_engine 90 --pass decode --milliseconds 20 --baseline cublaslt_chain
results prefill_gate_up 150 --milliseconds 120
results prefill_mlp 150 --milliseconds 150
results prefill_gemm 120 --milliseconds 60 --baseline cublaslt_gemm
results gate_mul 150
results training_steps 90 --pass full --milliseconds 150
results training 120
results few_tokens 90 --milliseconds 100
results few_tokens_models 240 --milliseconds 60 --baseline cublaslt_chain
results residual 60 --milliseconds 60
results prefill_models 90
results prefill_layouts 60 --milliseconds 60
results sm80 90 --variant cuda.sm80
results sm80_decode 60 --max-capability 8.0 --milliseconds 20 --baseline cublaslt_chain --baseline cublaslt_gemm
results decode_every_m_small 120 --milliseconds 2 --baseline cublaslt_chain
results decode_every_m 200 --milliseconds 2 --baseline cublaslt_chain
results decode_every_m_wide 420 --milliseconds 2 --baseline cublaslt_chain
# random NAME OP: OUT/random_NAME.json, as bench/results keeps it.
random() {
  local file=random_$1.json
  [[ -z ${SLUICE_KEPT:-} || ! -f $SLUICE_KEPT/$file ]] || cp "$SLUICE_KEPT/$file" "$out/$file"
  step "random.$1" 590 "$cli" bench --random 400 --seed 20261124 --op "$2" --regret --samples \
    --part "${SLUICE_PART:-1/8}" --milliseconds 30 --json "$out/$file"
}
random 20261124 mlp
random gate_up_20261124 gate_up
step random.sm80_decode 120 "$cli" bench --random 48 --seed 20261130 --tokens 1-64 --max-capability 8.0 \
  --regret --milliseconds 10 --memory 8000 --json "$out/random_sm80_decode.json"
# Shapes of models at tensor parallel, in parts of some token counts: OUT/models_tp_TOKENS.json.
for tokens in 1,16 64,128 256,512 2048 8192; do
  step "models_tp.${tokens//,/_}" 590 "$cli" bench --model all --tp 2,4,8 --tokens "$tokens" \
    --baseline cublaslt_chain --milliseconds 20 --json "$out/models_tp_${tokens//,/_}.json"
done
step soak 600 env SLUICE_SOAK_SECONDS=540 "$tests" --gtest_filter='GpuSoak.*'
export PYTHONPATH=${SLUICE_SITE:-$root/build/torch/site}${PYTHONPATH:+:$PYTHONPATH}
step torch 300 python3 -B "$root/tests/torch/run.py"
# by NAME SECONDS PROGRAM ARGUMENT…: OUT/NAME.json by a program of bench/.
by() {
  step "python.$1" "$2" python3 -B "$root/bench/$3" "${@:4}" "$out/$1.json"
}
by numerics 590 numerics.py numerics
by memory 200 numerics.py memory
by gradients 200 gradients.py
by torch_layer 120 torch_gpu.py layer
by torch_host 60 torch_gpu.py host
by any_width 120 torch_gpu.py any_width
by perplexity 300 real_model.py perplexity
by training_run 200 real_model.py training
by generate 590 hf_generate.py --seconds 450
by vllm_decode 590 vllm_decode.py --seconds 450
by sglang_decode 590 sglang_decode.py --seconds 450
step python.counters 300 python3 -B "$root/bench/counters.py" "$build" "$out/counters.json" \
  --file "$root/bench/problems/counters.txt"
for list in gate_up_rivals training_rivals gate_mul_forms; do
  by "$list" 590 gpu_rivals.py "$build" --file "$root/bench/problems/$list.txt" --limit 540 --json
done
export -f sanitize
export small
step sanitize 400 bash -c 'sanitize memcheck racecheck synccheck initcheck'

echo
printf '%-24s %6s %6s\n' step exit s
failed=0
for i in "${!names[@]}"; do
  printf '%-24s %6d %6d\n' "${names[i]}" "${codes[i]}" "${seconds[i]}"
  [[ ${codes[i]} -eq 0 ]] || failed=1
done
if [[ -s $out/bench.json ]]; then
  PYTHONPATH=$root/python/src python3 - "$out/bench.json" <<'PY'
import sys
from pathlib import Path
from sluice import results
file = results.load(Path(sys.argv[1]))
meta = file.meta
print(meta["device"], "| read TB/s", meta["read_tbps"], "| copy TB/s", meta["copy_tbps"],
      "| GEMM TFLOP/s", meta["gemm_tflops"], "|", meta["clocks"])
for row in file.rows:
    print(f"{row['op']:9} {row['m']}x{row['d']}x{row['h']:<6} {row['variant']:10} {row['us']:10.1f} us"
          f"  {row['baseline'] or '-':15} {row['baseline_us'] or 0:10.1f} us")
PY
fi
exit $failed
