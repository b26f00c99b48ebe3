#!/usr/bin/env bash
# Usage: check.sh COMPILER FILE FLAGS... : see CMakeLists.txt
set -euo pipefail
compiler=$1 file=$2
shift 2
flags=(-std=c++20 -fsyntax-only -Wall -Wextra -Werror "$@")
wanted=$(sed -n 's|^// error: ||p' "$file" | head -1)
[ -n "$wanted" ] || { echo "$file: no '// error:' line" >&2; exit 1; }
"$compiler" "${flags[@]}" "$file" || { echo "$file: must compile without MISUSE" >&2; exit 1; }
if output=$("$compiler" "${flags[@]}" -DMISUSE "$file" 2>&1); then
  echo "$file: compiled with MISUSE" >&2
  exit 1
fi
grep -qF -- "$wanted" <<< "$output" || {
  printf '%s: failed, but not with "%s":\n%s\n' "$file" "$wanted" "$output" >&2
  exit 1
}
