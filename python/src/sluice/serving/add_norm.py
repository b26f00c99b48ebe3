# SPDX-License-Identifier: Apache-2.0
"""add + RMSNorm out of place in one Triton kernel: ``_C.fused_add_rms_norm`` overwrites its inputs, which an
operator in a compiled graph must not. On Hopper it is launched programmatically, as what vLLM's compiler
makes is not: behind Sluice's ``down``, which permits that from its start, it is in place when the last row
is stored."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait


@triton.jit
def _row(  # type: ignore[no-untyped-def]
    x, residual, weight, n, r, d, eps, block: tl.constexpr, programmatic: tl.constexpr
):
    columns = tl.arange(0, block)
    inside = columns < d
    factor = tl.load(weight + columns, inside, 0).to(tl.float32)  # nobody writes it meanwhile
    if programmatic:
        gdc_wait()
    start = tl.program_id(0).to(tl.int64) * d
    total = tl.load(x + start + columns, inside, 0).to(tl.float32)
    total += tl.load(residual + start + columns, inside, 0).to(tl.float32)
    tl.store(r + start + columns, total, inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / d + eps)
    tl.store(n + start + columns, total * scale * factor, inside)


@cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``r = x + residual``, ``n = r / sqrt(mean(r^2) + eps) * weight``; returns n, r, contiguous. Copies what
    is not."""
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    m, d = x.shape
    n, r = torch.empty_like(x), torch.empty_like(x)
    hopper = _is_hopper(x.device.index)
    _row[(m,)](
        x, residual, weight, n, r, d, eps, block=triton.next_power_of_2(d), programmatic=hopper,
        num_warps=8 if d > 2048 else 4, launch_pdl=hopper,
    )  # fmt: skip
    return n, r
