# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel's functions of the gate by Sluice: ``LigerSiLUMulFunction`` and ``LigerGELUMulFunction`` with
the names, arguments and ``apply`` of Liger 0.8.5, on CPUs too.

They round as eager Torch does (``round_gate`` of ``sluice.ops.gate_mul``), so results compare with a Hugging
Face module's. Arguments may have any strides, and may be DTensors (``sluice.ops.gate_mul`` says how); what was saved for the
backward pass is not overwritten. Second derivatives are a ``RuntimeError``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice import ops, torch_operators
from sluice.gate import Gate

def _gate_mul(ctx: Any, a: Tensor, b: Tensor, gate: Gate) -> Tensor:
    ctx.plain = type(a) is Tensor, type(b) is Tensor
    a, b = ops._alike(a, b)
    ctx.gate = gate.arguments
    ctx.save_for_backward(a, b)
    return torch.ops.sluice.gate_mul.default(a, b, *ctx.gate, True)


def _gradients(ctx: Any, dc: Tensor) -> tuple[Tensor, ...]:
    """Of a and b."""
    dc, a, b = ops._alike(dc, *ctx.saved_tensors)
    da, db = torch.ops.sluice.gate_mul_grad.default(dc, a, b, *ctx.gate, True)
    gradients = da, db.reshape(b.shape)
    # Of a plain tensor beside a DTensor a plain one.
    return tuple(
        g.full_tensor() if plain and type(g) is not Tensor else g for g, plain in zip(gradients, ctx.plain)
    )


class LigerSiLUMulFunction(torch.autograd.Function):
    """``apply(a, b, gate_multiplier=1.0, down_multiplier=1.0)``:
    ``down_multiplier * silu(gate_multiplier * a) * b``, a and b [.., H]."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0
    ) -> Tensor:
        """As ``torch.autograd.Function`` calls it."""
        gate = Gate("silu", gate_multiplier=float(gate_multiplier),
                    output_multiplier=float(down_multiplier))  # fmt: skip
        return _gate_mul(ctx, a, b, gate)

    @staticmethod
    @torch_operators.once
    def backward(ctx: Any, dc: Tensor) -> tuple[Tensor | None, ...]:
        """As ``torch.autograd.Function`` calls it."""
        return (*_gradients(ctx, dc), None, None)


class LigerGELUMulFunction(torch.autograd.Function):
    """``apply(a, b)``: ``gelu(a) * b`` by the tanh formula, a and b [.., H]."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """As ``torch.autograd.Function`` calls it."""
        return _gate_mul(ctx, a, b, Gate("gelu_tanh"))

    @staticmethod
    @torch_operators.once
    def backward(ctx: Any, dc: Tensor) -> tuple[Tensor | None, ...]:
        """As ``torch.autograd.Function`` calls it."""
        return _gradients(ctx, dc)
