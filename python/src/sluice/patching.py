# SPDX-License-Identifier: Apache-2.0
"""``sluice.patch(model)``: the gated MLPs of a Hugging Face model, computed by Sluice in place.

Only classes whose forward was read and is the plain gated MLP are patched, by exact type. Parameters
stay where they are: state dicts, optimisers and checkpoints see no change. Modules whose projections
are no plain ``nn.Linear`` any more (LoRA, quantisation), carry hooks or a forward of their own
(offloading, tensor parallelism) or hold other tensors than dense ones are left alone, and a patched
module that becomes one of these later computes as it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from sluice import capi
from sluice.gate import Gate
from sluice.nn import merged_mlp, separate_mlp


@dataclass(frozen=True)
class _Family:
    """How the classes of one kind name their parts."""

    projections: tuple[str, ...]
    activation: str
    mlp: Callable[..., Tensor]


_SEPARATE = _Family(("gate_proj", "up_proj", "down_proj"), "act_fn", separate_mlp)
_MERGED = _Family(("gate_up_proj", "down_proj"), "activation_fn", merged_mlp)

# The forward of each was read in transformers 5.17. SmolLM and SmolLM2 are Llama models.
_MODELS = "transformers.models."
FAMILIES = {
    _MODELS + "gemma.modeling_gemma.GemmaMLP": _SEPARATE,
    _MODELS + "gemma2.modeling_gemma2.Gemma2MLP": _SEPARATE,
    _MODELS + "gemma3.modeling_gemma3.Gemma3MLP": _SEPARATE,
    _MODELS + "llama.modeling_llama.LlamaMLP": _SEPARATE,
    _MODELS + "mistral.modeling_mistral.MistralMLP": _SEPARATE,
    _MODELS + "phi3.modeling_phi3.Phi3MLP": _MERGED,
    _MODELS + "qwen2.modeling_qwen2.Qwen2MLP": _SEPARATE,
    _MODELS + "qwen3.modeling_qwen3.Qwen3MLP": _SEPARATE,
    _MODELS + "smollm3.modeling_smollm3.SmolLM3MLP": _SEPARATE,
}
ACTIVATIONS = {
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "transformers.activations.GELUActivation": "gelu_erf",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.SiLUActivation": "silu",
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _obstacle(module: nn.Module, family: _Family) -> str | None:
    """Why the projections cannot be bypassed as they are now; also asked at every call."""
    for name in family.projections:
        linear = module._modules.get(name)
        if type(linear) is not nn.Linear:
            return f"{name} is {_name(type(linear))}, not torch.nn.Linear"
        if "forward" in linear.__dict__:
            return f"{name}.forward was replaced (offloading or tensor parallelism)"
        if _has_hooks(linear):
            return f"{name} has hooks"
        weight = linear.weight
        if type(weight) is not nn.Parameter:
            return f"{name}.weight is {_name(type(weight))}, not a dense parameter"
        if weight.dtype not in DTYPES:
            return f"{name}.weight is {weight.dtype}"
    return None


def _backends() -> frozenset[str]:
    return frozenset(name for name, variants in capi.info().variants.items() if variants)


@dataclass(frozen=True)
class _Settings:
    """What a patched module carries."""

    family: _Family
    gate: Gate
    backends: frozenset[str]
    options: dict[str, bool]


def _forward(self: nn.Module, x: Tensor) -> Tensor:
    settings: _Settings = self._sluice
    device = x.device.type
    if (
        device not in settings.backends
        or _obstacle(self, settings.family) is not None  # else down_proj may have no weight
        or x.dtype is not self.down_proj.weight.dtype
        or torch.is_autocast_enabled(device)
    ):
        return type(self).forward(self, x)
    return settings.family.mlp(self, x, settings.gate, **settings.options)


def _forward_hidden_states(self: nn.Module, hidden_states: Tensor) -> Tensor:
    """Under the name that Phi-3's forward has for it."""
    return _forward(self, hidden_states)


def _has_our_forward(module: nn.Module) -> bool:
    forward = getattr(module.__dict__.get("forward"), "__func__", None)
    return forward in (_forward, _forward_hidden_states)


def _replaced(module: nn.Module) -> str | None:
    """Why the module's forward cannot be replaced, where it has one of its own."""
    if "forward" not in module.__dict__:
        return None
    settings = module.__dict__.get("_sluice")
    if settings is not None and settings.backends:
        return "patched already"
    return None if _has_our_forward(module) else "its forward was replaced already"


def _gate_of(module: nn.Module, family: _Family) -> Gate | str:
    """The gate, or why there is none."""
    activation = getattr(module, family.activation)
    known = ACTIVATIONS.get(_name(type(activation)))
    return Gate(known) if known else f"activation {_name(type(activation))} is not known"


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, _Family | None]]:
    """Modules on the list, and those that look like a gated MLP and are not."""
    for name, module in model.named_modules():
        family = FAMILIES.get(_name(type(module)))
        if family is not None or "down_proj" in module._modules:
            yield name, module, family


@dataclass
class Patched:
    """What ``patch`` did: module names to their class, or to the reason why they were left."""

    patched: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _modules: list[nn.Module] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Gives every module its own forward back; where somebody has wrapped Sluice's since, theirs stays,
        around the module's own. A second call does nothing."""
        for module in self._modules:
            if _has_our_forward(module):
                del module.forward
            if "forward" not in module.__dict__:
                module.__dict__.pop("_sluice", None)
            elif "_sluice" in module.__dict__:  # Sluice's forward within the wrapper reads it
                module._sluice = replace(module._sluice, backends=frozenset())
        self._modules.clear()
        self.patched.clear()

    def __str__(self) -> str:
        lines = [f"{len(self.patched)} of {len(self.patched) + len(self.left)} MLPs patched"]
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"left {names[0]}{more}: {reason}")
        return "\n".join(lines)


def patch(model: nn.Module, *, recompute: bool = False, weights_static: bool = False) -> Patched:
    """Computes the model's gated MLPs by Sluice from now on; ``print`` the result to see which.

    ``recompute`` keeps x alone for the backward pass; ``weights_static`` promises that no queued
    work writes the weights, for inference. Under autocast, on a device that this build has no
    kernels for, or with activations of another type than the weights, a patched module computes as
    before. Patch before ``torch.compile``.
    """
    backends = _backends()
    options = {"recompute": recompute, "weights_static": weights_static}
    result = Patched()
    for name, module, family in _candidates(model):
        kind = type(module)
        if family is None:
            result.left[name] = f"{_name(kind)} is not on the list"
        elif reason := _replaced(module) or _obstacle(module, family):
            result.left[name] = reason
        elif isinstance(gate := _gate_of(module, family), str):
            result.left[name] = gate
        else:
            module._sluice = _Settings(family, gate, backends, options)
            forward: Any = _forward_hidden_states if family is _MERGED else _forward
            module.forward = MethodType(forward, module)
            result._modules.append(module)
            result.patched[name] = kind.__qualname__
    return result
