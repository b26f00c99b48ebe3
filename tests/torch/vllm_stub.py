# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the part of vLLM that its plug-in touches. It has vLLM's interfaces and none of its code."""

import types
from typing import Any

import torch
from engine_stub import D, H, GeluAndMul, SiluAndMul
from torch import Tensor, nn
from torch.nn import functional

REDUCED: list[Tensor] = []  # what went through the all-reduce


def all_reduce(x: Tensor) -> Tensor:
    REDUCED.append(x)
    return x + 0


class UnquantizedLinearMethod:
    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, layer.weight, bias)


class Quantized(UnquantizedLinearMethod):
    pass


class Linear(nn.Module):
    """What vLLM's two linear classes have in common."""

    def __init__(self, rows: int, cols: int, *, bias: bool = False, tp_size: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, cols).bfloat16() * cols**-0.5)
        self.bias = nn.Parameter(torch.randn(rows).bfloat16()) if bias else None
        self.quant_method: UnquantizedLinearMethod = UnquantizedLinearMethod()
        self.gather_output, self.input_is_parallel, self.reduce_results = False, True, True
        self.tp_size, self.return_bias = tp_size, True

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        y = self.quant_method.apply(self, x, self.bias)
        return (all_reduce(y) if self.reduce_results and self.tp_size > 1 else y), None


class MergedColumnParallelLinear(Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.quant_method.apply(self, x, self.bias), None


class RowParallelLinear(Linear):
    pass


class QKVParallelLinear(MergedColumnParallelLinear):
    pass


class ReplicatedLinear(MergedColumnParallelLinear):
    pass


class ParallelLMHead(Linear):
    pass


class UnquantizedEmbeddingMethod(UnquantizedLinearMethod):
    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, layer.weight, bias)


class WithLoRA(nn.Module):
    """As vLLM's wrapper: the base layer's product, and what it adds itself."""

    def __init__(self, base: Linear) -> None:
        super().__init__()
        self.base_layer, self.weight = base, base.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.base_layer.quant_method.apply(self.base_layer, x, self.base_layer.bias)
        return y + 1


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width).bfloat16())
        self.variance_epsilon, self.has_weight, self.variance_size_override = eps, True, None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        r = x if residual is None else x + residual
        wide = r.float()
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        n = n.bfloat16() * self.weight
        return n if residual is None else (n, r)


class MLP(nn.Module):
    def __init__(self, act: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(2 * H, D, **options)
        self.down_proj = RowParallelLinear(D, H, **options)
        self.act_fn = act or SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.gate_up_proj(x)
        x = self.act_fn(x)
        x, _ = self.down_proj(x)
        return x


class Attention(nn.Module):
    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        return hidden_states * 0.5


class ProjectedAttention(nn.Module):
    """A rank's heads, and the projection behind them."""

    def __init__(self, tp_size: int = 1) -> None:
        super().__init__()
        self.width = 16  # a multiple of 8, as sums want it
        self.o_proj = RowParallelLinear(D, self.width, tp_size=tp_size)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        heads = torch.tanh(hidden_states[:, : self.width])
        output, _ = self.o_proj(heads)
        return output


def decoder_layer(model: str, mlp_class: type[nn.Module]) -> type[nn.Module]:
    class Layer(nn.Module):
        def __init__(self, attention: nn.Module | None = None, **options: Any) -> None:
            super().__init__()
            self.self_attn, self.mlp = attention or Attention(), mlp_class(**options)
            self.input_layernorm, self.post_attention_layernorm = RMSNorm(D), RMSNorm(D)

        def forward(
            self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            if residual is None:
                residual = hidden_states
                hidden_states = self.input_layernorm(hidden_states)
            else:
                hidden_states, residual = self.input_layernorm(hidden_states, residual)
            hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
            hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
            hidden_states = self.mlp(hidden_states)
            return hidden_states, residual

    Layer.__module__ = f"vllm.model_executor.models.{model}"
    return Layer


class Platform:
    def is_cuda(self) -> bool:
        return True

    def has_device_capability(self, capability: int) -> bool:
        return capability <= 90


def stub() -> dict[str, types.ModuleType]:
    """Modules under vLLM's names; fresh MLP and layer classes each time, since those get patched."""
    def module(name: str, **members: Any) -> types.ModuleType:
        made = types.ModuleType(f"vllm{name}")
        vars(made).update(members)
        return made

    models = ".model_executor.models"
    kinds = {
        kind: type(kind, (MLP,), {"forward": MLP.forward, "__init__": MLP.__init__,
                                  "__module__": f"vllm{models}.{model}"})
        for model, kind in (("llama", "LlamaMLP"), ("qwen2", "Qwen2MLP"), ("gemma", "GemmaMLP"),
                            ("gemma2", "Gemma2MLP"))
    }  # fmt: skip
    passes = types.SimpleNamespace(fuse_allreduce_rms=False, enable_sp=False, fuse_gemm_comms=False)
    config = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(pass_config=passes),
        parallel_config=types.SimpleNamespace(enable_dbo=False),
    )
    envs = module(".envs", environment_variables={}, VLLM_BATCH_INVARIANT=False)
    made = [
        module("", envs=envs), envs,
        module(".platforms", current_platform=Platform()),
        module(".config", get_current_vllm_config=lambda: config),
        module(".distributed", tensor_model_parallel_all_reduce=all_reduce, get_tp_group=lambda: None),
        module(".distributed.parallel_state", GraphCaptureContext=types.SimpleNamespace),
        module(".model_executor"), module(".model_executor.layers"), module(models),
        module(".model_executor.layers.activation", SiluAndMul=SiluAndMul, GeluAndMul=GeluAndMul),
        module(".model_executor.layers.layernorm", RMSNorm=RMSNorm),
        module(
            ".model_executor.layers.linear", MergedColumnParallelLinear=MergedColumnParallelLinear,
            RowParallelLinear=RowParallelLinear, UnquantizedLinearMethod=UnquantizedLinearMethod,
            QKVParallelLinear=QKVParallelLinear, ReplicatedLinear=ReplicatedLinear,
        ),
        module(".model_executor.layers.vocab_parallel_embedding", ParallelLMHead=ParallelLMHead,
               UnquantizedEmbeddingMethod=UnquantizedEmbeddingMethod),
        module(models + ".llama", LlamaMLP=kinds["LlamaMLP"],
               LlamaDecoderLayer=decoder_layer("llama", kinds["LlamaMLP"])),
        module(models + ".qwen2", Qwen2MLP=kinds["Qwen2MLP"],
               Qwen2DecoderLayer=decoder_layer("qwen2", kinds["Qwen2MLP"])),
        module(models + ".qwen3", Qwen3DecoderLayer=decoder_layer("qwen3", kinds["Qwen2MLP"])),
        module(models + ".gemma", GemmaMLP=kinds["GemmaMLP"]),
        module(models + ".gemma2", Gemma2MLP=kinds["Gemma2MLP"]),
    ]  # fmt: skip
    return {m.__name__: m for m in made}
