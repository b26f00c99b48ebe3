#!/usr/bin/env bash
# clang-tidy on the host files of the library, the harness and the command line, as .clang-tidy says;
# but for *_kernels.cpp, which compile one header once a SIMD target and would take minutes each. Those
# of the CUDA backend need CUDA's headers alone, beside nvcc, and no build with CUDA.
# Harness and command line are read eight files at a time: most of the time goes into the headers of
# CLI11, {fmt} and nlohmann/json.
# What is as it was (sources, headers, flags) when it last passed is not read again.
# Usage: tidy.sh CLANG_TIDY BUILD
set -euo pipefail
tidy=$1 build=$2
cache=$build/tidy
mkdir -p "$cache"
cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/include
flags="-std=c++20 -Wall -Wextra -Wconversion -Wshadow -DFMT_HEADER_ONLY=1 -I. -Isrc -Iinclude \
-I$build/include -I$build/generated -isystem $cuda"
export tidy cache flags

check() {  # files, read as one
  local name stamp key
  name=$(tr / _ <<< "$1")
  stamp=$cache/$name
  # All headers of the project stand for those that the files include: cheap, never stale.
  key=$({ echo "$flags" "$@"; cat "$@" .clang-tidy; find include src harness cli -name '*.hpp' -exec cat {} +; "$tidy" --version; } | sha256sum)
  if [ "$(cat "$stamp" 2> /dev/null)" = "$key" ]; then return 0; fi
  printf '#include "%s"  // NOLINT\n' "$@" > "$stamp.batch.cpp"
  # shellcheck disable=SC2086
  if "$tidy" --quiet --config-file=.clang-tidy "$stamp.batch.cpp" -- $flags \
    > "$stamp.log" 2>&1; then echo "$key" > "$stamp"; return 0; fi
  grep -vE 'warnings generated|warnings treated as errors' "$stamp.log" >&2
  echo "tidy: $*" >&2
  return 1
}
export -f check

mapfile -t singles < <(git ls-files ':(glob)src/core/*.cpp' ':(glob)src/cpu/*.cpp' ':(glob)src/files/*.cpp' ':(glob)src/timing/*.cpp' ':(glob)src/tune/*.cpp' | grep -v '_kernels.cpp$')
mapfile -t harness < <(git ls-files ':(glob)harness/*.cpp')
mapfile -t cli < <(git ls-files ':(glob)cli/**/*.cpp')
[ ${#singles[@]} -gt 0 ] && [ ${#harness[@]} -gt 0 ] && [ ${#cli[@]} -gt 0 ]
if [ -e "$cuda/cublasLt.h" ]; then
  mapfile -t -O "${#singles[@]}" singles < <(git ls-files ':(glob)src/cuda/**/*.cpp')
else
  echo "tidy: without src/cuda: no CUDA headers in $cuda"
fi
{
  xargs -n 8 <<< "${cli[*]}"
  xargs -n 8 <<< "${harness[*]}"
  printf '%s\n' "${singles[@]}"
} | xargs -P "$(nproc)" -I{} bash -c 'check $1' _ {}
echo "tidy: $((${#singles[@]} + ${#harness[@]} + ${#cli[@]})) files"
