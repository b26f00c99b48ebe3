# SPDX-License-Identifier: Apache-2.0
"""The CPU engine's bars, one by one, against results: met or missed, in Markdown.

    sluice bench --file bench/problems/cpu_bars.txt --device cpu --json FOLDER/bars.json
    python bench/cpu_bars.py FOLDER

The folder also holds smollm2.json and rivals.json, as bench/results/cpu does. `FOLDER avx2` judges bars_avx2.json,
smollm2_avx2.json and rivals_avx2.json instead, which were held to AVX2 (`--max-simd avx2` of their commands). Shares
of the ceilings are those of paired samples (docs/benchmarking.md). What memory allows is the share of the FMA peak at
which every operand passes once at the read bandwidth of the same rounds: a bar above it cannot be met there. Empty:
more than the peak. Standard library and `sluice.results` only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.results import Record, ResultsFile, load

SMALL, MIDDLE, LARGE = (576, 1536), (2048, 8192), (4096, 14336)
READ, FMA = "read_share", "fma_share"

# (tokens, type of the weights, share, {shape: least}).
SHARES: list[tuple[int, str, str, dict[tuple[int, int], float]]] = [
    *[(1, dtype, READ, {SMALL: 0.88, MIDDLE: 0.95, LARGE: 0.95}) for dtype in ("bf16", "fp16")],
    (1, "fp32", READ, {SMALL: 0.95, MIDDLE: 0.97, LARGE: 0.97}),
    (4, "bf16", FMA, {SMALL: 0.35, MIDDLE: 0.47}),
    *[(16, dtype, FMA, {SMALL: 0.60, MIDDLE: 0.70}) for dtype in ("bf16", "fp32")],
    *[(m, dtype, FMA, {SMALL: 0.78, MIDDLE: 0.82}) for m in (64, 256) for dtype in ("bf16", "fp16", "fp32")],
    (1, "q8_0", READ, dict.fromkeys((SMALL, MIDDLE, LARGE), 0.90)),
    (1, "q4_0", READ, dict.fromkeys((SMALL, MIDDLE, LARGE), 0.85)),
    *[(256, dtype, FMA, {SMALL: 0.78, MIDDLE: 0.82}) for dtype in ("q8_0", "q4_0")],
]
LAYERS = [(1, READ, 0.88), (512, FMA, 0.78)]  # of SmolLM2, bf16
# (rival, type, tokens, least ratio).
RIVALS = [
    *[("torch_eager", "bf16", m, least) for m, least in ((1, 1.5), (4, 4.0), (64, 8.0), (256, 8.0))],
    ("torch_eager", "fp32", 1, 1.4),
    ("torch_eager", "fp32", 256, 1.25),
    *[("openblas", "fp32", m, 1.1) for m in (16, 64, 256)],
]
OF = {READ: "of read", FMA: "of FMA peak"}


def weights(row: Record) -> str:
    names = row["dtype"].split("/")
    return names[1] if len(names) == 3 else names[0]


def allowed(row: Record) -> float | None:
    """The share of the FMA peak at all of the read bandwidth, where that is below the peak."""
    most = row[FMA] / row[READ]
    return most if most < 1 else None


def line(what: str, got: float | None, least: float, unit: str, most: float | None = None) -> str:
    def show(value: float) -> str:
        return f"{value:.2f}x" if unit == "x" else f"{100 * value:.0f} %"

    if got is None:
        return f"| {what} | {show(least)} | not measured | | |"
    room = "" if most is None else show(most)
    return f"| {what} | {show(least)} | {show(got)} | {room} | {'met' if got >= least else 'missed'} |"


def share_line(what: str, row: Record | None, share: str, least: float) -> str:
    got = row.get(share) if row else None
    most = allowed(row) if row and got is not None and share == FMA else None
    return line(f"{what}, {OF[share]}", got, least, "%", most)


def bars(files: dict[str, ResultsFile]) -> Iterator[str]:
    def rows(name: str, m: int, dtype: str, **fields: int | str) -> list[Record]:
        return [
            row
            for row in files[name].rows
            if row["m"] == m and weights(row) == dtype and all(row[key] == value for key, value in fields.items())
        ]

    for m, dtype, share, shapes in SHARES:
        for (d, h), least in shapes.items():
            found = rows("bars", m, dtype, d=d, h=h)
            yield share_line(f"{m} x {d} x {h} {dtype}", found[0] if found else None, share, least)
    for m, share, least in LAYERS:
        found = rows("smollm2", m, "bf16")
        yield share_line(f"SmolLM2's layers, M = {m}", found[0] if found else None, share, least)
    for rival, dtype, m, least in RIVALS:
        for row in rows("rivals", m, dtype, baseline=rival):
            yield line(f"{m} x {row['d']} x {row['h']} {dtype}, over {rival}", row["ratio"], least, "x")


def document(folder: Path, held: str | None) -> str:
    suffix = f"_{held}" if held else ""
    files = {name: load(folder / f"{name}{suffix}.json") for name in ("bars", "smollm2", "rivals")}
    for name, file in files.items():
        got = file.meta.get("max_simd")
        if got != held:
            raise ValueError(f"{name}{suffix}.json: max_simd: got {got}, wanted {held}")
    found = list(bars(files))
    met = sum(text.endswith(" met |") for text in found)
    meta = files["bars"].meta
    where = f"{meta['device']} held to {held}" if held else meta["device"]
    return "\n".join([
        "# The CPU engine's bars",
        "",
        "Made by `bench/cpu_bars.py`; what a share is: docs/benchmarking.md.",
        f"{where}, {meta['date'][:10]}; at the start of the run read {1e3 * meta['read_tbps']:.0f} GB/s, "
        f"FMA {meta['fma_gflops']:.0f} GFLOP/s.",
        f"{met} of {len(found)} met.",
        "",
        "| what | at least | measured | memory allows | |",
        "|---|---:|---:|---:|---|",
        *found,
        "",
    ])  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    sys.stdout.write(document(Path(arguments[0]), arguments[1] if len(arguments) == 2 else None))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
