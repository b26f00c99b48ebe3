# SPDX-License-Identifier: Apache-2.0
"""The forwards that replace those of vLLM's classes. vLLM's compiler traces what is here.

Which classes and modules are served: ``sluice.serving.layers``. Classes are looked at when their module is
imported, and compared in numbers where the first one is built, which is before graphs are captured. What
is not served runs vLLM's forward.

Rules of traced code: no branch on the number of tokens, which a trace would freeze (the operators
choose by it); no argument that differs between layers, or each is compiled anew; no logging.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
import vllm.model_executor.layers.linear as vllm_linear
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from sluice.form import Form, form_of
from sluice.serving import operators
from sluice.serving.layers import Engine, OnImport, is_spelled, own_classes
from sluice.vllm import PLUGIN

MODELS = ("vllm.model_executor.models.", "vllm.models.")

ENGINE = Engine(
    PLUGIN.engine, PLUGIN.log, merged=MergedColumnParallelLinear, row=RowParallelLinear,
    unquantised=UnquantizedLinearMethod, silu=SiluAndMul, gelu=GeluAndMul, norm=RMSNorm,
)  # fmt: skip
obstacle = ENGINE.obstacle


def _reduced(down: nn.Module, y: Tensor) -> Tensor:
    """What RowParallelLinear does after its product."""
    if down.reduce_results and down.tp_size > 1:
        return tensor_model_parallel_all_reduce(y)
    return y


def _served_mlp(stock: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """The forward of a class with this form. What it takes besides x, it does not use."""

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        x = arguments[0] if arguments else named[form.argument]
        if obstacle(self) is not None or x.dim() != 2:
            return stock(self, *arguments, **named)
        y = torch.ops.sluice_serving.mlp(x, *ENGINE.parts(self, form))
        return _reduced(getattr(self, form.down), y)

    return forward


def _norms_can_move(layer: nn.Module) -> bool:
    """Are what stands around attention an add + RMSNorm each, that may be Sluice's? With tensor
    parallelism they stay: vLLM fuses each with the all-reduce before it. Traced."""
    mlp = layer.mlp
    form = getattr(mlp, "sluice_form", None)
    if form is None or obstacle(mlp) is not None:
        return False
    down = getattr(mlp, form.down)
    return (
        down.tp_size == 1
        and ENGINE.is_plain_norm(layer.input_layernorm, down.weight.dtype)
        and ENGINE.is_plain_norm(layer.post_attention_layernorm, down.weight.dtype)
    )


class _StockLayer:
    """The forward that a decoder layer must have for its norms to be served, under any names of its
    variables; some twenty classes of vLLM do."""

    def forward(self, positions, hidden_states, residual):  # type: ignore[no-untyped-def]
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states)
        return hidden_states, residual


def _served_layer(stock: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        self: nn.Module, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> Any:
        if not _norms_can_move(self):
            return stock(self, positions, hidden_states, residual)
        before, mlp, behind = self.input_layernorm, self.mlp, self.post_attention_layernorm
        if residual is None:
            residual = hidden_states
            hidden_states = before(hidden_states)
        else:
            hidden_states, residual = torch.ops.sluice_serving.add_norm(
                hidden_states, residual, before.weight, before.variance_epsilon
            )
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        w_gate_up, w_down, activation = ENGINE.parts(mlp, mlp.sluice_form)
        return torch.ops.sluice_serving.norm_mlp(
            hidden_states, residual, behind.weight, w_gate_up, w_down, behind.variance_epsilon,
            activation,
        )  # fmt: skip

    return forward


def _has_its_names(stock: Callable[..., Any]) -> bool:
    """Whether a decoder layer's forward can be called by the names of ``_served_layer``'s."""
    names = list(inspect.signature(stock).parameters)[1:]
    return names == ["positions", "hidden_states", "residual"]


def _checked_init(init: Callable[..., None], form: Form, served: Any, stock: Any) -> Any:
    """The constructor; then whether the forward of this module will be Sluice's."""

    def __init__(self: nn.Module, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        if type(self).forward is served:  # else a subclass with a forward of its own
            ENGINE.decide(self, form, stock)

    return __init__


def _serve(module: ModuleType) -> None:
    """Replaces the forwards of the classes that a module defines."""
    for kind in own_classes(module):
        form, stock = form_of(kind), kind.forward
        if isinstance(form, Form):
            kind.sluice_form = None  # a module without the constructor's check
            kind.forward = _served_mlp(stock, form)
            kind.__init__ = _checked_init(kind.__init__, form, kind.forward, stock)
        elif is_spelled(kind, _StockLayer.forward) and _has_its_names(stock):
            kind.forward = _served_layer(stock)
        else:
            continue
        kind.sluice_stock_forward = stock


LINEARS = ("QKVParallelLinear", "RowParallelLinear", "ReplicatedLinear")


def _serve_linears() -> None:
    """QKV, output projections, routers and the head, where they are these very classes."""
    kinds = tuple(getattr(vllm_linear, name, None) for name in LINEARS)
    ENGINE.serve_linears(UnquantizedLinearMethod, kinds)
    try:
        from vllm.model_executor.layers import vocab_parallel_embedding as vocabulary

        ENGINE.serve_linears(vocabulary.UnquantizedEmbeddingMethod, (vocabulary.ParallelLMHead,))
    except (ImportError, AttributeError) as error:
        ENGINE.say("head", f"the head stays {ENGINE.name}'s: {error}")


def patch(linears: bool = True) -> None:
    """Serves what is imported and what will be."""
    operators.load()
    if linears:
        _serve_linears()
    OnImport(MODELS, _serve, PLUGIN.log)
