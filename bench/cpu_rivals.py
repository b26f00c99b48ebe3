# SPDX-License-Identifier: Apache-2.0
"""The MLP on a CPU beside PyTorch eager and OpenBLAS, in one process, in turn.

    SLUICE_LIBRARY_DIR=build/cpu/lib PYTHONPATH=python/src \\
        python bench/cpu_rivals.py build/cpu CASE... --json bench/results/cpu/rivals.json

CASE is MxDxH:dtype; `--max-simd avx2` holds Sluice, PyTorch, OpenBLAS and the FMA peak to AVX2. Needs
torch 2.11 and libopenblas.so.0; Sluice is called through its C ABI. Weights rotate over 400 MB. Threads are
pinned, one a core: some kernels leave two spinning threads of one process on one core for milliseconds, which
costs PyTorch up to 100x. The ceilings come from `sluice bench`, run before and after each case; the better of
the two counts."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch
from rivals.case import Case
from rivals.held import TARGETS, hold
from rivals.native import Operator
from sluice import results

CEILINGS = ("read_tbps", "copy_tbps", "fma_gflops", "bf16_gflops")
ROTATION_BYTES = 400_000_000
SECONDS = 0.8  # of sampling, for each candidate


def openblas_mlp(blas: Any, m: int, d: int, h: int, layers: list[Any], x: Any) -> Callable:
    g, u, y = torch.empty(m, h), torch.empty(m, h), torch.empty(m, d)

    def times_transposed(a: Any, w: Any, c: Any, n: int, k: int) -> None:
        f = ctypes.c_float
        p = ctypes.c_void_p
        # Row major, A as it is, B transposed.
        blas.cblas_sgemm(101, 111, 112, m, n, k, f(1), p(a.data_ptr()), k, p(w.data_ptr()), k, f(0),
                         p(c.data_ptr()), n)  # fmt: skip

    def run(layer: int) -> None:
        gate, up, down = layers[layer]
        times_transposed(x, gate, g, h, d)
        times_transposed(x, up, u, h, d)
        torch.nn.functional.silu(g, inplace=True).mul_(u)
        times_transposed(g, down, y, d, h)

    run.y = y  # type: ignore[attr-defined]
    return run


def torch_mlp(layers: list[Any], x: Any) -> Callable:
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu

    def run(layer: int) -> Any:
        gate, up, down = layers[layer]
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    return run


def pin() -> None:
    """The caller on the first core, all other threads of the process on the ones after it in turn."""
    main = os.getpid()
    others = sorted(int(t) for t in os.listdir("/proc/self/task") if int(t) != main)
    os.sched_setaffinity(main, {CORES[0]})
    for thread in others:
        os.sched_setaffinity(thread, set(CORES[1:]))


def ceilings(build: Path) -> dict[str, Any]:
    command = [str(build / "bin" / "sluice"), "bench", "1x64x64", "--quick", "--json", "-"]
    out = subprocess.run(
        command, check=True, capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, CORES)
    )
    return dict(results.parse(out.stdout, "sluice bench").meta)


def measure(candidates: dict[str, Callable], layers: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run(0)
    pin()
    names = list(candidates)
    end = time.perf_counter() + SECONDS * len(names)
    turn = 0
    while time.perf_counter() < end or turn < 5:
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            candidates[name](0)  # the pool of the candidate's library wakes up
            start = time.perf_counter()
            for layer in range(layers):
                candidates[name](layer)
            samples[name].append((time.perf_counter() - start) / layers * 1e6)
        turn += 1
    return {name: sorted(values) for name, values in samples.items()}


def bench(text: str, build: Path, blas: Any) -> tuple[list[Any], dict[str, Any]]:
    shape, name = text.split(":")
    m, d, h = (int(v) for v in shape.split("x"))
    case = Case(text, m, d, h, "mlp", name, device="cpu")
    dtype = case.torch_dtype
    bytes_ = 3 * d * h * (4 if name == "fp32" else 2)
    copies = max(2, ROTATION_BYTES // bytes_)
    layers = [
        tuple((torch.randn(s) * 0.02).to(dtype) for s in ((h, d), (h, d), (d, h)))
        for _ in range(copies)
    ]
    x = torch.randn(m, d).to(dtype)
    y = torch.empty(m, d, dtype=dtype)
    operator = Operator("mlp", case)
    runs = [
        operator.bind(x=x, w_gate=gate, w_up=up, w_down=down, y=y) for gate, up, down in layers
    ]

    def own(layer: int) -> None:
        runs[layer]()

    candidates = {"own": own, "torch_eager": torch_mlp(layers, x)}
    if name == "fp32":
        candidates["openblas"] = openblas_mlp(blas, m, d, h, layers, x)
    own(0)
    gate, up, down = (w.double() for w in layers[0])
    xd = x.double()
    exact = (torch.nn.functional.silu(xd @ gate.T) * (xd @ up.T)) @ down.T
    rel_err = float((y.double() - exact).abs().mean() / exact.abs().mean())
    assert rel_err < 0.02, rel_err
    before = ceilings(build)
    timings = measure(candidates, copies)
    after = ceilings(build)
    meta = {k: max(before[k] or 0, after[k] or 0) or None for k in CEILINGS}
    meta = {**after, **meta}
    us = statistics.median(timings["own"])
    workspace = operator.workspace_bytes
    flops = 6.0 * m * d * h
    gflops = meta["bf16_gflops" if operator.config.endswith("avx512_bf16") else "fma_gflops"]
    floor = max(bytes_ / meta["read_tbps"] * 1e-6, flops / gflops * 1e-3)
    rows = []
    for rival, values in timings.items():
        if rival == "own":
            continue
        base = statistics.median(values)
        rows.append({
            "op": "mlp", "pass": "fwd", "model": None, "m": m, "d": d, "h": h, "dtype": name, "gate": "silu",
            "layout": "separate", "variant": operator.variant, "us": us,
            "us_p10": timings["own"][len(timings["own"]) // 10],
            "us_p90": timings["own"][len(timings["own"]) * 9 // 10], "tflops": flops / us * 1e-6,
            "gbps": bytes_ / us * 1e-3, "roof_fraction": floor / us, "baseline": rival, "baseline_us": base,
            "ratio": base / us, "extra_bytes": workspace, "peak_bytes": bytes_ + workspace, "rel_err": rel_err,
            "config": operator.config, "threads": len(CORES), "tp": 1,
        })  # fmt: skip
    return rows, meta


CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--max-simd", choices=TARGETS)
    arguments = parser.parse_intermixed_args()
    hold(arguments.max_simd)
    torch.set_num_threads(len(CORES))
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    blas = ctypes.CDLL("libopenblas.so.0")
    blas.openblas_set_num_threads(len(CORES))
    held = ["--max-simd", arguments.max_simd] if arguments.max_simd else []
    command = " ".join(["python bench/cpu_rivals.py", *held, "build/cpu", *arguments.cases])
    rows: list[Any] = []
    meta: dict[str, Any] = {}
    for case in arguments.cases:
        os.sched_setaffinity(0, CORES)
        got, found = bench(case, arguments.build, blas)
        rows += got
        for key in CEILINGS:
            found[key] = max(found[key] or 0, meta.get(key) or 0) or None
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta = {**found, "command": results.with_variables(command), "date": date}
        results.save(arguments.json, meta, rows=rows)
        for row in got:
            print(case, round(row["us"]), f'{row["roof_fraction"]:.2f} of roof,', row["baseline"],
                  round(row["baseline_us"]), f'{row["ratio"]:.2f}x', file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
