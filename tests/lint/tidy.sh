#!/usr/bin/env bash
# clang-tidy on the host files of the library, the harness and the command line, as .clang-tidy says;
# but for *_kernels.cpp, which compile one header once a SIMD target and would take minutes each. Those
# of the CUDA backend need CUDA's headers alone, beside nvcc, and no build with CUDA.
# Files whose input (source, headers, flags) is as it was when they last passed are not read again.
# Usage: tidy.sh CLANG_TIDY BUILD
set -euo pipefail
tidy=$1 build=$2
cache=$build/tidy
mkdir -p "$cache"
cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/include
export tidy build cache cuda

check() {
  local file=$1 stamp key flags=()
  if [[ $file == src/cuda/* ]]; then
    flags=(-- -std=c++20 -Isrc -Iinclude "-I$build/include" -isystem "$cuda")
  fi
  stamp=$cache/$(tr / _ <<< "$file")
  # All headers of the project stand for those that the file includes: cheap, never stale.
  key=$({ cat "$file" .clang-tidy; find include src harness cli -name '*.hpp' -exec cat {} +; "$tidy" --version; } | sha256sum)
  if [ "$(cat "$stamp" 2> /dev/null)" = "$key" ]; then return 0; fi
  if "$tidy" -p "$build" --quiet "$file" "${flags[@]}" 2> "$stamp.log"; then echo "$key" > "$stamp"; return 0; fi
  grep -E 'error|warning' "$stamp.log" | grep -v 'warnings generated' >&2 || true
  echo "tidy: $file" >&2
  return 1
}
export -f check

mapfile -t files < <(git ls-files ':(glob)src/core/*.cpp' ':(glob)src/cpu/*.cpp' ':(glob)src/files/*.cpp' ':(glob)src/timing/*.cpp' ':(glob)src/tune/*.cpp' ':(glob)harness/*.cpp' ':(glob)cli/**/*.cpp' | grep -v '_kernels.cpp$')
[ ${#files[@]} -gt 0 ]
if [ -e "$cuda/cublasLt.h" ]; then
  mapfile -t -O "${#files[@]}" files < <(git ls-files ':(glob)src/cuda/**/*.cpp')
else
  echo "tidy: without src/cuda: no CUDA headers in $cuda"
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'check "$1"' _ {}
echo "tidy: ${#files[@]} files"
