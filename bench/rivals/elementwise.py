# SPDX-License-Identifier: Apache-2.0
"""gate_mul, its gradient and both beside Sluice's own row walk, Liger's two kernels of each, Unsloth's and
torch.compile."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rivals.case import SAMPLES, Candidate, Case, Setup, Tensors, gate64, sampled
from rivals.native import Operator

ROTATION_BYTES = 300 << 20  # six times the L2 of an H200
LIGER_ONE_ROW_COLUMNS = 65536  # Triton's largest block


def liger() -> Any:
    """Liger's module of kernels, or None where it is not installed."""
    try:
        from liger_kernel.ops import swiglu
    except ImportError as error:
        print("liger-kernel:", error, file=sys.stderr)
        return None
    return swiglu


def unsloth() -> Any:
    """Unsloth's module of SwiGLU kernels, or None where it is not installed. Loaded by itself: the
    package wants a fine-tuning stack, the module a function of it."""
    if (package := importlib.machinery.PathFinder.find_spec("unsloth")) is None:
        print("unsloth: not installed", file=sys.stderr)
        return None
    name = "rivals_unsloth"
    if name + ".swiglu" in sys.modules:
        return sys.modules[name + ".swiglu"]
    utils = ModuleType(name + ".utils")
    utils.calculate_settings = None  # not called by these kernels
    utils.torch_gpu_device = lambda device: nullcontext()
    sys.modules[name], sys.modules[utils.__name__] = ModuleType(name), utils
    folder = Path(next(iter(package.submodule_search_locations or [])))
    spec = importlib.util.spec_from_file_location(name + ".swiglu", folder / "kernels/swiglu.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        print("unsloth:", error, file=sys.stderr)
        return None
    sys.modules[spec.name] = module
    return module


def unsloth_gate(kernels: Any, g: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> None:
    """h may be g: each element is read before it is written."""
    size, block = g.numel(), kernels.BLOCK_SIZE
    kernels._fg_kernel[(math.ceil(size / block),)](
        g, u, h, size, BLOCK_SIZE=block, LONG_INDEXING=int(size > kernels.INT32_SAFETY_BUFFER)
    )


def liger_candidates(case: Case, direction: str, copies: list[tuple], outputs: Tensors) -> list[Candidate]:
    """`direction` is forward or backward, `copies` what its kernels take first. A program a row, and
    tiles of 1024 columns: Liger takes the one or the other by architecture, here both are timed."""
    if (swiglu := liger()) is None:
        return []
    tile, tile_warps = swiglu._swiglu_tile_settings(case.h)
    forms = [("liger_tiled", "_tiled", (case.m, math.ceil(case.h / tile)), tile, tile_warps)]
    if case.h <= LIGER_ONE_ROW_COLUMNS:
        row, row_warps = swiglu.calculate_settings(case.h)
        forms.append(("liger", "", (case.m,), row, row_warps))
    candidates = []
    for name, suffix, grid, block, warps in forms:
        kernel = getattr(swiglu, f"_swiglu_{direction}_kernel{suffix}")

        def run(tensors: tuple, kernel: Any = kernel[grid], block: int = block, warps: int = warps) -> None:
            kernel(
                *tensors, case.h, case.gate_multiplier, n_cols=case.h, BLOCK_SIZE=block, num_warps=warps
            )

        runs = [lambda run=run, tensors=tensors: run(tensors) for tensors in copies]
        candidates.append(Candidate(name, runs, lambda: outputs))
    return candidates


@torch.compile(dynamic=True)
def compiled_forward(g: torch.Tensor, u: torch.Tensor, k: float) -> tuple[torch.Tensor]:
    v = g.float() * k
    return (((v * torch.sigmoid(v)) * u.float()).to(g.dtype),)


@torch.compile(dynamic=True)
def compiled_backward(
    dh: torch.Tensor, g: torch.Tensor, u: torch.Tensor, k: float
) -> tuple[torch.Tensor, torch.Tensor]:
    v, w, d = g.float() * k, u.float(), dh.float()
    s = torch.sigmoid(v)
    return (d * w * k * (s + v * s * (1 - s))).to(g.dtype), (d * v * s).to(g.dtype)


def compiled(case: Case, function: Any, copies: list[tuple], names: tuple[str, ...]) -> Candidate:
    outputs: Tensors = {}

    def run(i: int) -> None:
        out = function(*copies[i], case.gate_multiplier)
        if i == 0:
            outputs.update(zip(names, out))

    return Candidate(
        "torch_compile", [lambda i=i: run(i) for i in range(len(copies))], lambda: outputs
    )


def copies_of(case: Case, tensors: int) -> int:
    size = case.m * case.h * torch.finfo(case.torch_dtype).bits // 8 * tensors
    return max(2, math.ceil(ROTATION_BYTES / size)) if case.device == "cuda" else 2


def own_candidates(case: Case, op: str, tensors: list[Tensors], outputs: Tensors) -> list[Candidate]:
    """The form that is chosen, and a row walk where that is another one."""
    own = Operator(op, case)
    candidates = [own.candidate([own.bind(**t) for t in tensors], outputs)]
    if case.device == "cuda" and own.config == f"{op}=tiled":
        rows = Operator(op, case, config=f"{op}=row")
        runs = [rows.bind(**t) for t in tensors]
        candidates.append(Candidate("sluice_row", runs, lambda: outputs, config=rows.config))
    return candidates


def forward_candidates(case: Case, copies: list[tuple]) -> list[Candidate]:
    """`copies` are of g, u, h."""
    h = copies[0][2]
    named = [dict(zip(("g", "u", "h"), c)) for c in copies]
    candidates = own_candidates(case, "gate_mul", named, {"h": h})
    candidates += liger_candidates(case, "forward", copies, {"h": h})
    if kernels := unsloth():
        runs = [lambda c=c: unsloth_gate(kernels, *c) for c in copies]
        candidates.append(Candidate("unsloth", runs, lambda: {"h": h}))
    return [*candidates, compiled(case, compiled_forward, [c[:2] for c in copies], ("h",))]


def backward_candidates(case: Case, copies: list[tuple]) -> list[Candidate]:
    """`copies` are of dh, g, u, dg, du. Liger writes dg and du over g and u, the others beside them: the
    same bytes move."""
    _, g, u, dg, du = copies[0]
    named = [dict(zip(("dh", "g", "u", "dg", "du"), c)) for c in copies]
    inputs = [c[:3] for c in copies]
    return [
        *own_candidates(case, "gate_mul_grad", named, {"dg": dg, "du": du}),
        compiled(case, compiled_backward, inputs, ("dg", "du")),
        *liger_candidates(case, "backward", inputs, {"dg": g, "du": u}),
    ]


def exact_gradients(case: Case, g: torch.Tensor, u: torch.Tensor, dh: torch.Tensor) -> Tensors:
    exact = gate64(case, g.double(), u.double(), sampled("dh", dh))
    del exact["h"]
    return exact


def gate_mul(case: Case) -> Setup:
    shape = case.m, case.h
    copies = [
        (case.normal(*shape), case.normal(*shape, scale=2), case.empty(*shape))
        for _ in range(copies_of(case, 3))
    ]
    g, u, _ = copies[0]
    g64, u64 = sampled("g", g), sampled("u", u)
    exact = {"h": gate64(case, g64, u64, g64)["h"]}
    candidates = forward_candidates(case, copies)
    return Setup(5.0 * g.numel(), 3.0 * g.numel() * g.element_size(), candidates, exact)


def backward(case: Case, full: bool) -> Setup:
    """The gradient alone, or after the forward pass of the same operands."""
    copies = [
        tuple(case.normal(case.m, case.h) for _ in range(5)) for _ in range(copies_of(case, 5))
    ]
    dh, g, u, _, _ = copies[0]
    keep = g[:SAMPLES].clone(), u[:SAMPLES].clone()
    candidates = backward_candidates(case, copies)
    if full:
        forwards = forward_candidates(case, [(c[1], c[2], torch.empty_like(c[1])) for c in copies])
        first = {c.name: c for c in forwards}
        candidates = [both(first[c.name], c) for c in candidates if c.name in first]

    def restore() -> None:
        g[:SAMPLES], u[:SAMPLES] = keep

    exact = exact_gradients(case, *keep, dh)
    flops, tensors = (18.0, 8.0) if full else (13.0, 5.0)
    return Setup(
        flops * g.numel(), tensors * g.numel() * g.element_size(), candidates, exact, restore
    )


def both(first: Candidate, then: Candidate) -> Candidate:
    runs = [lambda a=a, b=b: (a(), b()) for a, b in zip(first.runs, then.runs)]
    config = " ".join(word for word in (first.config, then.config) if word)
    return Candidate(then.name, runs, then.outputs, then.variant, config, then.extra_bytes)


def gate_mul_grad(case: Case) -> Setup:
    return backward(case, full=False)


def gate_mul_full(case: Case) -> Setup:
    return backward(case, full=True)
