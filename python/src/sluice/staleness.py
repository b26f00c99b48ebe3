# SPDX-License-Identifier: Apache-2.0
"""``python -m sluice results --stale``: results files that are older than what they measure.
Standard library only.

A results file keeps the fingerprints of the kernels of its build in ``meta``, and of each row its
case, the kernels that ran it and their configs. It is stale where the checkout has another
fingerprint for one of those kernels, or where data/plans.txt has another config for one of those
cases on its device. A file that keeps no fingerprints is stale.

A fingerprint is a hash: of a CUDA kernel's lines in data/sass, or for ``cpu`` of the sources of the
CPU kernels. harness/write_commit.cmake computes the same. Kernels of cuBLASLt have none. Those of
data/sass/grown.list hold too: scripts/sass_fingerprint.py lists there what lines were only added to.

Exit status: 0 done, 2 usage, a folder that is no checkout, or a file that is no results file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from sluice.results import ResultsError, ResultsFile, load, text

_KERNEL = re.compile(r" (cuda\.[a-z0-9_]+)$")
# Kernels whose machine code or sources are counted with another's.
_COUNTED_WITH = {
    "cpu.simd": "cpu",
    "cpu.reference": "cpu",
    "cuda.column_sum": "cuda.simt",
    "cuda.norm_any": "cuda.simt",
}
_ELEMENTWISE = {"gate_mul", "gate_mul_grad"}  # operators of cuda.elementwise
# On Hopper, which every GPU's file is of, they serve odd layouts alone.
_SELDOM = ("cuda.sm80_gemm", "cuda.sm80_decode")
# Of a device's name and a case the config of each step.
Plans = dict[tuple[str, str], dict[str, str]]
_FORCED = r"--(?:variant|config|tune-cache|max-capability|experimental)\b|SLUICE_(?:VARIANT|TUNE_CACHE)="
_PLANNED = re.compile(r"(\w+)(?:\+norm)?=\w+:(\S+)")


def fingerprints(root: Path) -> dict[str, str]:
    """What each kernel of the checkout ``root`` is. Raises ``OSError`` where it is no checkout."""
    lines: dict[str, str] = {}
    for listing in sorted((root / "data/sass").iterdir()):
        for line in listing.read_text(encoding="utf-8").splitlines():
            if found := _KERNEL.search(line):
                lines[found[1]] = lines.get(found[1], "") + line + "\n"
    for source in sorted([*(root / "src/cpu").iterdir(), *(root / "src/math").iterdir()]):
        sum_of = hashlib.sha256(source.read_bytes()).hexdigest()
        lines["cpu"] = lines.get("cpu", "") + sum_of + "\n"
    return {
        name: hashlib.sha256(of.encode()).hexdigest()[:16] for name, of in sorted(lines.items())
    }


def grown(root: Path) -> set[tuple[str, str]]:
    """Kernels with fingerprints of fewer instantiations, all of them unchanged since."""
    path = root / "data/sass/grown.list"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(name, value) for name, value in map(str.split, lines)}


def as_text(kept: Mapping[str, str]) -> str:
    """As ``meta`` holds them."""
    return " ".join(f"{name}={value}" for name, value in kept.items())


def plans(root: Path) -> Plans:
    """What the checkout plans. Raises ``OSError``."""
    names = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["name"]
        for path in (root / "data/devices").glob("*.json")
    }
    out: Plans = {}
    for line in (root / "data/plans.txt").read_text(encoding="utf-8").splitlines():
        device, case, steps = line.split(" ", 2)
        out[names[device], case] = dict(_PLANNED.findall(steps))
    return out


def _measured(file: ResultsFile, kept: Mapping[str, str]) -> set[str]:
    """The kernels whose fingerprints count: those that rows name, else the backend's."""
    named = {name for row in file.rows for name in text(row, "kernels").split(",") if name}
    on_gpu = bool(text(file.meta, "driver"))
    if not named and on_gpu and file.rows and {text(row, "op") for row in file.rows} <= _ELEMENTWISE:
        return {"cuda.elementwise"}
    if not named:
        return {name for name in kept if (name != "cpu") == on_gpu and name not in _SELDOM}
    return {_COUNTED_WITH.get(name, name) for name in named}


def _changed_plans(file: ResultsFile, planned: Plans) -> Iterator[str]:
    """Cases that are planned with another config now; none where the choice was forced."""
    if re.search(_FORCED, text(file.meta, "command")):
        return
    for row in file.rows:
        now = planned.get((text(file.meta, "device"), text(row, "case")), {})
        then = dict(step.split("=", 1) for step in text(row, "config").split(",") if "=" in step)
        if any(then.get(step, config) != config for step, config in now.items()):
            yield text(row, "case")


def reasons(
    file: ResultsFile, now: Mapping[str, str], planned: Plans, more: Set[tuple[str, str]] = frozenset()
) -> list[str]:
    """Why the file is older than what it measures; nothing where it is not. ``now``, ``planned`` and
    ``more`` are the checkout's ``fingerprints``, ``plans`` and ``grown``."""
    words = text(file.meta, "fingerprints").split()
    kept = dict(word.split("=", 1) for word in words if "=" in word)
    if not kept:
        return ["written before fingerprints were kept"]
    changed = {name for name in _measured(file, kept) if kept.get(name) != now.get(name)}
    lost = sorted(name for name in changed if (name, kept.get(name)) not in more)
    out = [f"{name} is another kernel now" for name in lost]
    cases = list(dict.fromkeys(_changed_plans(file, planned)))
    if cases:
        out.append(f"{len(cases)} plans are others now, of {cases[0]} first")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sluice results", description="List results files that are older than what they measure."
    )
    parser.add_argument("--stale", action="store_true", required=True, help="list them, and why")
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout; default: this folder")
    parser.add_argument("files", nargs="*", type=Path, help="default: all below bench/results")
    arguments = parser.parse_args(argv)
    root: Path = arguments.root
    try:
        now, planned, more = fingerprints(root), plans(root), grown(root)
    except OSError as error:
        print(f"sluice results: {error.filename}: {error.strerror}; run it in a checkout of Sluice, "
              "or name one by --root", file=sys.stderr)  # fmt: skip
        return 2
    files = arguments.files or sorted((root / "bench/results").rglob("*.json"))
    stale = 0
    for path in files:
        try:
            found = reasons(load(path), now, planned, more)
        except ResultsError as error:
            print(f"sluice results: {error}", file=sys.stderr)
            return 2
        stale += bool(found)
        for reason in found:
            print(f"{path}: {reason}")
    print(f"{stale} of {len(files)} files are stale")
    return 0
