#!/usr/bin/env bash
# clang-tidy on the host files of the library, the harness and the command line, as .clang-tidy says;
# but for *_kernels.cpp, which compile one header once a SIMD target and would take minutes each.
# Files whose input (source, headers, flags) is as it was when they last passed are not read again.
# Usage: tidy.sh CLANG_TIDY BUILD
set -euo pipefail
tidy=$1 build=$2
cache=$build/tidy
mkdir -p "$cache"
export tidy build cache

check() {
  local file=$1 stamp key
  stamp=$cache/$(tr / _ <<< "$file")
  # All headers of the project stand for those that the file includes: cheap, never stale.
  key=$({ cat "$file" .clang-tidy; find include src harness cli -name '*.hpp' -exec cat {} +; "$tidy" --version; } | sha256sum)
  if [ "$(cat "$stamp" 2> /dev/null)" = "$key" ]; then return 0; fi
  if "$tidy" -p "$build" --quiet "$file" 2> "$stamp.log"; then echo "$key" > "$stamp"; return 0; fi
  grep -E 'error|warning' "$stamp.log" | grep -v 'warnings generated' >&2 || true
  echo "tidy: $file" >&2
  return 1
}
export -f check

mapfile -t files < <(git ls-files ':(glob)src/core/*.cpp' ':(glob)src/cpu/*.cpp' ':(glob)src/timing/*.cpp' ':(glob)src/tune/*.cpp' ':(glob)harness/*.cpp' ':(glob)cli/*.cpp' | grep -v '_kernels.cpp$')
[ ${#files[@]} -gt 0 ]
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'check "$1"' _ {}
echo "tidy: ${#files[@]} files"
