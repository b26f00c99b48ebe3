# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's classes are served, and their forwards. vLLM's compiler traces what is here.

Classes go by exact type, from a list: some sixty others look alike and compute something else. Whether
the projections are still plain dense ones is asked in each forward, at every trace: LoRA replaces them
after construction, quantisation has its own linear methods. What is not served runs vLLM's forward.

Rules of traced code: no branch on the number of tokens, which a trace would freeze (the operators choose
by it); no argument that differs between layers, or each is compiled anew; no logging.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from sluice.gate import Gate
from sluice.vllm import operators

_log = logging.getLogger("vllm.sluice")

# forward(self, x): down_proj(act_fn(gate_up_proj(x))). Read in vLLM 0.23. Mistral, Phi-3 and others
# build LlamaMLP, Qwen3 Qwen2MLP.
MLPS = ("llama.LlamaMLP", "qwen2.Qwen2MLP", "gemma.GemmaMLP", "gemma2.Gemma2MLP", "gemma3.Gemma3MLP")
# forward(self, positions, hidden_states, residual): norm, attention, add + norm, MLP.
LAYERS = ("llama.LlamaDecoderLayer", "qwen2.Qwen2DecoderLayer", "qwen3.Qwen3DecoderLayer")
DTYPES = (torch.bfloat16, torch.float16)

_SILU, _GELU_TANH, _GELU_ERF = (Gate(name).code for name in ("silu", "gelu_tanh", "gelu_erf"))
_stock: dict[type, Any] = {}  # class: vLLM's forward
_told: set[str] = set()


def _activation(mlp: nn.Module) -> int:
    """The gate's code, or -1 for one that Sluice does not know."""
    act = mlp.act_fn
    if type(act) is SiluAndMul:
        return _SILU
    if type(act) is GeluAndMul:
        return _GELU_TANH if act.approximate == "tanh" else _GELU_ERF
    return -1


def obstacle(mlp: nn.Module) -> str | None:
    """Why vLLM's forward has to run. Traced."""
    gate_up, down = mlp.gate_up_proj, mlp.down_proj
    if type(gate_up) is not MergedColumnParallelLinear or type(down) is not RowParallelLinear:
        return "the projections were replaced (LoRA)"
    if (
        type(gate_up.quant_method) is not UnquantizedLinearMethod
        or type(down.quant_method) is not UnquantizedLinearMethod
    ):
        return "the weights are quantised"
    if gate_up.bias is not None or down.bias is not None:
        return "the projections have biases"
    if gate_up.gather_output or not down.input_is_parallel:
        return "the projections gather or split activations"
    if gate_up.weight.dtype not in DTYPES or down.weight.dtype is not gate_up.weight.dtype:
        return "the weights are neither bfloat16 nor float16"
    if _activation(mlp) < 0:
        return "the activation is not known"
    return None


def _reduced(down: nn.Module, y: Tensor) -> Tensor:
    """What RowParallelLinear does after its product."""
    if down.reduce_results and down.tp_size > 1:
        return tensor_model_parallel_all_reduce(y)
    return y


def _mlp_forward(self: nn.Module, x: Tensor) -> Tensor:
    if type(self) not in _stock or obstacle(self) is not None or x.dim() != 2:
        return self.sluice_stock_forward(x)
    gate_up, down = self.gate_up_proj, self.down_proj
    return _reduced(
        down, torch.ops.sluice_vllm.mlp(x, gate_up.weight, down.weight, _activation(self))
    )


def _plain(norm: nn.Module, dtype: torch.dtype) -> bool:
    """Is it RMSNorm over whole rows, with a weight? Traced."""
    return (
        type(norm) is RMSNorm
        and norm.has_weight
        and norm.variance_size_override is None
        and norm.weight.dtype is dtype
    )


def _norms_can_move(layer: nn.Module) -> bool:
    """Are what stands around attention an add + RMSNorm each, that may be Sluice's? With tensor
    parallelism they stay: vLLM fuses each with the all-reduce before it. Traced."""
    mlp = layer.mlp
    if type(layer) not in _stock or type(mlp) not in _stock or obstacle(mlp) is not None:
        return False
    dtype = mlp.down_proj.weight.dtype
    return (
        mlp.down_proj.tp_size == 1
        and _plain(layer.input_layernorm, dtype)
        and _plain(layer.post_attention_layernorm, dtype)
    )


def _layer_forward(
    self: nn.Module, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not _norms_can_move(self):
        return self.sluice_stock_forward(positions, hidden_states, residual)
    before, mlp, behind = self.input_layernorm, self.mlp, self.post_attention_layernorm
    if residual is None:
        residual = hidden_states
        hidden_states = before(hidden_states)
    else:
        hidden_states, residual = torch.ops.sluice_vllm.add_norm(
            hidden_states, residual, before.weight, before.variance_epsilon
        )
    hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
    return torch.ops.sluice_vllm.norm_mlp(
        hidden_states, residual, behind.weight, mlp.gate_up_proj.weight, mlp.down_proj.weight,
        behind.variance_epsilon, _activation(mlp),
    )  # fmt: skip


def _mlp_init(self: nn.Module, *arguments: Any, **options: Any) -> None:
    """vLLM's constructor, then one line a reason, not a module, where its forward will run."""
    self.sluice_stock_init(*arguments, **options)
    reason = obstacle(self) if type(self) in _stock else None
    if reason is not None and reason not in _told:
        _told.add(reason)
        _log.info("Sluice: %s stays vLLM's: %s", type(self).__name__, reason)


def patch() -> list[str]:
    """Replaces the forwards; returns the classes' names. A class that this vLLM does not have is left
    out."""
    patched = []
    for names, forward in ((MLPS, _mlp_forward), (LAYERS, _layer_forward)):
        for name in names:
            module_name, _, class_name = name.rpartition(".")
            try:
                module = importlib.import_module(f"vllm.model_executor.models.{module_name}")
                kind = getattr(module, class_name)
            except (ImportError, AttributeError):
                continue
            _stock[kind] = kind.sluice_stock_forward = kind.forward
            kind.forward = forward
            if names is MLPS:
                kind.sluice_stock_init = kind.__init__
                kind.__init__ = _mlp_init
            patched.append(class_name)
    operators.load()
    return patched
