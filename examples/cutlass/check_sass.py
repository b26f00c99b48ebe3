#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether each GEMM of a program holds the instructions that it is about: ``check_sass.py PROGRAM``.

TMA loads and stores, the tensor cores' own kind, and no local memory. Exits with 1 where one does not, with 77
without cuobjdump and nvdisasm (scripts/sass_fingerprint.py finds them)."""

import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from sass_fingerprint import ARCHITECTURE, FIRST_WORD, FUNCTION, SKIPPED, cuobjdump

# By the elements of the main loop: the tensor cores' instruction on sm_90a and on sm_100a.
KINDS = {
    "float_e2m1_t": ("", "UTCOMMA"),
    "float_e4m3_t": ("QGMMA", "UTCQMMA"),  # with scales or without
    "bfloat16_t": ("HGMMA", "UTCHMMA"),
}
LOCAL = ("LDL", "STL")


def gemms(program: str) -> list[tuple[str, str, Counter]]:
    """Architecture, mangled name and opcodes of each."""
    found: list[tuple[str, str, Counter]] = []
    arch = ""
    for line in cuobjdump("-sass", program).splitlines():
        if match := FIRST_WORD.match(line):
            found[-1][2][re.sub(r"^@!?\w+ ", "", match[1]).split(".")[0].split()[0]] += 1
        elif match := FUNCTION.match(line):
            found.append((arch, match[1], Counter()))
        elif match := ARCHITECTURE.match(line):
            arch = match[1]
    return [gemm for gemm in found if "CollectiveMma" in gemm[1]]


def faults(arch: str, name: str, held: Counter) -> list[str]:
    main_loop = name[name.index("CollectiveMma") :]
    element = min((e for e in KINDS if e in main_loop), key=main_loop.index)
    wanted = ("UTMALDG", "UTMASTG", KINDS[element][arch == "sm_100a"])
    return [f"no {word}" for word in wanted if not held[word]] + [
        f"{held[word]} {word}" for word in LOCAL if held[word]
    ]


def main() -> int:
    try:
        found = gemms(sys.argv[1])
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return SKIPPED
    bad = 0
    for arch, name, held in found:
        wrong = faults(arch, name, held)
        bad += bool(wrong)
        kinds = [word for word in held if re.search("GMMA|UTC.MMA", word)]
        print(f"{'FAIL' if wrong else 'pass'} {arch} {' '.join(kinds)} {', '.join(wrong)}".rstrip())
    print(f"{len(found)} GEMMs, {bad} bad")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
