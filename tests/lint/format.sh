#!/usr/bin/env bash
# clang-format 14 agrees with every source file. Usage: format.sh CLANG_FORMAT
set -euo pipefail
mapfile -t files < <(python3 "$(dirname "$0")/sources.py" list cpp hpp h c cu cuh inc)
[ ${#files[@]} -gt 0 ]
"$1" --dry-run -Werror "${files[@]}"
echo "format: ${#files[@]} files"
