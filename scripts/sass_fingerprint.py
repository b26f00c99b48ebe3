#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each kernel of a library or of object files is as machine code, without its name.

    sass_fingerprint.py FILE...                    prints one line a kernel, sorted
    sass_fingerprint.py --names FILE...            with the demangled name at its end
    sass_fingerprint.py --diff OLD NEW             what differs; each a listing, a folder of them, a
                                                   library or an object file; exits with 1 if anything does
    sass_fingerprint.py --update data/sass FILE... writes data/sass/ARCHITECTURE.txt
    sass_fingerprint.py --check data/sass FILE...  exits with 1 where these differ, with 77 where they
                                                   are of another nvcc or there is no cuobjdump

Columns: architecture; registers a thread; stack and local bytes a thread (spills are in them); static shared
bytes; instructions; `code`, a hash of all instructions' bits; `form`, a hash of them without immediates,
offsets in constant banks and second operands. Two builds of the same kernels give the same text, whatever the
kernels are called and in whichever order they are linked: offsets in bank 4, where the addresses of global
variables lie, are left out of both hashes. A struct of parameters that changes moves the offsets of its
members: `code` changes then and `form` does not. Lines of data/sass end with the kernel's name in the library's
table of kernels, which is not compared: `python -m sluice results` finds by it what a results file measured.
data/sass/grown.list has the fingerprints (python/src/sluice/staleness.py) of kernels that have since gained
instantiations and lost none: what was measured of them holds.

Needs cuobjdump and nvdisasm of the CUDA toolkit, or of the Python packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm. They read bits, so their version does not matter.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SKIPPED = 77
COLUMNS = "arch    regs stack local shared  instrs code             form"
FOLDER = re.compile(r"sluice::cuda::((?:sm90::|sm80::(?=decode::))?\w+)::")
# Folders of src/cuda whose kernel has another name.
ROWS = {"sm90::gemm": "sm90_gemm", "sm90::decode": "sm90_decode", "sm80::decode": "sm80_decode", "sm80": "sm80_gemm"}

ARCHITECTURE = re.compile(r"^\s*(?:code for|arch =) (sm_\w+)")
FUNCTION = re.compile(r"^\s*Function\s*:?\s*([\w$.]+?):?$")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
FIRST_WORD = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*/\* 0x([0-9a-f]{16}) \*/$")
SECOND_WORD = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/$")

# Where an instruction holds the offset in a constant bank, and its second operand or immediate.
BANK_OFFSET = 0xFFFF << 38
SECOND_OPERAND = 0xFFFFFFFF << 32


class Kernel(NamedTuple):
    arch: str
    registers: int
    stack: int
    local: int
    shared: int
    instructions: int
    code: str
    form: str

    def line(self) -> str:
        return (f"{self.arch:<8}{self.registers:4} {self.stack:5} {self.local:5} {self.shared:6} "
                f"{self.instructions:7} {self.code} {self.form}")

    @staticmethod
    def of(line: str) -> Kernel:
        arch, *numbers, code, form = line.split()[:8]
        return Kernel(arch, *map(int, numbers), code, form)


def cuobjdump(*arguments: str) -> str:
    """The tool's output. It lies on PATH, in the usual folder, or in .venv."""
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    folders.append(Path("/usr/local/cuda/bin"))
    folders += ROOT.glob(".venv/lib/python*/site-packages/nvidia/*/bin")
    path = os.pathsep.join(map(str, folders))
    tool = shutil.which("cuobjdump", path=path)
    if tool is None or shutil.which("nvdisasm", path=path) is None:
        raise FileNotFoundError("cuobjdump and nvdisasm are neither on PATH nor in .venv")
    run = subprocess.run([tool, *arguments], env={**os.environ, "PATH": path}, check=True,
                         stdout=subprocess.PIPE, text=True)
    return run.stdout


def usages(file: str) -> dict[tuple[str, str], list[tuple[int, ...]]]:
    found = defaultdict(list)
    arch = name = ""
    for line in cuobjdump("-res-usage", file).splitlines():
        if match := ARCHITECTURE.match(line):
            arch = match[1]
        elif match := FUNCTION.match(line):
            name = match[1]
        elif match := USAGE.search(line):
            found[arch, name].append(tuple(map(int, match.groups())))
    return found


class Hashes:
    """Of one function's instructions, as they come."""

    def __init__(self) -> None:
        self.code = hashlib.sha256()
        self.form = hashlib.sha256()
        self.count = 0

    def add(self, text: str, first: int, second: int) -> None:
        if "c[0x4]" in text:
            first &= ~BANK_OFFSET
        self.code.update(first.to_bytes(8, "little") + second.to_bytes(8, "little"))
        first &= ~SECOND_OPERAND
        self.form.update(first.to_bytes(8, "little") + second.to_bytes(8, "little"))
        self.count += 1


def kernels_of(file: str) -> list[tuple[Kernel, str]]:
    """Kernels with their names, as they are called in the file."""
    functions = []
    arch = text = ""
    first = 0
    for line in cuobjdump("-sass", file).splitlines():
        if match := SECOND_WORD.match(line):
            functions[-1][2].add(text, first, int(match[1], 16))
        elif match := FIRST_WORD.match(line):
            text, first = match[1], int(match[2], 16)
        elif match := FUNCTION.match(line):
            functions.append((arch, match[1], Hashes()))
        elif match := ARCHITECTURE.match(line):
            arch = match[1]
    used = usages(file)
    kernels = []
    for arch, name, hashes in functions:
        # Of a cubin by itself -res-usage names no architecture.
        registers, stack, shared, local = used[arch if (arch, name) in used else "", name].pop(0)
        kernels.append((Kernel(arch, registers, stack, local, shared, hashes.count,
                               hashes.code.hexdigest()[:16], hashes.form.hexdigest()[:16]), name))
    return kernels


def demangled(names: list[str]) -> list[str]:
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if tool is None:
        return names
    run = subprocess.run([tool], input="\n".join(names), check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.splitlines()


def named_kernels(files: list[str]) -> list[tuple[Kernel, str]]:
    # CUTLASS's own, by which cuda.sm100 computes, are of its version.
    kernels = [kernel for file in files for kernel in kernels_of(file) if not kernel[1].startswith("_ZN7cutlass")]
    names = demangled([name for _, name in kernels])
    return sorted(zip((kernel for kernel, _ in kernels), names))


def read(path: Path) -> list[tuple[Kernel, str]]:
    """Of a listing, a folder of listings, a library or an object file."""
    if path.is_dir():
        return [entry for file in sorted(path.glob("*.txt")) for entry in read(file)]
    if path.suffix != ".txt":
        return named_kernels([str(path)])
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return [(Kernel.of(line), " ".join(line.split()[8:])) for line in lines]


def row_of(name: str) -> str:
    """The row of the library's table of kernels that a function belongs to, by its namespace; "-" for what
    is in no kernel's folder, as the read that empties the L2 before a sample."""
    found = FOLDER.search(name)
    return f"cuda.{ROWS.get(found[1], found[1])}" if found else "-"


def less(kernels: list[tuple[Kernel, str]], others: list[tuple[Kernel, str]]) -> list[tuple[Kernel, str]]:
    """Those of `kernels` that `others` lack, each as often as it is missing."""
    there = Counter(kernel for kernel, _ in others)
    left = []
    for kernel, name in kernels:
        if there[kernel] > 0:
            there[kernel] -= 1
        else:
            left.append((kernel, name))
    return left


def differences(old: list[tuple[Kernel, str]], new: list[tuple[Kernel, str]]) -> list[str]:
    gone, come = less(old, new), less(new, old)
    lines = []
    for kernel, name in gone:
        same_form = [entry for entry in come if entry[0]._replace(code=kernel.code) == kernel]
        if same_form:
            come.remove(same_form[0])
            lines.append(f"~ {kernel.line()} now {same_form[0][0].code}  {name or same_form[0][1]}")
        else:
            lines.append(f"- {kernel.line()}  {name}")
    lines += [f"+ {kernel.line()}  {name}" for kernel, name in come]
    return [line.rstrip() for line in lines]


def nvcc_version(nvcc: str) -> str:
    run = subprocess.run([nvcc, "--version"], check=True, stdout=subprocess.PIPE, text=True)
    found = re.search(r"\bV([\d.]+)", run.stdout)
    return found[1] if found else run.stdout.strip()


def header(version: str) -> str:
    return (f"# nvcc {version}\n# Written by scripts/sass_fingerprint.py --update, which says what is in it.\n"
            f"# {COLUMNS:<73}kernel\n")


def lines_by_row(folder: Path) -> dict[str, list[str]]:
    rows = defaultdict(list)
    for file in sorted(folder.glob("*.txt")):
        for line in file.read_text().splitlines():
            if not line.startswith("#") and line.split()[8] != "-":
                rows[line.split()[8]].append(line)
    return rows


def keep_grown(path: Path, before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
    """Adds the fingerprints of rows that have more lines than before, removes those of rows that lost one."""
    lines = path.read_text().splitlines() if path.exists() else []
    for row, old in before.items():
        if Counter(old) - Counter(after[row]):
            lines = [line for line in lines if line.split()[0] != row]
        elif old != after[row]:
            lines.append(f"{row} {hashlib.sha256(''.join(line + chr(10) for line in old).encode()).hexdigest()[:16]}")
    path.write_text("".join(line + "\n" for line in lines))


def update(folder: Path, kernels: list[tuple[Kernel, str]], version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    before = lines_by_row(folder)
    for arch in sorted({kernel.arch for kernel, _ in kernels}):
        lines = [f"{kernel.line()} {row_of(name)}\n" for kernel, name in kernels if kernel.arch == arch]
        (folder / f"{arch}.txt").write_text(header(version) + "".join(lines))
    keep_grown(folder / "grown.list", before, lines_by_row(folder))


def check(folder: Path, files: list[str], version: str) -> int:
    for file in sorted(folder.glob("*.txt")):
        written = file.read_text().splitlines()[0]
        if written != f"# nvcc {version}":
            print(f"skipped: {file.name} is of '{written[2:]}', this is nvcc {version}")
            return SKIPPED
    lines = differences(read(folder), named_kernels(files))
    if lines:
        print(*lines, sep="\n")
        print(f"{len(lines)} kernels are not those of {folder} (~: other offsets alone). Where that is wanted:\n"
              f"  python3 scripts/sass_fingerprint.py --update {folder} {' '.join(files)}")
    return 1 if lines else 0


def run(options: argparse.Namespace) -> int:
    if options.diff:
        lines = differences(*(read(Path(file)) for file in options.files))
        print(*lines, sep="\n", end="\n" if lines else "")
        return 1 if lines else 0
    if options.check:
        return check(options.check, options.files, nvcc_version(options.nvcc))
    kernels = named_kernels(options.files)
    if options.update:
        update(options.update, kernels, nvcc_version(options.nvcc))
        return 0
    for kernel, name in kernels:
        print(kernel.line() + (f"  {name}" if options.names else ""))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--names", action="store_true")
    mode.add_argument("--diff", action="store_true")
    mode.add_argument("--update", type=Path, metavar="FOLDER")
    mode.add_argument("--check", type=Path, metavar="FOLDER")
    parser.add_argument("--nvcc", default="nvcc", help="the compiler that built the files")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.diff and len(options.files) != 2:
        parser.error("--diff takes two")
    try:
        return run(options)
    except FileNotFoundError as error:
        print(f"skipped: {error}")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
