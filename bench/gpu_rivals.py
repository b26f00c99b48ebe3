# SPDX-License-Identifier: Apache-2.0
"""Sluice on a GPU beside Liger, QuACK and torch.compile, in one process, in turn.

    SLUICE_LIBRARY_DIR=build/cuda/lib PYTHONPATH=python/src \\
        python bench/gpu_rivals.py build/cuda CASE... > bench/results/h200/rivals.json

CASE is MxDxH:OP with OP one of gate_mul, gate_mul_grad, gate_up, gate_up_grad, mlp_train (forward
that saves g and u, then backward), and further words: fp16, fp32, recompute, gm=1.3 (the gate's
multiplier). `--file FILE` adds the cases of a list in bench/problems that this program knows. Needs
torch 2.11; of liger-kernel 0.8.5 and quack-kernels 0.6.5 what is installed is timed.

Sluice is called through its C ABI on the tensors' own memory. Every candidate is checked against
fp64 on sampled rows, then captured in a CUDA graph of several runs over rotating buffers; the
graphs are replayed in turn. Ceilings come from `sluice bench`, run before."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import time
from ctypes import Structure, byref, c_size_t, c_void_p, sizeof
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
from sluice import Gate, capi

Run = Callable[[], Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROTATION_BYTES = 300 << 20  # six times the L2 of an H200
SAMPLED_ROWS = 16
OPERANDS = (
    "x x_residual norm_weight w_gate w_up w_down b_gate b_up b_down residual dy dh g u h y x_sum dg du dx "
    "dw_gate dw_up dw_down db_gate db_up db_down"
).split()


class COperands(Structure):
    """``sluice_operands``"""

    _fields_ = [("struct_size", c_size_t), *((name, c_void_p) for name in OPERANDS)]


class CWorkspace(Structure):
    """``sluice_workspace``"""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("header", c_void_p)]


@dataclass
class Case:
    text: str
    m: int
    d: int
    h: int
    op: str
    dtype: str = "bf16"
    gate_multiplier: float = 1.0
    recompute: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def gate(self) -> Gate:
        return Gate("silu", gate_multiplier=self.gate_multiplier)


def parse(text: str) -> Case | None:
    """None for a case whose words this program does not know."""
    shape, _, rest = text.partition(":")
    words = rest.split(":") if rest else []
    case = Case(text, *(int(v) for v in shape.split("x")), op="")
    for word in words:
        if word in DTYPES:
            case.dtype = word
        elif word == "recompute":
            case.recompute = True
        elif word.startswith(("gm=", "silu(gate_multiplier=")):
            case.gate_multiplier = float(word.split("=")[1].rstrip(")"))
        elif word in BUILDERS:
            case.op = word
        else:
            return None
    return case if case.op else None


class Planned:
    """One Sluice operator, planned; `bind` gives a run on tensors."""

    def __init__(self, op: str, case: Case, **flags: bool) -> None:
        self.lib, self.error, self.plan = capi.library(), capi.CError(), capi.CPlan()
        problem = capi._problem(op, case.m, case.d, case.h, case.dtype, None, case.gate, flags)
        device = capi._device("cuda:0")
        self.check(
            self.lib.sluice_plan_init(
                byref(self.plan), byref(problem), byref(device), None, byref(self.error)
            )
        )
        self.variant = self.lib.sluice_plan_variant(byref(self.plan)).decode()
        self.config = self.lib.sluice_plan_config(byref(self.plan)).decode()
        self.workspace_bytes = int(self.lib.sluice_plan_workspace_bytes(byref(self.plan)))
        self.memory = torch.zeros(self.workspace_bytes + 256, dtype=torch.uint8, device="cuda")

    def check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self.error.message.decode())

    def bind(self, **tensors: torch.Tensor | None) -> Run:
        operands = COperands(struct_size=sizeof(COperands))
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(operands, name, tensor.data_ptr())
        start = (self.memory.data_ptr() + 255) // 256 * 256
        work = CWorkspace(start, self.workspace_bytes)

        def run(_keep: Any = (tensors, self.memory)) -> None:
            stream = c_void_p(torch.cuda.current_stream().cuda_stream)
            self.check(
                self.lib.sluice_run(
                    byref(self.plan), byref(operands), work, stream, byref(self.error)
                )
            )

        return run


@dataclass
class Candidate:
    """What is timed: a run for every copy of the operands."""

    name: str  # "sluice", or the word of the baseline
    runs: list[Run]
    outputs: Callable[[], dict[str, torch.Tensor]]  # of the first run
    variant: str = ""
    config: str = ""
    extra_bytes: int | None = None


@dataclass
class Setup:
    flops: float
    bytes: float
    candidates: list[Candidate]
    exact: dict[str, torch.Tensor]  # fp64, rows 0 ... SAMPLED_ROWS - 1 of each output
    restore: Run = field(default=lambda: None)  # before each check, where a rival works in place


def normal(*shape: int, case: Case, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda", dtype=torch.float32) * scale).to(case.torch_dtype)


def first_rows(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: t[:SAMPLED_ROWS].double() for name, t in tensors.items()}


def gate64(case: Case, g: torch.Tensor, u: torch.Tensor, dh: torch.Tensor) -> dict[str, torch.Tensor]:
    v = g.double() * case.gate_multiplier
    s = torch.sigmoid(v)
    slope = case.gate_multiplier * (s + v * s * (1 - s))
    return {"h": v * s * u, "dg": dh * u * slope, "du": dh * (v * s)}


def elementwise_copies(case: Case, tensors: int) -> int:
    size = case.m * case.h * torch.finfo(case.torch_dtype).bits // 8 * tensors
    return max(2, math.ceil(ROTATION_BYTES / size))


def liger() -> Any:
    try:
        from liger_kernel.ops import swiglu
    except ImportError as error:
        print("liger-kernel:", error, file=sys.stderr)
        return None
    return swiglu


def liger_settings(swiglu: Any, case: Case) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Grid and launch options of the one-row form (none above 65536 columns) and the tiled one."""
    block, warps = swiglu._swiglu_tile_settings(case.h)
    out = {"liger_tiled": ((case.m, math.ceil(case.h / block)), {"BLOCK_SIZE": block, "num_warps": warps})}
    if case.h <= 65536:
        block, warps = swiglu.calculate_settings(case.h)
        out["liger"] = ((case.m,), {"BLOCK_SIZE": block, "num_warps": warps})
    return out


@torch.compile(dynamic=True)
def compiled_gate_mul(g: torch.Tensor, u: torch.Tensor, k: float) -> torch.Tensor:
    v = g.float() * k
    return ((v * torch.sigmoid(v)) * u.float()).to(g.dtype)


@torch.compile(dynamic=True)
def compiled_gate_mul_grad(
    g: torch.Tensor, u: torch.Tensor, dh: torch.Tensor, k: float
) -> tuple[torch.Tensor, torch.Tensor]:
    v, w, d = g.float() * k, u.float(), dh.float()
    s = torch.sigmoid(v)
    return (d * w * k * (s + v * s * (1 - s))).to(g.dtype), (d * v * s).to(g.dtype)


def gate_mul(case: Case) -> Setup:
    copies = elementwise_copies(case, 3)
    g, u, h = (
        [normal(case.m, case.h, case=case) for _ in range(copies)],
        [normal(case.m, case.h, case=case, scale=2) for _ in range(copies)],
        [torch.empty(case.m, case.h, device="cuda", dtype=case.torch_dtype) for _ in range(copies)],
    )
    planned = Planned("gate_mul", case)
    k = case.gate_multiplier
    got: dict[str, torch.Tensor] = {"h": h[0]}
    candidates = [
        Candidate(
            "sluice",
            [planned.bind(g=g[i], u=u[i], h=h[i]) for i in range(copies)],
            lambda: got, planned.variant, planned.config, planned.workspace_bytes,
        )
    ]  # fmt: skip
    if swiglu := liger():
        kernels = {"liger": swiglu._swiglu_forward_kernel, "liger_tiled": swiglu._swiglu_forward_kernel_tiled}
        for name, (grid, options) in liger_settings(swiglu, case).items():
            runs = [
                lambda i=i, f=kernels[name], grid=grid, o=options: f[grid](
                    g[i], u[i], h[i], case.h, k, n_cols=case.h, **o
                )
                for i in range(copies)
            ]
            candidates.append(Candidate(name, runs, lambda: got))

    compiled: dict[str, torch.Tensor] = {}

    def torch_run(i: int) -> None:
        out = compiled_gate_mul(g[i], u[i], k)
        if i == 0:
            compiled["h"] = out

    candidates.append(
        Candidate("torch_compile", [lambda i=i: torch_run(i) for i in range(copies)], lambda: compiled)
    )
    rows = first_rows(g=g[0], u=u[0])
    exact = gate64(case, rows["g"], rows["u"], torch.zeros_like(rows["g"]))
    moved = 3.0 * g[0].numel() * g[0].element_size()
    return Setup(5.0 * g[0].numel(), moved, candidates, {"h": exact["h"]})


def gate_mul_grad(case: Case) -> Setup:
    """Liger's kernels write dg and du over g and u; Sluice and torch.compile beside them."""
    copies = elementwise_copies(case, 5)
    g, u, dh, dg, du = ([normal(case.m, case.h, case=case) for _ in range(copies)] for _ in range(5))
    keep = g[0][:SAMPLED_ROWS].clone(), u[0][:SAMPLED_ROWS].clone()
    planned = Planned("gate_mul_grad", case)
    k = case.gate_multiplier
    own = {"dg": dg[0], "du": du[0]}
    in_place = {"dg": g[0], "du": u[0]}
    candidates = [
        Candidate(
            "sluice",
            [planned.bind(g=g[i], u=u[i], dh=dh[i], dg=dg[i], du=du[i]) for i in range(copies)],
            lambda: own, planned.variant, planned.config, planned.workspace_bytes,
        )
    ]  # fmt: skip
    compiled: dict[str, torch.Tensor] = {}

    def torch_run(i: int) -> None:
        out = compiled_gate_mul_grad(g[i], u[i], dh[i], k)
        if i == 0:
            compiled["dg"], compiled["du"] = out

    candidates.append(
        Candidate("torch_compile", [lambda i=i: torch_run(i) for i in range(copies)], lambda: compiled)
    )
    if swiglu := liger():
        kernels = {"liger": swiglu._swiglu_backward_kernel, "liger_tiled": swiglu._swiglu_backward_kernel_tiled}
        for name, (grid, options) in liger_settings(swiglu, case).items():
            runs = [
                lambda i=i, f=kernels[name], grid=grid, o=options: f[grid](
                    dh[i], g[i], u[i], case.h, k, n_cols=case.h, **o
                )
                for i in range(copies)
            ]
            candidates.append(Candidate(name, runs, lambda: in_place))

    def restore() -> None:
        g[0][:SAMPLED_ROWS], u[0][:SAMPLED_ROWS] = keep

    exact = gate64(case, keep[0].double(), keep[1].double(), dh[0][:SAMPLED_ROWS].double())
    moved = 5.0 * g[0].numel() * g[0].element_size()
    return Setup(13.0 * g[0].numel(), moved, candidates, {k: exact[k] for k in ("dg", "du")}, restore)


def quack() -> Any:
    try:
        from quack import gemm_config, gemm_interface
    except ImportError as error:
        print("quack-kernels:", error, file=sys.stderr)
        return None
    return gemm_interface, gemm_config.GemmConfig


# (tile_m, tile_n, pingpong) of QuACK that won somewhere on an H200.
QUACK_TILES = [(128, 192, True), (128, 128, True), (128, 256, False)]


def quack_configs(config_type: Any) -> list[Any]:
    return [
        config_type(m, n, pingpong=p, is_dynamic_persistent=False, cluster_m=2, cluster_n=1)
        for m, n, p in QUACK_TILES
    ]


def compiles(run: Run, name: str) -> bool:
    try:
        run()
        torch.cuda.synchronize()
    except Exception as error:  # a rival's config that does not compile is not a rival
        print(name, "left out:", repr(error)[:200], file=sys.stderr)
        return False
    return True


def gate_up(case: Case) -> Setup:
    """QuACK takes the weights as [gate; up] and with their rows in turn; the best of all counts."""
    m, d, h = case.m, case.d, case.h
    x = normal(m, d, case=case)
    w_gate, w_up = (normal(h, d, case=case, scale=d**-0.5) for _ in range(2))
    out, theirs = (torch.empty(m, h, device="cuda", dtype=case.torch_dtype) for _ in range(2))
    planned = Planned("gate_up", case)
    candidates = [
        Candidate(
            "sluice", [planned.bind(x=x, w_gate=w_gate, w_up=w_up, h=out)], lambda: {"h": out},
            planned.variant, planned.config, planned.workspace_bytes,
        )
    ]  # fmt: skip
    if found := quack():
        interface, config_type = found
        stacked = torch.cat([w_gate, w_up])
        in_turn = torch.stack([w_gate, w_up], dim=1).reshape(2 * h, d)
        for config in quack_configs(config_type):
            for weights, concat in ((stacked, ("B",)), (in_turn, None)):

                def run(c: Any = config, w: Any = weights, cl: Any = concat) -> None:
                    interface.gemm_gated(
                        x, w.t(), activation="swiglu", postact_out=theirs, store_preact=False,
                        config=c, concat_layout=cl,
                    )  # fmt: skip

                name = f"quack {config.tile_m}x{config.tile_n} {concat}"
                if compiles(run, name):
                    candidates.append(Candidate("quack", [run], lambda: {"h": theirs}, config=name))
    rows = x[:SAMPLED_ROWS].double()
    g, u = rows @ w_gate.double().t(), rows @ w_up.double().t()
    moved = 2.0 * (m * d + 2 * h * d + m * h)
    exact = {"h": gate64(case, g, u, g)["h"]}
    return Setup(4.0 * m * d * h, moved, candidates, exact)


def gate_up_grad(case: Case) -> Setup:
    """QuACK takes g and u, and gives dg and du, with their columns in turn."""
    m, d, h = case.m, case.d, case.h
    dy = normal(m, d, case=case)
    w_down = normal(d, h, case=case, scale=d**-0.5)
    g, u, dg, du, hid = (normal(m, h, case=case) for _ in range(5))
    planned = Planned("gate_up_grad", case)
    candidates = [
        Candidate(
            "sluice", [planned.bind(dy=dy, w_down=w_down, g=g, u=u, dg=dg, du=du, h=hid)],
            lambda: {"dg": dg, "du": du, "h": hid},
            planned.variant, planned.config, planned.workspace_bytes,
        )
    ]  # fmt: skip
    dh = torch.empty(m, h, device="cuda", dtype=case.torch_dtype)
    candidates.append(Candidate("cublaslt_gemm", [lambda: torch.mm(dy, w_down, out=dh)], dict))
    if found := quack():
        interface, config_type = found
        pre = torch.stack([g, u], dim=2).reshape(m, 2 * h)
        d_pre, post = torch.empty_like(pre), torch.empty_like(hid)
        for config in quack_configs(config_type):

            def run(c: Any = config) -> None:
                interface.gemm_dgated(
                    dy, w_down, pre, activation="swiglu", dx_out=d_pre, postact_out=post, config=c,
                    dynamic_scheduler=False,
                )  # fmt: skip

            name = f"quack {config.tile_m}x{config.tile_n}"
            if compiles(run, name):
                outputs = lambda: {"dg": d_pre[:, ::2], "du": d_pre[:, 1::2], "h": post}  # noqa: E731
                candidates.append(Candidate("quack", [run], outputs, config=name))
    rows = first_rows(dy=dy, g=g, u=u)
    exact = gate64(case, rows["g"], rows["u"], rows["dy"] @ w_down.double())
    moved = 2.0 * (m * d + d * h + 5 * m * h)
    return Setup(2.0 * m * d * h, moved, candidates, exact)


def mlp_train(case: Case) -> Setup:
    """Peak bytes: what is allocated beyond x, dy and the weights: outputs, gradients, activations."""
    m, d, h = case.m, case.d, case.h
    x, dy = normal(m, d, case=case), normal(m, d, case=case)
    w_gate, w_up = (normal(h, d, case=case, scale=d**-0.5) for _ in range(2))
    w_down = normal(d, h, case=case, scale=h**-0.5)
    got = {n: torch.empty_like(x) for n in ("y", "dx")}
    got |= {"dw_gate": torch.empty_like(w_gate), "dw_up": torch.empty_like(w_up)}
    got["dw_down"] = torch.empty_like(w_down)
    g, u = (None, None) if case.recompute else (normal(m, h, case=case), normal(m, h, case=case))
    forward = Planned("mlp", case, save_g_u=not case.recompute)
    backward = Planned("mlp_grad", case, recompute=case.recompute, weights_static=False)
    weights = {"w_gate": w_gate, "w_up": w_up, "w_down": w_down}
    steps = (
        forward.bind(x=x, y=got["y"], g=g, u=u, **weights),
        backward.bind(
            x=x, dy=dy, g=g, u=u, dx=got["dx"], dw_gate=got["dw_gate"], dw_up=got["dw_up"],
            dw_down=got["dw_down"], **weights,
        ),
    )  # fmt: skip
    saved = [t for t in (*got.values(), g, u) if t is not None]
    own_bytes = sum(t.numel() * t.element_size() for t in saved)
    own_bytes += max(forward.workspace_bytes, backward.workspace_bytes)
    candidates = [
        Candidate(
            "sluice", [lambda: [step() for step in steps]], lambda: got,
            backward.variant, forward.config + " " + backward.config, own_bytes,
        )
    ]  # fmt: skip

    def rival(name: str, mlp: Callable[..., torch.Tensor], leaves: dict[str, torch.Tensor], config: str) -> None:
        inputs = [x.detach().requires_grad_()] + [t.requires_grad_() for t in leaves.values()]
        results: dict[str, torch.Tensor] = {}

        def run() -> None:
            results.clear()
            y = mlp(*inputs)
            grads = torch.autograd.grad(y, inputs, dy)
            results.update({"y": y.detach(), "dx": grads[0]})
            results.update({"d" + n: t for n, t in zip(leaves, grads[1:])})

        if not compiles(run, name):
            return
        results.clear()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        outputs = lambda: {n: t for n, t in results.items() if n in got}  # noqa: E731
        candidates.append(Candidate(name, [run], outputs, config=config, extra_bytes=peak))

    linear = torch.nn.functional.linear
    leaves = {n: w.detach().clone() for n, w in weights.items()}
    if not case.recompute:
        if swiglu := liger():
            gate = swiglu.LigerSiLUMulFunction.apply
            rival("liger", lambda x, a, b, c: linear(gate(linear(x, a), linear(x, b)), c), leaves, "")
        silu = torch.nn.functional.silu
        compiled = torch.compile(lambda x, a, b, c: linear(silu(linear(x, a)) * linear(x, b), c))
        rival("torch_compile", compiled, leaves, "")
    if quack():
        from quack.mlp import mlp_func

        merged = torch.stack([w_gate, w_up], dim=1).reshape(2 * h, d)
        rival(
            "quack",
            lambda x, w1, w2: mlp_func(x, w1, w2, "swiglu", tuned=False, recompute=case.recompute),
            {"w_gate_up": merged, "w_down": leaves["w_down"].detach().clone()},
            "untuned",
        )
    rows = x[:SAMPLED_ROWS].double()
    gate_rows, up_rows = rows @ w_gate.double().t(), rows @ w_up.double().t()
    dh = dy[:SAMPLED_ROWS].double() @ w_down.double()
    e = gate64(case, gate_rows, up_rows, dh)
    exact = {"y": e["h"] @ w_down.double().t()}
    exact["dx"] = e["dg"] @ w_gate.double() + e["du"] @ w_up.double()
    flops = (22.0 if case.recompute else 18.0) * m * d * h
    moved = 2.0 * (6 * d * h + 4 * m * d)
    return Setup(flops, moved, candidates, exact)


BUILDERS = {f.__name__: f for f in (gate_mul, gate_mul_grad, gate_up, gate_up_grad, mlp_train)}


def relative_error(got: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The worst output's mean |got - fp64| over mean |fp64|."""
    worst = 0.0
    for name, want in exact.items():
        if name in got:
            delta = (got[name][:SAMPLED_ROWS].double() - want).abs().mean() / want.abs().mean()
            worst = max(worst, float(delta)) if not delta.isnan() else math.inf
    return worst


def check(case: Case, setup: Setup) -> dict[int, float]:
    """A mean error above the type's epsilon is no rounding: g, u, h and dh are rounded once each."""
    errors = {}
    for i, candidate in enumerate(setup.candidates):
        setup.restore()
        candidate.runs[0]()
        torch.cuda.synchronize()
        errors[i] = relative_error(candidate.outputs(), setup.exact)
        limit = torch.finfo(case.torch_dtype).eps
        if not errors[i] < max(limit, 64 * torch.finfo(torch.float32).eps):
            raise RuntimeError(f"{case.text}: {candidate.name} {candidate.config}: error {errors[i]}")
    setup.restore()
    return errors


def capture(candidate: Candidate, runs: int) -> Run:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in candidate.runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(runs):
            candidate.runs[i % len(candidate.runs)]()
    return graph.replay


def measure(setup: Setup, seconds: float) -> dict[int, list[float]]:
    """Microseconds a run, for each candidate, in turn, the order rotated every round."""
    floor = max(setup.bytes / 4e12, setup.flops / 7e14)
    copies = max(len(c.runs) for c in setup.candidates)
    runs = max(1 if copies == 1 else copies, min(64, math.ceil(1e-3 / floor)))
    replays = [capture(c, runs) for c in setup.candidates]
    samples: dict[int, list[float]] = {i: [] for i in range(len(replays))}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    spent, turn = 0.0, -2  # two rounds of warm-up
    while turn < 5 or spent < seconds * 1e6 * len(replays):
        for k in range(len(replays)):
            i = (k + turn) % len(replays)
            start.record()
            replays[i]()
            stop.record()
            stop.synchronize()
            us = start.elapsed_time(stop) * 1e3
            spent += us
            if turn >= 0:
                samples[i].append(us / runs)
        turn += 1
    return samples


def bench(case: Case, seconds: float, meta: dict[str, Any]) -> list[dict[str, Any]]:
    setup = BUILDERS[case.op](case)
    errors = check(case, setup)
    samples = measure(setup, seconds)
    medians = {i: statistics.median(v) for i, v in samples.items()}
    own, us = setup.candidates[0], medians[0]
    ordered = sorted(samples[0])
    floor = max(setup.bytes / meta["read_tbps"] * 1e-6, setup.flops / meta["gemm_tflops"] * 1e-6)
    best: dict[str, int] = {}  # of a rival's configs
    for i, candidate in enumerate(setup.candidates):
        if i > 0 and (candidate.name not in best or medians[i] < medians[best[candidate.name]]):
            best[candidate.name] = i
    pass_ = "full" if case.op == "mlp_train" else "bwd" if case.op.endswith("grad") else "fwd"
    rows = []
    for name, i in best.items():
        rows.append({
            "op": case.op, "pass": pass_, "model": None, "m": case.m, "d": case.d, "h": case.h,
            "dtype": case.dtype,
            "gate": "silu" if case.gate_multiplier == 1 else f"silu(gate_multiplier={case.gate_multiplier})",
            "layout": "separate", "variant": own.variant, "config": own.config, "us": us,
            "us_p10": ordered[len(ordered) // 10], "us_p90": ordered[len(ordered) * 9 // 10],
            "tflops": setup.flops / us * 1e-6, "gbps": setup.bytes / us * 1e-3,
            "roof_fraction": floor / us, "baseline": name, "baseline_us": medians[i],
            "ratio": medians[i] / us, "extra_bytes": own.extra_bytes, "peak_bytes": None,
            "baseline_extra_bytes": setup.candidates[i].extra_bytes,
            "baseline_config": setup.candidates[i].config or None, "rel_err": errors[0],
            "baseline_rel_err": errors[i] if setup.candidates[i].outputs() else None, "threads": 1, "tp": 1,
        })  # fmt: skip
        if case.op == "mlp_train":
            rows[-1]["policy"] = "recompute" if case.recompute else "save"
    return rows


def ceilings(build: Path) -> dict[str, Any]:
    command = [str(build / "bin" / "sluice"), "bench", "1x64x64", "--quick", "--json", "-"]
    out = subprocess.run(command, check=True, capture_output=True)
    return json.loads(out.stdout)["meta"]


def read_cases(args: argparse.Namespace) -> list[Case]:
    texts = list(args.cases)
    if args.file:
        lines = Path(args.file).read_text().splitlines()
        texts += [t for line in lines if (t := line.split("#")[0].strip())]
    cases = []
    for text in texts:
        if case := parse(text):
            cases.append(case)
        else:
            print("not known here:", text, file=sys.stderr)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--file")
    parser.add_argument("--seconds", type=float, default=0.1, help="of sampling, for each candidate")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds; then no further case begins")
    args = parser.parse_args()
    started = time.monotonic()
    torch.manual_seed(1)
    meta = ceilings(args.build)
    rows: list[dict[str, Any]] = []
    for case in read_cases(args):
        if time.monotonic() - started > args.limit:
            print("left out, no time:", case.text, file=sys.stderr)
            continue
        got = bench(case, args.seconds, meta)
        rows += got
        torch.cuda.empty_cache()
        for row in got:
            print(
                f"{case.text:38s} {row['us']:8.1f} us {row['gbps'] * 1e-3:5.2f} TB/s {row['tflops']:6.1f} TFLOP/s"
                f" {row['baseline']:13s} {row['baseline_us']:8.1f} {row['ratio']:.3f}x {row['baseline_config'] or ''}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    meta["command"] = " ".join(["python", "bench/gpu_rivals.py", "build/cuda", *sys.argv[2:]])
    meta["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    json.dump({"meta": meta, "rows": rows}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
