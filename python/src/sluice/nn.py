# SPDX-License-Identifier: Apache-2.0
"""``GatedMLP``: the MLP of a Llama-like model as a module, with that model's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sluice import ops
from sluice.gate import Gate


def separate_mlp(module: nn.Module, x: Tensor, gate: Gate, **options: object) -> Tensor:
    """``ops.mlp`` with the weights of ``gate_proj``, ``up_proj``, ``down_proj``. x [.., D]."""
    g, u, down = module.gate_proj, module.up_proj, module.down_proj
    weights = (g.weight, u.weight, down.weight, g.bias, u.bias, down.bias)
    return ops.mlp(x.contiguous(), *weights, gate=gate, **options)


def merged_mlp(module: nn.Module, x: Tensor, gate: Gate, **options: object) -> Tensor:
    """``ops.mlp`` with the weights of ``gate_up_proj`` (gate's rows first) and ``down_proj``."""
    both, down = module.gate_up_proj, module.down_proj
    # chunk, not two slices: its backward joins the halves' gradients instead of adding zeros.
    w_gate, w_up = both.weight.chunk(2)
    b_gate, b_up = (None, None) if both.bias is None else both.bias.chunk(2)
    weights = (w_gate, w_up, down.weight, b_gate, b_up, down.bias)
    return ops.mlp(x.contiguous(), *weights, gate=gate, **options)


class GatedMLP(nn.Module):
    """``y = (act(x @ Wg.T + bg) * (x @ Wu.T + bu)) @ Wd.T + bd (+ residual)``: [.., D] -> [.., D].

    Parameters are those of Hugging Face's modules, so that state dicts go in and out unchanged:
    ``gate_proj``, ``up_proj``, ``down_proj`` (Llama, Qwen, Mistral, Gemma), or with ``merged``
    ``gate_up_proj`` [2H, D], gate's rows first, and ``down_proj`` (Phi-3, vLLM). ``bias`` gives
    every projection one. ``recompute`` keeps x alone for the backward pass; ``weights_static``
    promises that no queued work writes the weights, for inference. Types, devices, errors: ``ops``.
    """

    def __init__(
        self, d: int, h: int, *, gate: Gate | str = "silu", bias: bool = False,
        merged: bool = False, recompute: bool = False, weights_static: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        place = {"bias": bias, "device": device, "dtype": dtype}
        self.gate = gate if isinstance(gate, Gate) else Gate(gate)
        self.merged, self.recompute, self.weights_static = merged, recompute, weights_static
        if merged:
            self.gate_up_proj = nn.Linear(d, 2 * h, **place)
        else:
            self.gate_proj = nn.Linear(d, h, **place)
            self.up_proj = nn.Linear(d, h, **place)
        self.down_proj = nn.Linear(h, d, **place)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        mlp = merged_mlp if self.merged else separate_mlp
        return mlp(
            self, x, self.gate, residual=residual, recompute=self.recompute,
            weights_static=self.weights_static,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"gate={self.gate.activation}, merged={self.merged}, recompute={self.recompute}"
