# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel, checked against fp64 by Sluice's cases and bounds. Needs a GPU, and a Sluice with
the CUDA backend::

    python -m sluice.foreign examples/foreign/triton_gate_mul.py --device cuda
"""

import triton
import triton.language as tl


@triton.jit
def _silu_mul(g, u, h, columns, gu_row, gu_column, h_row, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < columns
    at = row * gu_row + column * gu_column
    wide = tl.load(g + at, mask=there).to(tl.float32)
    out = wide * tl.sigmoid(wide) * tl.load(u + at, mask=there).to(tl.float32)
    tl.store(h + row * h_row + column, out.to(h.dtype.element_ty), mask=there)


def gate_mul(problem, t):
    gate = problem.gate
    if gate != type(gate)("silu") or problem.round_gate:
        raise NotImplementedError("silu alone, rounded once")
    if problem.m == 0:
        return
    block = 1024
    grid = (problem.m, triton.cdiv(problem.h, block))
    _silu_mul[grid](t.g, t.u, t.h, problem.h, *t.g.stride(), t.h.stride(0), block=block)
