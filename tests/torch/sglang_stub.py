# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the part of SGLang that its plug-in touches: registry of hooks, layers, and models in files,
in the layouts of 0.5.16 and 0.5.23. It has their interfaces and none of their code."""

import functools
import pkgutil
import types
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_stub import D, H, GeluAndMul, SiluAndMul
from torch import Tensor, nn
from torch.nn import functional

REDUCED: list[Any] = []  # forward_batch of what went through the all-reduce
FLAGS = SimpleNamespace(skip=False, sp_active=False, deterministic=False, dual=False, policy=None)


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: dict[str, list[Any]] = defaultdict(list)
    _patched: set[str] = set()

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        assert hook_type is HookType.AROUND
        cls._hooks[target].append(hook)

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hooks in cls._hooks.items():
            if target not in cls._patched:
                cls._patched.add(target)
                path, name = target.rsplit(".", 1)
                kind = pkgutil.resolve_name(path)
                for hook in hooks:
                    setattr(kind, name, cls._around(getattr(kind, name), hook))

    @staticmethod
    def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return hook(original, *arguments, **named)

        return wrapper


class UnquantizedLinearMethod:
    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, layer.weight, bias)


class Fp8LinearMethod(UnquantizedLinearMethod):
    pass


class _Linear(nn.Module):
    def __init__(self, rows: int, cols: int, *, bias: bool = False, tp_size: int = 1) -> None:
        super().__init__()
        weight = torch.randn(rows, cols).bfloat16() * cols**-0.5
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(rows).bfloat16()) if bias else None
        self.quant_method: UnquantizedLinearMethod = UnquantizedLinearMethod()
        self.gather_output, self.input_is_parallel, self.reduce_results = False, True, True
        self.set_size(tp_size)

    def set_size(self, tp_size: int) -> None:
        self.tp_size = tp_size

    def get_size(self) -> int:
        return self.tp_size


class MergedColumnParallelLinear(_Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.quant_method.apply(self, x, self.bias), None


class RowParallelLinear(_Linear):
    def forward(
        self, x: Tensor, skip_all_reduce: bool = False, forward_batch: Any = None
    ) -> tuple[Tensor, None]:
        y = self.quant_method.apply(self, x, bias=self.bias)
        if self.reduce_results and self.get_size() > 1 and not (skip_all_reduce or FLAGS.skip):
            REDUCED.append(forward_batch)
            y = y * 2
        return y, None


class QKVParallelLinear(MergedColumnParallelLinear):
    pass


class ReplicatedLinear(MergedColumnParallelLinear):
    pass


def _by_group(kind: type[nn.Module]) -> type[nn.Module]:
    """The linear class as 0.5.23 has it: with a group of ranks, and no size."""

    def set_size(self: nn.Module, tp_size: int) -> None:
        self.tp_group = None if tp_size == 1 else SimpleNamespace(world_size=tp_size)
        self.use_decode_attn_tp = False

    def get_size(self: nn.Module) -> int:
        return 1 if self.tp_group is None else self.tp_group.world_size

    return type(kind.__name__, (kind,), {"set_size": set_size, "get_size": get_size})


class RMSNorm(nn.Module):
    """Writes into both of its inputs, as SGLang's kernel does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width).bfloat16(), requires_grad=False)
        self.variance_epsilon, self.has_weight, self.variance_size_override = 1e-5, True, None
        self.cast_x_before_out_mul = self.fp32_residual = False
        self.override_orig_dtype = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        total = x.float() if residual is None else x.float() + residual.float()
        n = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + self.variance_epsilon)
        n = (n * self.weight.float()).bfloat16()
        if residual is None:
            return n
        residual.copy_(total)
        x.copy_(n)
        return x, residual


class Attention(nn.Module):
    def forward(self, positions: Tensor, hidden_states: Tensor, forward_batch: Any) -> Tensor:
        return hidden_states * 0.5


class DualGemm:
    """A kernel of SGLang's for at most 16 tokens, where FLAGS.dual says that there is one."""

    def can_run(self, x: Tensor, gate_up_proj: nn.Module) -> bool:
        return FLAGS.dual and x.shape[0] <= 16

    def __call__(self, x: Tensor, gate_up_proj: nn.Module) -> Tensor:
        return SiluAndMul()(gate_up_proj(x)[0]) * 3


class DenseSiluAndMulQuant:
    def forward_decode(self, x: Tensor, act: nn.Module, down: nn.Module) -> Tensor:
        return act(x)


_HEAD = """
from sglang_stub import *
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear

class Base(nn.Module):
    def __init__(self, act=None, **options):
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(2 * H, D, **options)
        self.down_proj = RowParallelLinear(D, H, **options)
        self.act_fn = act or SiluAndMul()
        self.dual_gemm, self.activation_quant = DualGemm(), DenseSiluAndMulQuant()
        self.swiglu_limit = None
"""
_LAYER = """
class DecoderLayer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.self_attn, self.mlp = Attention(), LlamaMLP(**options)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(D), RMSNorm(D)

    def forward(self, positions, hidden_states, forward_batch, residual):
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(
            positions=positions, hidden_states=hidden_states, forward_batch=forward_batch
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states)
        return hidden_states, residual
"""
_BRANCHED = """
        if self.dual_gemm.can_run(x, self.gate_up_proj):
            x = self.dual_gemm(x, self.gate_up_proj)
        else:
            h, _ = self.gate_up_proj(x)
            if forward_batch is not None and forward_batch.is_decode:
                x = self.activation_quant.forward_decode(h, self.act_fn, self.down_proj)
            else:
                x = self.act_fn(h)
"""
_PLAIN = """
        h, _ = self.gate_up_proj(x)
        x = self.act_fn(h)
"""


def _models(product: str) -> dict[str, str]:
    cast = "        if FLAGS.policy is not None:\n            x = x * FLAGS.policy\n"
    return {
        "llama": f"""{_HEAD}
class LlamaMLP(Base):
    def forward(self, x, forward_batch=None):
{product}
        x, _ = self.down_proj(x)
        return x

class FalconMLP(LlamaMLP):
    def forward(self, x):
        return super().forward(x) * 2
{_LAYER}""",
        "qwen2": f"""{_HEAD}
class Qwen2MLP(Base):
    def forward(self, x, forward_batch=None):
{cast}{product}
        x, _ = self.down_proj(x, forward_batch=forward_batch)
        return x
""",
        "flags": f"""{_HEAD}
class FlagsMLP(Base):
    def forward(self, x, forward_batch=None, should_allreduce_fusion=False,
                use_reduce_scatter=False, gemm_output_zero_allocator=None):
        if gemm_output_zero_allocator is not None:
            x = gemm_output_zero_allocator(x)
        h, _ = self.gate_up_proj(x)
        x = self.act_fn(h)
        x, _ = self.down_proj(x, skip_all_reduce=should_allreduce_fusion or use_reduce_scatter)
        return x
""",
    }


def modules(version: str, folder: Path) -> dict[str, types.ModuleType]:
    """Modules under SGLang's names; the models are files in the folder, for their import."""
    made = {}

    def module(name: str, **members: Any) -> None:
        made[name] = types.ModuleType(name)
        vars(made[name]).update(members)

    new = version == "0.5.23"
    merged, row = (
        _by_group(kind) if new else kind for kind in (MergedColumnParallelLinear, RowParallelLinear)
    )
    for name in ("", ".srt", ".srt.plugins", ".srt.layers", ".srt.layers.quantization"):
        module(f"sglang{name}")
    srt, layers = "sglang.srt", "sglang.srt.layers"
    registry = type("HookRegistry", (HookRegistry,), {"_hooks": defaultdict(list), "_patched": set()})
    module(f"{srt}.plugins.hook_registry", HookRegistry=registry, HookType=HookType)
    module(f"{srt}.utils", is_cuda=lambda: True)
    module(f"{srt}.runtime_context", get_forward=lambda: FLAGS)
    module(f"{srt}.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: FLAGS.deterministic)
    module(f"{layers}.activation", SiluAndMul=SiluAndMul, GeluAndMul=GeluAndMul)
    module(f"{layers}.layernorm", RMSNorm=RMSNorm)
    module(f"{layers}.linear", MergedColumnParallelLinear=merged, RowParallelLinear=row,
           QKVParallelLinear=QKVParallelLinear, ReplicatedLinear=ReplicatedLinear)
    module(f"{layers}.quantization.unquant", UnquantizedLinearMethod=UnquantizedLinearMethod)
    module(f"{srt}.models", __path__=[str(folder)])
    for name, text in _models(_BRANCHED if new else _PLAIN).items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return made
