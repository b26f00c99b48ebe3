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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
import vllm.model_executor.layers.linear as vllm_linear
from vllm.distributed import get_tp_group, tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from sluice.form import Form, form_of
from sluice.serving import operators, reduced
from sluice.serving.layers import DTYPES, Engine, OnImport, is_spelled, last_product, own_classes, quiet
from sluice.vllm import PLUGIN

MODELS = ("vllm.model_executor.models.", "vllm.models.")
# That look for vLLM's all-reduces, by the names of several versions.
PASSES = (
    "fuse_allreduce_rms", "enable_sp", "fuse_gemm_comms", "enable_fi_allreduce_fusion",
    "enable_sequence_parallelism", "enable_async_tp",
)  # fmt: skip

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
        down, parts = getattr(self, form.down), ENGINE.parts(self, form)
        if down.reduce_results and down.sluice_group and down.weight.shape[1] % 8 == 0:
            return torch.ops.sluice_serving.mlp_reduce(x, *parts, down.sluice_group)
        return _reduced(down, torch.ops.sluice_serving.mlp(x, *parts))

    return forward


def _are_plain_norms(layer: nn.Module, dtype: torch.dtype) -> bool:
    """Are what stands around attention an add + RMSNorm each, that may be Sluice's? Traced."""
    return ENGINE.is_plain_norm(layer.input_layernorm, dtype) and ENGINE.is_plain_norm(
        layer.post_attention_layernorm, dtype
    )


def _norms_can_move(layer: nn.Module) -> bool:
    """May the norms join the operators of one rank that has no others? Traced."""
    mlp = layer.mlp
    form = getattr(mlp, "sluice_form", None)
    if form is None or obstacle(mlp) is not None:
        return False
    down = getattr(mlp, form.down)
    return down.tp_size == 1 and _are_plain_norms(layer, down.weight.dtype)


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


def _summed_layer(
    layer: nn.Module, output: nn.Module, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The layer whose attention leaves its output projection to it. Traced."""
    before, behind = layer.input_layernorm, layer.post_attention_layernorm
    plain = _is_plain_row(output) and _are_plain_norms(layer, output.weight.dtype)  # still
    if residual is None:
        residual = hidden_states
        hidden_states = before(hidden_states)
    elif plain:
        hidden_states, residual = torch.ops.sluice_serving.add_norm(
            hidden_states, residual, before.weight, before.variance_epsilon
        )
    else:
        hidden_states, residual = before(hidden_states, residual)
    heads = layer.self_attn(positions=positions, hidden_states=hidden_states)
    if plain:
        hidden_states, residual = torch.ops.sluice_serving.linear_reduce_norm(
            heads, output.weight, residual, behind.weight, behind.variance_epsilon, output.sluice_group
        )
    else:
        y = output.sluice_project(heads)
        hidden_states, residual = behind(y[0] if output.return_bias else y, residual)
    return layer.mlp(hidden_states), residual


def _served_layer(stock: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        self: nn.Module, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> Any:
        output = getattr(self.self_attn, self.sluice_output) if self.sluice_output else None
        if getattr(output, "sluice_defers", False):  # a LoRA wrapper in its place does not say so
            return _summed_layer(self, output, positions, hidden_states, residual)
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


# --- sums over ranks


def _sum_obstacle() -> str | None:
    """Why vLLM's all-reduces stay, in the model that is being built."""
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    passes = config.compilation_config.pass_config
    for name in PASSES:
        if getattr(passes, name, False):
            return f"vLLM's compiler has a pass of its own for them ({name})"
    if not any(hasattr(passes, name) for name in PASSES):
        return "the passes of this vLLM's compiler are not known"
    parallel = config.parallel_config
    if getattr(parallel, "use_ubatching", getattr(parallel, "enable_dbo", False)):
        return "several batches run at once"
    return None


@contextmanager
def capturing(stream: Any) -> Iterator[None]:
    """On a stream, what vLLM has around a capture: its custom all-reduce, which runs on the addresses that a graph
    was captured with, tells them to the other ranks behind it."""
    from vllm.distributed.parallel_state import GraphCaptureContext

    custom = getattr(get_tp_group().device_communicator, "ca_comm", None)
    outer = getattr(custom, "_IS_CAPTURING", False)
    try:
        with quiet("vllm.distributed"), get_tp_group().graph_capture(GraphCaptureContext(stream)):
            yield
    finally:
        if outer:  # vLLM captures around this, and its context's end has said that nobody does
            custom._IS_CAPTURING = True


def _group_of(row: nn.Module) -> str:
    """vLLM's word for the group over which Sluice may sum what the layer multiplies; nothing where it may not."""
    if row.tp_size == 1:
        return ""
    try:
        from vllm.distributed.parallel_state import GraphCaptureContext as _  # as ``capturing`` does

        reason, group = _sum_obstacle(), get_tp_group()
        if reason is None:
            return reduced.use_group(group.unique_name, group.device_group)
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}"
    ENGINE.say("sums", f"sums over ranks stay {ENGINE.name}'s: {reason}")
    return ""


def _is_plain_row(row: nn.Module) -> bool:
    """Is it a product without bias whose sum is Sluice's? Traced."""
    return (
        type(row) is RowParallelLinear
        and bool(row.sluice_group)
        and row.reduce_results
        and row.input_is_parallel
        and row.bias is None
        and type(row.quant_method) is UnquantizedLinearMethod
        and row.weight.dtype in DTYPES
        and row.weight.shape[0] % 8 == 0
        and row.weight.shape[1] % 8 == 0
    )


def _serve_rows() -> None:
    """Output projections, and what else is a ``RowParallelLinear``: the product and its sum."""
    init, stock = RowParallelLinear.__init__, RowParallelLinear.forward
    if hasattr(stock, "sluice_stock"):
        return

    def __init__(self: nn.Module, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.sluice_group = _group_of(self)

    def project(self: nn.Module, input_: Tensor) -> Any:
        if not (_is_plain_row(self) and input_.dim() == 2 and input_.dtype is self.weight.dtype):
            return stock(self, input_)
        y = torch.ops.sluice_serving.linear_reduce(input_, self.weight, self.sluice_group)
        return (y, None) if self.return_bias else y

    def forward(self: nn.Module, input_: Tensor) -> Any:
        if self.sluice_defers:
            return (input_, None) if self.return_bias else input_
        return project(self, input_)

    forward.sluice_stock = stock  # type: ignore[attr-defined]
    RowParallelLinear.__init__, RowParallelLinear.forward = __init__, forward
    RowParallelLinear.sluice_project = project


def _joined_init(init: Callable[..., None], served: Any) -> Any:
    """The constructor of a decoder layer; then whether its attention leaves the output projection to it, whose
    product, sum, residual and norm are one operator."""

    def __init__(self: nn.Module, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.sluice_output = ""
        output = last_product(type(self.self_attn)) if type(self).forward is served else None
        row = getattr(self.self_attn, output, None) if output else None
        if row is None or "forward" in vars(row) or "forward" in vars(self.self_attn):
            return
        if _is_plain_row(row) and _are_plain_norms(self, row.weight.dtype):
            self.sluice_output, row.sluice_defers = output, True

    return __init__


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
            kind.sluice_output = ""  # a module without the constructor's check
            if kind.__init__ is not nn.Module.__init__:
                kind.__init__ = _joined_init(kind.__init__, kind.forward)
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


def patch(linears: bool = True, sums: bool = True) -> None:
    """Serves what is imported and what will be."""
    operators.load()
    reduced.configure(tensor_model_parallel_all_reduce, capturing)
    RowParallelLinear.sluice_group, RowParallelLinear.sluice_defers = "", False
    if sums:
        _serve_rows()
    if linears:
        _serve_linears()
    OnImport(MODELS, _serve, PLUGIN.log)
