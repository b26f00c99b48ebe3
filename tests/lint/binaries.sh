#!/usr/bin/env bash
# What the built files may hold. Usage: binaries.sh RULE SHARED STATIC [PROGRAM...]
#   silent        the library never prints, aborts or exits (snprintf into a buffer is fine)
#   exports       the shared library exports sluice:: and sluice_ only
#   baseline      x86-64: wide registers in the kernels of their SIMD targets alone, so that other CPUs run the rest
#   dependencies  nothing beyond the C and C++ run time, so that the files run on another machine
#   paths         no absolute path of the build, no host name
# Each rule fails where its tool prints nothing, so that a missing tool is not a pass.
set -euo pipefail
rule=$1 shared=$2 static=$3 programs=("${@:4}")

nonempty() {
  local text
  text=$(cat)
  [ -n "$text" ] || { echo "$rule: no output from its tool" >&2; exit 1; }
  printf '%s\n' "$text"
}

case $rule in
  silent)
    banned='^(printf|vprintf|fprintf|vfprintf|__printf_chk|__fprintf_chk|__vfprintf_chk|puts|fputs|putchar|fputc|putc|fwrite|perror|write|abort|exit|_exit|_Exit|quick_exit|__assert_fail|__assert_perror_fail|getenv|secure_getenv|_ZSt4cout|_ZSt4cerr|_ZSt4clog)$'
    used=$(nm --undefined-only "$static" 2> /dev/null | awk '$1 == "U" {print $2}' | sort -u | nonempty)
    if grep -E "$banned" <<< "$used"; then
      echo "silent: the library must not use these" >&2
      exit 1
    fi
    ;;
  exports)
    exported=$(nm -D --defined-only "$shared" | awk '{print $3}' | nonempty)
    if grep -vE '^(sluice_[a-z_]+|_ZNK?6sluice.*|_ZT[ISV]N6sluice.*)$' <<< "$exported"; then
      echo "exports: $(basename "$shared") exports more than sluice:: and sluice_" >&2
      exit 1
    fi
    grep -qx sluice_run <<< "$exported" || { echo "exports: no sluice_run" >&2; exit 1; }
    ;;
  baseline)
    wide=$(objdump -dC --no-show-raw-insn "$static" | awk '
      / file format / { object = $1 }
      /^[0-9a-f]+ <.*>:$/ { name = $0 }
      /%[yz]mm|%k[0-7]/ && !seen[object name]++ { print object, name }' | nonempty)
    # What an object of kernels shares with others (inline functions of the standard library) must not be wide either.
    kernels='sluice::cpu::N_AVX[23]::|^bf16_(dots|kernels).* <(\w+ )*sluice::cpu::(\(anonymous namespace\)|with_pairs)'
    if grep -vE "$kernels" <<< "$wide"; then
      echo "baseline: these need more than x86-64" >&2
      exit 1
    fi
    ;;
  dependencies)
    for file in "$shared" "${programs[@]}"; do
      needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | nonempty)
      if grep -vE '^(libstdc\+\+\.so\.6|libgcc_s\.so\.1|libm\.so\.6|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|librt\.so\.1|ld-linux-.*|libsluice\.so\.[0-9]+\.[0-9]+)$' <<< "$needed"; then
        echo "dependencies: $(basename "$file") needs these" >&2
        exit 1
      fi
      if readelf -d "$file" | grep -E 'RPATH|RUNPATH' | grep -vF '$ORIGIN'; then
        echo "dependencies: $(basename "$file") has an absolute run path" >&2
        exit 1
      fi
    done
    ;;
  paths)
    build=$(cd "$(dirname "$shared")/.." && pwd)
    source=$PWD
    for file in "$shared" "$static" "${programs[@]}"; do
      text=$(strings -a "$file" | nonempty)
      if grep -F -e "$source/" -e "$build/" <<< "$text" | head -5 | grep .; then
        echo "paths: $(basename "$file") holds paths of this build" >&2
        exit 1
      fi
      host=$(hostname)
      if [ ${#host} -gt 6 ] && grep -F "$host" <<< "$text"; then
        echo "paths: $(basename "$file") holds the host's name" >&2
        exit 1
      fi
    done
    ;;
  *)
    sed -n '2,9p' "$0" >&2
    exit 2
    ;;
esac
echo "$rule: ok"
