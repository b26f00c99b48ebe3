#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the tests: installs what is missing first; a second run builds only what changed.
#
#   bash scripts/test.sh            the release build's tests, without clang-tidy; says what it leaves out
#   bash scripts/test.sh --all      everything; about an hour on two cores from a fresh clone
#   bash scripts/test.sh STEP...    these steps: cpu asan tsan fuzz large torch cuda
#
# Steps: cpu    release build; unit, property, numerics, self, command line, format, Python, install,
#               lint, examples
#        asan   AddressSanitizer and UBSan       tsan   ThreadSanitizer
#        fuzz   libFuzzer on file readers, cases, the C ABI and arguments, a minute each
#        large  more than 2^31 elements; needs 12 GiB of free memory
#        torch  the wheel, built and installed; Torch and JAX operators, a real model. Downloads 3 GB
#        cuda   where nvcc is: builds everything for GPUs and nodes for CUTLASS, runs the host's part,
#               and the GPU's where there is one
# The last line is "N passed, N failed"; the exit status is 1 where a test failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
source scripts/deps.sh

all_steps=(cpu asan tsan fuzz large torch cuda)
steps=()
for argument in "$@"; do
  case $argument in
    --all) steps=("${all_steps[@]}") ;;
    cpu | asan | tsan | fuzz | large | torch | cuda) steps+=("$argument") ;;
    *) sed -n '3,21s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
quick=()
[ ${#steps[@]} -gt 0 ] || steps=(cpu) quick=(--exclude-regex '^lint\.tidy$')

install_packages build_needs test_needs || exit
python_environment || echo "The packages of python/requirements.txt cannot be installed here: the" \
  "Python tests that need them are skipped, or fail where CI is set." >&2
use_ccache
export GTEST_COLOR=no CTEST_OUTPUT_ON_FAILURE=1
mkdir -p build

fetching=
if [[ ${steps[*]} = *\ torch* ]]; then
  nice bash -c 'source scripts/deps.sh; torch_download' > build/wheels.log 2>&1 &
  fetching=$!
fi

# Of examples/cutlass, one of each architecture and main loop: a minute or less each.
cutlass_instances="visitor_chunk32;fp8_visitor_adjacent;sm100_bf16;sm100_fp8;sm100_mxf8;sm100_nvf4"

passed=0
failed=0
summary=()

# Adds one step's result: name, seconds, passed, failed, remark.
record() {
  passed=$((passed + $3))
  failed=$((failed + $4))
  summary+=("$(printf '%-6s %5d s  %4d passed  %3d failed  %s' "$@")")
}

# Runs `$2...` (a ctest command) as step `$1` begun at second `$begin`, and counts its tests. Their
# temporary files go to a folder of their own: a step that leaves some has one more failure.
count_tests() {
  local name=$1 log=build/$1.test.log scratch=$PWD/build/tmp line left
  shift
  rm -rf "$scratch"
  mkdir -p "$scratch"
  TMPDIR=$scratch "$@" 2>&1 | tee "$log"
  line=$(grep -E '^[0-9]+% tests passed' "$log" | tail -1)
  if [[ $line =~ ^[0-9]+%\ tests\ passed,\ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]; then
    local bad=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]} skipped
    mapfile -t skipped < <(sed -nE 's/.* Test +#[0-9]+: ([^ ]+) .*\*\*\*Skipped.*/\1/p' "$log")
    record "$name" $((SECONDS - begin)) $((all - bad - ${#skipped[@]})) "$bad" \
      "$([ ${#skipped[@]} = 0 ] || echo "${#skipped[@]} skipped: ${skipped[*]}")"
  else
    record "$name" $((SECONDS - begin)) 0 1 "no tests ran"
  fi
  left=$(find "$scratch" -mindepth 1 -maxdepth 1 -printf '%f ')
  [ -z "$left" ] || record "$name" 0 0 1 "files left in TMPDIR: $left"
}

# Builds the wheel and installs it into build/torch/site, apart from the source tree.
install_wheel() {
  say "torch: building the wheel"
  rm -rf build/torch/wheel build/torch/site
  bash scripts/wheel.sh build/torch/wheel > build/torch.configure.log 2>&1 \
    && .venv/bin/pip install --quiet --no-deps --target build/torch/site build/torch/wheel/*.whl \
      >> build/torch.configure.log 2>&1 && return 0
  tail -30 build/torch.configure.log
  record torch $((SECONDS - begin)) 0 1 "the wheel does not build"
  return 1
}

# Runs the Python tests of the step torch against the installed wheel, and counts them.
test_wheel() {
  local log=build/torch.test.log
  env -u SLUICE_LIBRARY_DIR PYTHONPATH="$PWD/build/torch/site" \
    .venv/bin/python -B tests/torch/run.py 2>&1 | tee "$log"
  if [[ $(tail -1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    record torch $((SECONDS - begin)) "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" \
      "$([ "${BASH_REMATCH[3]}" = 0 ] || echo "${BASH_REMATCH[3]} skipped")"
  else
    record torch $((SECONDS - begin)) 0 1 "no tests ran"
  fi
}

# Configures and builds; a failure counts as one failed test.
build() {
  local name=$1
  shift
  say "$name: building"
  "$@" > "build/$name.configure.log" 2>&1 && cmake --build "build/$name" "${targets[@]}" && return 0
  tail -30 "build/$name.configure.log"
  record "$name" $((SECONDS - begin)) 0 1 "does not build"
  return 1
}

for step in "${steps[@]}"; do
  begin=$SECONDS
  targets=()
  parallel=(--parallel "$(nproc)")
  case $step in
    cpu | asan)
      build "$step" cmake --preset "$step" && count_tests "$step" ctest --preset "$step" "${quick[@]}" "${parallel[@]}"
      ;;
    tsan)
      # What runs threads: the engine, and everything that calls it from several; without the longest
      # tests of sums and address arithmetic, which tell nothing of threads.
      targets=(--target sluice_tests_unit sluice_tests_tune sluice_tests_variants sluice_tests_cpu_pool
        sluice_tests_cpu_engine)
      build tsan cmake --preset tsan \
        && count_tests tsan env GTEST_FILTER='-Overlap.*:*/Engine.LongSums/*' ctest --preset tsan "${parallel[@]}"
      ;;
    fuzz)
      targets=(--target sluice_fuzz_corpus sluice_fuzz_safetensors sluice_fuzz_index sluice_fuzz_checkpoint
        sluice_fuzz_results sluice_fuzz_tune sluice_fuzz_case sluice_fuzz_abi sluice_fuzz_arguments)
      build fuzz cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DSLUICE_FUZZ=ON \
        && count_tests fuzz ctest --test-dir build/fuzz -L '^fuzz$' --no-tests=error "${parallel[@]}"
      ;;
    large)
      available=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
      if [ "$available" -lt 12 ]; then
        record large 0 0 0 "not run: $available GiB of memory available, 12 needed"
      else
        build cpu cmake --preset cpu && count_tests large ctest --preset large
      fi
      ;;
    torch)
      [ -z "$fetching" ] || wait "$fetching"
      if torch_environment && model_package; then
        install_wheel && test_wheel
      elif [ -n "${CI:-}" ]; then
        record torch $((SECONDS - begin)) 0 1 "python/requirements-torch.txt or -jax.txt cannot be installed"
      else
        record torch 0 0 0 "not run: python/requirements-torch.txt or -jax.txt cannot be installed"
      fi
      ;;
    cuda)
      if ! find_nvcc; then
        record cuda 0 0 0 "not run: no nvcc"
        continue
      fi
      cutlass=()
      if cutlass_environment; then
        cutlass=(-DSLUICE_CUTLASS=ON "-DSLUICE_CUTLASS_DIR=$cutlass_dir"
          "-DSLUICE_CUTLASS_INSTANCES=$cutlass_instances")
      elif [ -n "${CI:-}" ]; then
        record cuda $((SECONDS - begin)) 0 1 "python/requirements-cutlass.txt cannot be installed"
      fi
      if gpu_visible; then parallel=(); fi  # tests on it take turns
      build cuda cmake --preset cuda "${cutlass[@]}" && count_tests cuda ctest --preset cuda "${parallel[@]}"
      ;;
  esac
done

say "summary"
printf '%s\n' "${summary[@]}"
[ ${#quick[@]} = 0 ] || echo "left out: lint.tidy and the steps ${all_steps[*]:1}; --all runs everything"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
