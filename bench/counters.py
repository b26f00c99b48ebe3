# SPDX-License-Identifier: Apache-2.0
"""Forced configs under Nsight Compute: bytes from and to DRAM and through L2, registers, occupancy, warps issued.

    python bench/counters.py build/cuda bench/results/h200/counters.json --file bench/problems/counters.txt

A line of the file: case, variant, config and, where one is wanted, a baseline. ``us`` is that of `sluice bench`,
without the profiler. Under it the same command runs again, its caches as its runs leave them: weights cold. Bytes
are those of a run, of all its kernels; ``registers``, ``occupancy``, ``issued`` and ``dram_share`` are those of its
longest one. Every counter is the median of several runs. Needs `ncu` and the right to read counters."""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluice import results

# One pass of the profiler has to read them all: a kernel that runs again finds its weights in L2.
METRICS = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "registers": "launch__registers_per_thread",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issued": "smsp__issue_active.avg.per_cycle_active",
    "dram_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "ns": "gpu__time_duration.sum",
}
PASSES = "profiler__replayer_passes"
SUMS = ("dram_read_bytes", "dram_written_bytes", "l2_bytes")
PERCENT = ("occupancy", "dram_share")
# The profiler gives some names whole, others without their namespace.
OWN = re.compile(r"\b(cuda|sm90|sm80|elementwise)::|^(void )?(gemm|split_k|stream_k|decode|gate_\w*chunks)\b")
KERNELS = "gemm|gate|decode|split_k|stream_k|nvjet|cutlass|splitK|tiled|one_row"  # and not those that fill and flush
LAUNCHES = 24  # that are profiled where there is no baseline, which tries several answers first
NO_BASELINE = "cublaslt_chain"  # which gate_up, down and gate_mul have not


def launches(text: str) -> list[tuple[str, dict[str, float]]]:
    """Of `ncu --csv --page raw`: name and grid, and the counters of each launch, in order."""
    if '"ID"' not in text:
        raise SystemExit(f"counters: the profiler gives none: {text[-400:]}")
    rows = list(csv.reader(io.StringIO(text[text.index('"ID"') :])))
    columns = {name: i for i, name in enumerate(rows[0])}
    if {row[columns[PASSES]] for row in rows[2:]} - {"1"}:
        raise SystemExit("counters: the profiler wants several passes for these counters")
    return [
        (
            f"{row[columns['Kernel Name']]} {row[columns['Grid Size']]}",
            {key: float(row[columns[m]].replace(",", "")) for key, m in METRICS.items()},
        )
        for row in rows[2:]  # behind the units
    ]


def counters(found: list[tuple[str, dict[str, float]]], seen: Iterable[str] = ()) -> dict[str, Any]:
    """Those of one run; ``seen`` are the names of all kernels. A kernel that is launched twice as often as
    another is so within a run; one that is launched less than half as often as another was but tried."""
    kernels: dict[str, list[dict[str, float]]] = defaultdict(list)
    for name, values in found:
        kernels[name].append(values)
    if not kernels:
        raise SystemExit(f"counters: the profiler saw no kernel of these names, but {sorted(set(seen))}")
    most = max(len(all_) for all_ in kernels.values())
    kernels = {name: all_ for name, all_ in kernels.items() if 2 * len(all_) >= most}
    fewest = min(len(all_) for all_ in kernels.values())
    of_one = {
        name: {key: statistics.median(v[key] for v in all_) for key in METRICS}
        for name, all_ in kernels.items()
    }
    times = {name: round(len(all_) / fewest) for name, all_ in kernels.items()}
    longest = max(of_one.values(), key=lambda v: v["ns"])
    sums = {key: int(sum(times[n] * v[key] for n, v in of_one.items())) for key in SUMS}
    shares = {key: longest[key] / 100 for key in PERCENT}
    return {**sums, "registers": int(longest["registers"]), **shares, "issued": longest["issued"]}


def bench(cli: Path, words: list[str], *more: str, profiler: tuple[str, ...] = ()) -> str:
    command = [*profiler, str(cli), "bench", *words, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--milliseconds", default="50", help="of timing, without the profiler")
    args = parser.parse_args()
    cli = args.build / "bin" / "sluice"
    lines = [text for line in args.file.read_text("utf-8").splitlines() if (text := line.split("#")[0])]
    profiler: tuple[str, ...] = (
        "ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw",
        "--kernel-name", f"regex:.*({KERNELS}).*",
        "--print-units", "base", "--metrics", ",".join(METRICS.values()),
    )  # fmt: skip
    meta: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for case, variant, config, *baseline in (line.split() for line in lines):
        words = [case, "--variant", variant, "--config", config, "--baseline", *(baseline or [NO_BASELINE])]
        few = () if baseline else ("--launch-count", str(LAUNCHES))
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder, "bench.json"))
            fast = ("--no-ceilings",) if meta else ()  # the first one also reads the clocks
            bench(cli, words, "--milliseconds", args.milliseconds, "--json", out, *fast)
            file = results.load(Path(out))
        found = launches(bench(cli, words, "--milliseconds", "1", "--no-ceilings", profiler=(*profiler, *few)))
        seen = [name for name, _ in found]
        meta = meta or dict(file.meta)
        rows.append({**file.rows[0], **counters([one for one in found if OWN.search(one[0])], seen)})
        if baseline:
            theirs = counters([one for one in found if not OWN.search(one[0])], seen)
            rows[-1].update({f"baseline_{key}": theirs[key] for key in SUMS})
        print({k: rows[-1][k] for k in ("case", "config", "us", *SUMS, "registers", "occupancy")}, flush=True)
        meta["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta["command"] = results.with_variables(f"python bench/counters.py build/cuda --file {args.file}")
        results.save(args.json, meta, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
