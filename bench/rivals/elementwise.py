# SPDX-License-Identifier: Apache-2.0
"""gate_mul and its gradient beside Liger's two kernels of each and torch.compile."""

from __future__ import annotations

import math
import sys
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


def gate_mul(case: Case) -> Setup:
    shape = case.m, case.h
    copies = [
        (case.normal(*shape), case.normal(*shape, scale=2), case.empty(*shape))
        for _ in range(copies_of(case, 3))
    ]
    own = Operator("gate_mul", case)
    g, u, h = copies[0]
    candidates = [
        own.candidate([own.bind(g=a, u=b, h=c) for a, b, c in copies], {"h": h}),
        *liger_candidates(case, "forward", copies, {"h": h}),
        compiled(case, compiled_forward, [c[:2] for c in copies], ("h",)),
    ]
    g64, u64 = sampled("g", g), sampled("u", u)
    exact = {"h": gate64(case, g64, u64, g64)["h"]}
    return Setup(5.0 * g.numel(), 3.0 * g.numel() * g.element_size(), candidates, exact)


def gate_mul_grad(case: Case) -> Setup:
    """Liger writes dg and du over g and u, the others beside them: the same bytes move."""
    copies = [
        tuple(case.normal(case.m, case.h) for _ in range(5)) for _ in range(copies_of(case, 5))
    ]
    own = Operator("gate_mul_grad", case)
    dh, g, u, dg, du = copies[0]
    keep = g[:SAMPLES].clone(), u[:SAMPLES].clone()
    candidates = [
        own.candidate(
            [own.bind(dh=a, g=b, u=c, dg=d, du=e) for a, b, c, d, e in copies], {"dg": dg, "du": du}
        ),
        compiled(case, compiled_backward, [c[:3] for c in copies], ("dg", "du")),
        *liger_candidates(case, "backward", [c[:3] for c in copies], {"dg": g, "du": u}),
    ]

    def restore() -> None:
        g[:SAMPLES], u[:SAMPLES] = keep

    exact = gate64(case, keep[0].double(), keep[1].double(), sampled("dh", dh))
    del exact["h"]
    return Setup(13.0 * g.numel(), 5.0 * g.numel() * g.element_size(), candidates, exact, restore)
