# SPDX-License-Identifier: Apache-2.0
"""Hooks around the forwards of SGLang's MLPs and decoder layers.

Which classes and modules are served: ``sluice.serving.layers``. Classes are looked at when their module is
imported; a module of theirs is looked at, and its class compared in numbers, at its first call, which is one
of the runs that SGLang makes before it captures a graph. What is not served runs SGLang's forward, with
the arguments as they came.

SGLang's own ``RowParallelLinear.forward`` runs around the product of this rank: reductions, flags of the
batch and symmetric memory stay its own.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import sglang.srt.layers.linear as sglang_linear
import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers.activation import GeluAndMul, SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.plugins import hook_registry
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_forward
from torch import Tensor, nn

from sluice import capi
from sluice.form import Call, Form, form_of
from sluice.serving import operators
from sluice.serving.layers import REPLACED, Engine, is_spelled, own_classes, quiet
from sluice.sglang import PLUGIN

DEVICES = ("cuda",)  # what weights may lie on; tests have no other than the CPU

ENGINE = Engine(
    PLUGIN.engine, PLUGIN.log, merged=MergedColumnParallelLinear, row=RowParallelLinear,
    unquantised=UnquantizedLinearMethod, silu=SiluAndMul, gelu=GeluAndMul, norm=RMSNorm,
)  # fmt: skip

Stock = Callable[..., Any]  # SGLang's forward


class _Hooks(HookRegistry):
    """SGLang's registry of hooks with targets of its own, so that applying them, which happens while a module
    is imported, touches no hook of another plug-in."""

    _hooks = defaultdict(list)
    _patched: set[str] = set()


@dataclass
class _Hooked:
    """What is known of an MLP class with the form."""

    form: Form
    stock: Stock
    call: Call


_records: dict[Stock | None, _Hooked] = {}  # by the forward: a subclass may call its base's

# --- which modules


@cache
def _is_old(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)


def obstacle(mlp: nn.Module) -> str | None:
    """Why SGLang's forward has to run."""
    reason = ENGINE.obstacle(mlp)
    if reason is not None:
        return reason
    gate_up, down = getattr(mlp, mlp.sluice_form.gate), getattr(mlp, mlp.sluice_form.down)
    if "forward" in vars(gate_up) or "forward" in vars(down):
        return REPLACED
    device = down.weight.device
    if device.type not in DEVICES or gate_up.weight.device != device:
        return f"the weights lie on {gate_up.weight.device} and {device}"
    if _is_old(device):
        return "the GPU is older than compute capability 8.0"
    if getattr(get_forward(), "sp_active", False):
        return "tokens are shared out between ranks, and projections gather and scatter them"
    if is_batch_invariant_mode_enabled():
        return "inference is deterministic, and the choice of kernels goes by the batch"
    return None


def _hooked(mlp: nn.Module) -> _Hooked | None:
    """Of the class whose forward this module has; None where that is not hooked, or by others too."""
    return _records.get(getattr(type(mlp).forward, "__wrapped__", None))


def _is_served(mlp: nn.Module, hooked: _Hooked) -> bool:
    """Is this module Sluice's? Decides it at its first call, unless a graph is being captured."""
    if "sluice_form" not in vars(mlp):
        if operators.is_capturing():
            return False
        _say_version()
        ENGINE.decide(mlp, hooked.form, hooked.stock)
    reason = obstacle(mlp)
    if reason is not None and mlp.sluice_form is not None and ENGINE.is_gated(mlp, hooked.form):
        ENGINE.say_left(type(mlp), reason)
    return reason is None


@cache
def _say_version() -> None:
    PLUGIN.log.info("Sluice: %s, %s%s", capi.version(), PLUGIN.mode(), ENGINE.linears())


def _fits(x: Any, weight: Tensor) -> bool:
    """Tokens in rows, of the weights' type; SGLang quantises some into tuples."""
    return (
        isinstance(x, Tensor)
        and x.dim() == 2
        and x.shape[0] > 0
        and x.dtype is weight.dtype
        and x.device == weight.device
    )


# --- what runs in their place


class _Product:
    """Linear method of ``down`` for one call: the whole MLP of x in place of ``x @ w_down.T``."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        self.run = run

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.run(x)


def _down_with(down: nn.Module, run: Callable[[Tensor], Tensor]) -> nn.Module:
    """``down`` as it is now, weights shared, with this product."""
    twin = copy.copy(down)
    twin.quant_method = _Product(run)
    return twin


def _own_product(mlp: nn.Module, form: Form, x: Tensor) -> Tensor:
    """y of this rank by SGLang's kernels, without a reduction."""
    gate_up, down = getattr(mlp, form.gate), getattr(mlp, form.down)
    h = getattr(mlp, form.activation)(gate_up.quant_method.apply(gate_up, x, None))
    return down.quant_method.apply(down, h, None)


def _product(mlp: nn.Module, form: Form, x: Tensor) -> Tensor:
    """y of this rank by the kernels that are chosen."""
    parts = ENGINE.parts(mlp, form)
    ways = {**operators.MLP, "stock": lambda x, *_: _own_product(mlp, form, x)}
    way = operators.chosen(
        "mlp", ways, x, parts[1], parts[2], lambda way, m: way(x[:m], *parts)
    )  # fmt: skip
    return way(x, *parts)


def _hook_mlp(stock: Stock, mlp: nn.Module, *arguments: Any, **named: Any) -> Any:
    """Around the forward of an MLP class."""
    passed = None
    # Traced code would freeze the choice; SGLang's own forward is what its compiler knows.
    if not torch.compiler.is_compiling():
        try:
            hooked = _records[stock]
            x, has_form, options = hooked.call(mlp, *arguments, **named)
            if has_form and _is_served(mlp, hooked):
                if _fits(x, getattr(mlp, hooked.form.down).weight):
                    passed = options
        except Exception as error:  # noqa: BLE001
            ENGINE.say_left(type(mlp), f"{type(error).__name__}: {error}")
    if passed is None:
        return stock(mlp, *arguments, **named)
    form = hooked.form
    down = _down_with(getattr(mlp, form.down), lambda x: _product(mlp, form, x))
    return down(x, **passed)[0]


class _StockLayer:
    """The forward that a decoder layer must have for the norm before its MLP to be served, under any names
    of its variables."""

    def forward(self, positions, hidden_states, forward_batch, residual):  # type: ignore[no-untyped-def]
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(
            positions=positions,
            hidden_states=hidden_states,
            forward_batch=forward_batch,
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states)
        return hidden_states, residual


def _is_whole(down: nn.Module) -> bool:
    """Is the product of this rank the result, with nothing to reduce?"""
    if hasattr(down, "tp_size"):
        size = down.tp_size
    else:  # SGLang 0.5.23 keeps the group, None for one rank
        size = 1 if down.tp_group is None else down.tp_group.world_size
    return size == 1 and not getattr(down, "use_decode_attn_tp", False)


def _takes_norm(layer: nn.Module, x: Tensor) -> _Hooked | None:
    """The MLP's record, where the add + RMSNorm before it may join it. ``x`` has the shape and type of what
    the MLP will get."""
    mlp, norm = layer.mlp, layer.post_attention_layernorm
    hooked = _hooked(mlp)
    if hooked is None:
        return None
    _, has_form, _ = hooked.call(mlp, x)
    if not has_form or not _is_served(mlp, hooked):
        return None
    down = getattr(mlp, hooked.form.down)
    joins = (
        _is_whole(down)
        and _fits(x, down.weight)
        and ENGINE.is_plain_norm(norm, down.weight.dtype)
        and not (norm.cast_x_before_out_mul or norm.fp32_residual or norm.override_orig_dtype)
        and "forward" not in vars(norm)
    )
    return hooked if joins else None


def _norm_product(
    layer: nn.Module, form: Form, x: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """y and x + residual by the kernels that are chosen."""
    mlp, norm = layer.mlp, layer.post_attention_layernorm

    def own(x: Tensor, residual: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        n, r = norm(x, residual)
        return _own_product(mlp, form, n), r

    parts = ENGINE.parts(mlp, form)
    rest = (norm.weight, *parts[:2], norm.variance_epsilon, parts[2])

    @cache
    def copies() -> tuple[Tensor, Tensor]:
        return x.clone(), residual.clone()  # SGLang's norm writes into both

    way = operators.chosen(
        "norm_mlp", {**operators.NORM_MLP, "stock": own}, x, parts[1], parts[2],
        lambda way, m: way(*(t[:m] for t in copies()), *rest),
    )  # fmt: skip
    return way(x, residual, *rest)


def _hook_layer(stock: Stock, layer: nn.Module, *arguments: Any, **named: Any) -> Any:
    """Around the forward of a decoder layer of the form of ``_StockLayer``."""
    hooked = None
    if not torch.compiler.is_compiling():
        try:
            values = _signature(stock).bind(layer, *arguments, **named).arguments.values()
            _, positions, x, forward_batch, residual = values
            hooked = _takes_norm(layer, x)
        except Exception as error:  # noqa: BLE001
            ENGINE.say_left(type(layer), f"{type(error).__name__}: {error}")
    if hooked is None:
        return stock(layer, *arguments, **named)
    if residual is None:
        residual = x
        x = layer.input_layernorm(x)
    else:
        x, residual = layer.input_layernorm(x, residual)
    x = layer.self_attn(positions=positions, hidden_states=x, forward_batch=forward_batch)
    return _norm_product(layer, hooked.form, x, residual)


@cache
def _signature(function: Stock) -> inspect.Signature:
    return inspect.signature(function)


# --- linear layers

LINEARS = ("QKVParallelLinear", "RowParallelLinear", "ReplicatedLinear")


def _refuses(layer: nn.Module) -> bool:
    device = layer.weight.device
    return (
        torch.compiler.is_compiling()
        or device.type not in DEVICES
        or _is_old(device)
        or is_batch_invariant_mode_enabled()
    )


@cache
def _serve_linears() -> None:
    """QKV, output projections and routers, where they are these very classes. The head's product is not a
    linear method's here."""
    if PLUGIN.serves("LINEARS"):
        kinds = tuple(getattr(sglang_linear, name, None) for name in LINEARS)
        ENGINE.serve_linears(UnquantizedLinearMethod, kinds, _refuses)


# --- when a module of Python is imported


def serve(module: ModuleType) -> None:
    """Hooks the forwards of the classes that a module defines."""
    _serve_linears()
    for kind in own_classes(module):
        if getattr(module, kind.__name__, None) is not kind:
            continue  # a target goes by its name
        form, stock = form_of(kind, conditional=True), kind.forward
        if isinstance(form, Form) and form.takes_both:
            _records[stock] = _Hooked(form, stock, Call(stock, form))
            hook = _hook_mlp
        elif is_spelled(kind, _StockLayer.forward):
            hook = _hook_layer
        else:
            continue
        _Hooks.register(f"{module.__name__}.{kind.__name__}.forward", hook, HookType.AROUND)
    with quiet(hook_registry.__name__):  # it has a line for each of dozens of targets
        _Hooks.apply_hooks()
