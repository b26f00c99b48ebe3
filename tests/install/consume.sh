#!/usr/bin/env bash
# Installs a build, moves the installed tree, and consumes it: C++ through find_package (shared and
# static), C99 through pkg-config (shared and, without CUDA, static).
# Usage: consume.sh BUILD CMAKE CXX cpu|cuda
set -euo pipefail
build=$1 cmake=$2 cxx=$3 backend=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" > "$work/install.log"
mv "$work/first" "$work/moved"
prefix=$work/moved
test -s "$prefix/share/doc/sluice/LICENSE"

"$cmake" -S "$here/consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/build"
"$work/build/consumer_shared"
"$work/build/consumer_static"
if ldd "$work/build/consumer_static" | grep libsluice; then
  echo "consumer_static needs the shared library" >&2
  exit 1
fi

pc=$(dirname "$(find "$prefix" -name sluice.pc)")
export PKG_CONFIG_PATH=$pc
flags=(-std=c99 -pedantic-errors -Wall -Wextra -Werror)
cc=${CC:-cc}
# shellcheck disable=SC2046
"$cc" "${flags[@]}" "$here/consumer/main.c" $(pkg-config --cflags --libs sluice) \
  -Wl,-rpath,"$(pkg-config --variable=libdir sluice)" -o "$work/c_shared"
"$work/c_shared"
if [ "$backend" = cpu ]; then
  # shellcheck disable=SC2046
  "$cc" "${flags[@]}" "$here/consumer/main.c" $(pkg-config --cflags sluice) \
    "$(pkg-config --variable=libdir sluice)/libsluice.a" \
    $(pkg-config --static --libs sluice | sed 's/-lsluice//') -o "$work/c_static"
  "$work/c_static"
fi
if [ -x "$prefix/bin/sluice" ]; then "$prefix/bin/sluice" --version; fi
echo "install: consumed from $(basename "$prefix") by C++ and C99, shared and static"
