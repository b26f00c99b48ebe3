#!/usr/bin/env bash
# clang-tidy on the host files of the library, the harness and the command line, as .clang-tidy says;
# but for *_kernels.cpp, which compile one header once a SIMD target and would take minutes each. Those
# of the CUDA backend need CUDA's headers alone, beside nvcc, and no build with CUDA.
# Most are read eight at a time: the time goes into the headers of CLI11, {fmt} and nlohmann/json.
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

# Folders whose files' names do not collide; the others' files one by one.
batched=(cli cli/library harness src/tune src/cuda/all_reduce src/cuda/cublaslt src/cuda/host src/cuda/sm90/gemm)
cuda_files=(':(glob)src/cuda/**/*.cpp')
if [ ! -e "$cuda/cublasLt.h" ]; then
  echo "tidy: without src/cuda: no CUDA headers in $cuda"
  cuda_files=()
fi
mapfile -t files < <(git ls-files ':(glob)src/c*/*.cpp' ':(glob)src/files/*.cpp' ':(glob)src/timing/*.cpp' \
  ':(glob)src/tune/*.cpp' ':(glob)harness/*.cpp' ':(glob)cli/**/*.cpp' "${cuda_files[@]}" | grep -v '_kernels.cpp$')
[ ${#files[@]} -gt 0 ]
in_batch="^($(IFS='|'; echo "${batched[*]}"))/[^/]*$"
{
  for folder in "${batched[@]}"; do
    printf '%s\n' "${files[@]}" | { grep -E "^$folder/[^/]*$" || true; } | xargs -n 8
  done
  printf '%s\n' "${files[@]}" | grep -vE "$in_batch"
} | xargs -P "$(nproc)" -I{} bash -c 'check $1' _ {}
echo "tidy: ${#files[@]} files"
