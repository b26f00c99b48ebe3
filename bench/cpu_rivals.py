# SPDX-License-Identifier: Apache-2.0
"""The MLP on a CPU beside PyTorch eager and OpenBLAS, in one process, in turn.

    python bench/cpu_rivals.py build/cpu CASE... > bench/results/cpu/rivals.json

CASE is MxDxH:dtype. Needs torch 2.11 and libopenblas.so.0; Sluice is called through its C ABI. Weights
rotate over 400 MB. Threads are pinned, one a core: some kernels leave two spinning threads of one process on
one core for milliseconds, which costs PyTorch up to 100x. The ceilings come from `sluice bench`, run before
and after each case; the better of the two counts."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch

DTYPES = {"bf16": (0, torch.bfloat16), "fp16": (1, torch.float16), "fp32": (2, torch.float32)}
CEILINGS = ("read_tbps", "copy_tbps", "fma_gflops", "bf16_gflops")
ROTATION_BYTES = 400_000_000
SECONDS = 0.8  # of sampling, for each candidate
OPERANDS = (
    "x x_residual norm_weight w_gate w_up w_down b_gate b_up b_down residual dy dh g u h y x_sum dg du dx "
    "dw_gate dw_up dw_down db_gate db_up db_down"
).split()


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *[(n, ctypes.c_int32) for n in "op x_dtype w_dtype y_dtype dw_dtype residual".split()],
        *[(n, ctypes.c_int64) for n in "mdh"],
        ("rest", ctypes.c_char * 632),
    ]


class Operands(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *[(n, ctypes.c_void_p) for n in OPERANDS]]


class Workspace(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("header", ctypes.c_void_p)]


class Sluice:
    def __init__(self, build: Path) -> None:
        self.lib = ctypes.CDLL(str(build / "lib" / "libsluice.so"))
        self.lib.sluice_plan_workspace_bytes.restype = ctypes.c_size_t
        self.lib.sluice_plan_variant.restype = self.lib.sluice_plan_config.restype = ctypes.c_char_p
        self.device = ctypes.create_string_buffer(184)  # sizeof(sluice_device)
        self.error = ctypes.create_string_buffer(328)
        self.check(self.lib.sluice_cpu_device(self.device, ctypes.c_size_t(184), self.error))

    def check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self.error.raw[8:].split(b"\0")[0].decode())

    def mlp(self, m: int, d: int, h: int, dtype: int, layers: list[Any], x: Any, y: Any) -> Any:
        problem = Problem()
        size = ctypes.c_size_t(ctypes.sizeof(problem))
        self.check(self.lib.sluice_problem_init(ctypes.byref(problem), size, self.error))
        problem.op, problem.m, problem.d, problem.h = 2, m, d, h
        problem.x_dtype = problem.w_dtype = problem.y_dtype = dtype
        plan = (ctypes.c_uint64 * 256)()
        self.check(
            self.lib.sluice_plan_init(plan, ctypes.byref(problem), self.device, None, self.error)
        )
        size = self.lib.sluice_plan_workspace_bytes(plan)
        memory = torch.zeros(size + 4096, dtype=torch.uint8)
        start = (memory.data_ptr() + 255) // 256 * 256
        work = Workspace(start, size)
        calls = []
        for gate, up, down in layers:
            o = Operands(struct_size=ctypes.sizeof(Operands))
            o.x, o.y = x.data_ptr(), y.data_ptr()
            o.w_gate, o.w_up, o.w_down = gate.data_ptr(), up.data_ptr(), down.data_ptr()
            calls.append(o)

        def run(layer: int, _keep: Any = memory) -> None:
            self.check(
                self.lib.sluice_run(plan, ctypes.byref(calls[layer]), work, None, self.error)
            )

        names = self.lib.sluice_plan_variant(plan), self.lib.sluice_plan_config(plan)
        return run, size, [n.decode() for n in names]


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
    return json.loads(out.stdout)["meta"]


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


def bench(case: str, build: Path, sluice: Sluice, blas: Any) -> tuple[list[Any], dict[str, Any]]:
    shape, name = case.split(":")
    m, d, h = (int(v) for v in shape.split("x"))
    code, dtype = DTYPES[name]
    bytes_ = 3 * d * h * (4 if name == "fp32" else 2)
    copies = max(2, ROTATION_BYTES // bytes_)
    layers = [
        tuple((torch.randn(s) * 0.02).to(dtype) for s in ((h, d), (h, d), (d, h)))
        for _ in range(copies)
    ]
    x = torch.randn(m, d).to(dtype)
    y = torch.empty(m, d, dtype=dtype)
    own, workspace, (variant, config) = sluice.mlp(m, d, h, code, layers, x, y)
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
    flops = 6.0 * m * d * h
    gflops = meta["bf16_gflops" if config.endswith("avx512_bf16") else "fma_gflops"]
    floor = max(bytes_ / meta["read_tbps"] * 1e-6, flops / gflops * 1e-3)
    rows = []
    for rival, values in timings.items():
        if rival == "own":
            continue
        base = statistics.median(values)
        rows.append({
            "op": "mlp", "pass": "fwd", "model": None, "m": m, "d": d, "h": h, "dtype": name, "gate": "silu",
            "layout": "separate", "variant": variant, "us": us,
            "us_p10": timings["own"][len(timings["own"]) // 10],
            "us_p90": timings["own"][len(timings["own"]) * 9 // 10], "tflops": flops / us * 1e-6,
            "gbps": bytes_ / us * 1e-3, "roof_fraction": floor / us, "baseline": rival, "baseline_us": base,
            "ratio": base / us, "extra_bytes": workspace, "peak_bytes": bytes_ + workspace, "rel_err": rel_err,
            "config": config, "threads": len(CORES), "tp": 1,
        })  # fmt: skip
    return rows, meta


CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    build = Path(sys.argv[1])
    torch.set_num_threads(len(CORES))
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    blas = ctypes.CDLL("libopenblas.so.0")
    blas.openblas_set_num_threads(len(CORES))
    sluice = Sluice(build)
    rows: list[Any] = []
    meta: dict[str, Any] = {}
    for case in sys.argv[2:]:
        os.sched_setaffinity(0, CORES)
        got, found = bench(case, build, sluice, blas)
        rows += got
        for key in CEILINGS:
            found[key] = max(found[key] or 0, meta.get(key) or 0) or None
        meta = found
        for row in got:
            print(case, round(row["us"]), f'{row["roof_fraction"]:.2f} of roof,', row["baseline"],
                  round(row["baseline_us"]), f'{row["ratio"]:.2f}x', file=sys.stderr)  # fmt: skip
    meta["command"] = " ".join(["python", "bench/cpu_rivals.py", "build/cpu", *sys.argv[2:]])
    meta["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    json.dump({"meta": meta, "rows": rows}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
