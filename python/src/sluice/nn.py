# SPDX-License-Identifier: Apache-2.0
"""``GatedMLP``: the MLP of a Llama-like model as a module, with that model's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from sluice import ops
from sluice.gate import Gate
from sluice.kept import keep, kept


def mlp_of(
    gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module, x: Tensor, gate: Gate,
    *, merged: bool, up_first: bool = False, **options: object,
) -> Tensor:  # fmt: skip
    """``ops.mlp`` with the weights and biases of three linear layers. x [.., D]. With ``merged`` gate and up are
    one layer, whose first H rows are gate's, or with ``up_first`` up's; without, they may be one as well."""
    if merged:
        # chunk, not two slices: its backward joins the halves' gradients instead of adding zeros.
        w = gate_proj.weight.chunk(2)
        b = (None, None) if gate_proj.bias is None else gate_proj.bias.chunk(2)
        g, u = (1, 0) if up_first else (0, 1)
        weights = (w[g], w[u], down_proj.weight, b[g], b[u], down_proj.bias)
    else:
        weights = (gate_proj.weight, up_proj.weight, down_proj.weight,
                   gate_proj.bias, up_proj.bias, down_proj.bias)  # fmt: skip
    return ops.mlp(x, *weights, gate=gate, **options)


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _is_plain(linear: nn.Module) -> bool:
    """Whether its weight and bias are all that it does: no adapter, no pruning, no quantised or sharded weight; or
    ``patch`` serves it."""
    return (
        type(linear) is nn.Linear
        and not has_hooks(linear)
        and not _is_wrapped(linear)
        and not is_traceable_wrapper_subclass(linear._parameters["weight"])
    )


def _is_wrapped(linear: nn.Linear) -> bool:
    """Whether it has a forward of its own that is neither its class's, as a patched one that was pickled has, nor
    ``patch``'s."""
    if "forward" not in linear.__dict__:
        return False
    from sluice import patching  # imports this module

    function = getattr(linear.__dict__["forward"], "__func__", None)
    return function is not nn.Linear.forward and function is not patching._linear_forward


class GatedMLP(nn.Module):
    """``y = (act(x @ Wg.T + bg) * (x @ Wu.T + bu)) @ Wd.T + bd (+ residual)``: [.., D] -> [.., D].

    Parameters are those of Hugging Face's modules, so that state dicts go in and out unchanged:
    ``gate_proj``, ``up_proj``, ``down_proj`` (Llama, Qwen, Mistral, Gemma), or with ``merged``
    ``gate_up_proj`` [2H, D], gate's rows first, and ``down_proj`` (Phi-3, vLLM). ``bias`` gives
    every projection one. ``recompute`` keeps x alone for the backward pass; ``weights_static``
    promises that no queued work writes the weights, for inference. With ``group`` h is a rank's share and y is
    summed over the ranks, for inference (``sluice.ranks``). Types, devices, errors: ``ops``. Projections that are
    replaced (LoRA) or have hooks (pruning) are called, and the gate alone is Sluice's.
    """

    def __init__(
        self, d: int, h: int, *, gate: Gate | str = "silu", bias: bool = False,
        merged: bool = False, recompute: bool = False, weights_static: bool = False,
        group: ops.Group = None, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        place = {"bias": bias, "device": device, "dtype": dtype}
        self.gate = gate
        self.merged, self.recompute, self.weights_static = merged, recompute, weights_static
        self.group = None if group is None else ops.name_of_group(group)  # a group cannot be copied
        if merged:
            self.gate_up_proj = nn.Linear(d, 2 * h, **place)
        else:
            self.gate_proj = nn.Linear(d, h, **place)
            self.up_proj = nn.Linear(d, h, **place)
        self.down_proj = nn.Linear(h, d, **place)

    @property
    def gate(self) -> Gate:
        """Not read by ``forward``: a property is one more thing that torch.compile asks for."""
        return kept(self._gate)

    @gate.setter
    def gate(self, gate: Gate | str) -> None:
        self._gate = keep(gate if isinstance(gate, Gate) else Gate(gate))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        parts = self._modules
        first, second = ("gate_up_proj", "gate_up_proj") if self.merged else ("gate_proj", "up_proj")
        gate, up, down = parts[first], parts[second], parts["down_proj"]
        if not (_is_plain(gate) and _is_plain(up) and _is_plain(down)) or _has_any_global_hook():
            return self._by_parts(gate, up, down, x, residual)
        return mlp_of(
            gate, up, down, x, kept(self._gate), merged=self.merged, residual=residual,
            recompute=self.recompute, weights_static=self.weights_static, group=self.group,
        )  # fmt: skip

    def _by_parts(
        self, gate: nn.Module, up: nn.Module, down: nn.Module, x: Tensor, residual: Tensor | None
    ) -> Tensor:
        if self.group is not None:
            raise ValueError("group: the projections are no plain nn.Linear without hooks")
        g, u = gate(x).chunk(2, -1) if self.merged else (gate(x), up(x))
        y = down(ops.gate_mul(g, u, gate=kept(self._gate)))
        return y if residual is None else y + residual

    def extra_repr(self) -> str:
        return f"gate={self.gate.activation}, merged={self.merged}, recompute={self.recompute}"
