# SPDX-License-Identifier: Apache-2.0
"""``sluice.patch(model)``: the gated MLPs of a Hugging Face model, computed by Sluice in place.

A class is served where its forward is the plain gated MLP (``form``) and a comparison in numbers
agrees (``proof``), whatever it is called. Parameters stay where they are, but for those that
``linears`` joins: state dicts, optimisers and checkpoints see no change. Modules whose projections
are no plain ``nn.Linear`` any more (LoRA, quantisation), carry hooks or a forward of their own
(offloading, tensor parallelism) or hold other tensors than dense ones are left alone, and a patched
module that becomes one of these later computes as it did before. So are those whose weights are
transposed views, which the operators would copy at every call.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sluice import capi, ops, proof
from sluice.form import Form, form_of, looks_gated
from sluice.gate import Gate
from sluice.kept import keep, kept
from sluice.nn import has_hooks, mlp_of
from sluice.serving import operators
from sluice.siblings import Siblings, at_once, is_at_once, siblings_of

ACTIVATIONS = {
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "transformers.activations.GELUActivation": "gelu_erf",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.NewGELUActivation": "gelu_tanh",
    "transformers.activations.SiLUActivation": "silu",
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
JOINED = ("cuda",)  # devices where parameters are put together; elsewhere they may be a file that is mapped


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_class_forward(module: nn.Module) -> bool:
    """A scripted module's class has none."""
    return _function_of(module) is getattr(type(module), "forward", module)


def _has_own_forward(module: nn.Module) -> bool:
    """Reads it, so that torch.compile notices when there is one. A patched module that was pickled has its
    class's."""
    if module.forward is None or "forward" not in module.__dict__:
        return module.forward is None
    return not _has_class_forward(module)


def _changed(name: str, part: nn.Module) -> str | None:
    """Why the part does something else than its class."""
    if _has_own_forward(part):
        return f"{name}.forward was replaced"
    return f"{name} has hooks" if has_hooks(part) else None


def _other_parts_obstacle(module: nn.Module, form: Form) -> str | None:
    """The same of the activation and the dropouts."""
    for name in form.dropouts:
        part = module._modules.get(name)
        if type(part) is not nn.Dropout:
            return f"{name} is {_name(type(part))}, not torch.nn.Dropout"
        if part.training and part.p > 0:
            return f"{name} is active"
        if reason := _changed(name, part):
            return reason
    activation = None if form.is_function else module._modules.get(form.activation)
    return None if activation is None else _changed(form.activation, activation)


def _bias_obstacle(linear: nn.Linear, weight: Tensor) -> str | None:
    """Of a bias that is not a value a row, which Torch may broadcast."""
    bias = linear._parameters.get("bias")
    if bias is None:
        return None
    if type(bias) is not nn.Parameter:
        return f"bias is {_name(type(bias))}, not a dense parameter"
    if bias.dtype is not weight.dtype:
        return f"bias is {bias.dtype}, weight {weight.dtype}"
    if bias.shape != weight.shape[:1]:
        return f"bias is {list(bias.shape)}, wanted {list(weight.shape[:1])}"
    return None


def _obstacle(module: nn.Module, form: Form) -> str | None:
    """Why the projections cannot be bypassed as they are now; also asked at every call: nn.Module's attributes are
    read by their dictionaries, which is faster."""
    parts = module._modules
    for name in form.projections:
        linear = parts.get(name)
        if type(linear) is not nn.Linear:
            return f"{name} is {_name(type(linear))}, not torch.nn.Linear"
        if _has_own_forward(linear):
            return f"{name}.forward was replaced (offloading or tensor parallelism)"
        if has_hooks(linear):
            return f"{name} has hooks"
        weight = linear._parameters.get("weight")
        if type(weight) is not nn.Parameter:
            return f"{name}.weight is {_name(type(linear.weight))}, not a dense parameter"
        if weight.dtype not in DTYPES:
            return f"{name}.weight is {weight.dtype}"
        if weight.dim() != 2:
            return f"{name}.weight is no matrix (a sharded parameter?)"
        if weight.stride(1) != 1:
            return f"{name}.weight is a transposed view, which every call would copy"
        if weight.dtype is not parts[form.gate]._parameters["weight"].dtype:
            return f"{name}.weight is {weight.dtype}, {form.gate}'s is another type"
        if reason := _bias_obstacle(linear, weight):
            return f"{name}.{reason}"
    gate, up = parts[form.gate]._parameters, parts[form.up]._parameters
    rows, width = gate["weight"].shape
    if up["weight"].shape != gate["weight"].shape or (up.get("bias") is None) != (gate.get("bias") is None):
        return "gate and up differ in shape or bias"
    h = rows // 2 if form.merged else rows
    down = parts[form.down]._parameters["weight"]
    if down.shape != (width, h) or rows == 0 or width == 0:
        return f"down is {list(down.shape)}, wanted [{width}, {h}] with elements"
    return _other_parts_obstacle(module, form)


def _backends() -> frozenset[str]:
    return frozenset(name for name, variants in capi.info().variants.items() if variants)


@dataclass(frozen=True)
class _Settings:
    """What a patched module carries."""

    form: Form
    gate: Gate
    activation: type | None  # of the module that the gate stands for
    backends: frozenset[str]
    parameters: tuple[str, ...] | None  # of the class's forward behind self; None where it takes any
    options: dict[str, bool]


@dataclass(frozen=True)
class _LinearSettings:
    """What a patched linear layer carries."""

    backends: frozenset[str]
    weights_static: bool


def _ours(module: nn.Module, x: Tensor, form: Form, gate: Gate, **options: bool) -> Tensor:
    parts = (module._modules[name] for name in (form.gate, form.up, form.down))
    return mlp_of(*parts, x, gate, merged=form.merged, up_first=form.up_first, **options)


def _is_dense(x: Tensor) -> bool:
    """Neither nested nor sparse."""
    return x.layout is torch.strided and not x.is_nested


def _activation_type(module: nn.Module, form: Form) -> type | None:
    if form.is_function:
        return None
    part = module._modules.get(form.activation)
    return type(part if part is not None else getattr(module, form.activation))


def _parameters_of(kind: type) -> tuple[str, ...] | None:
    parameters = tuple(inspect.signature(kind.forward).parameters.values())[1:]
    takes_any = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    return None if takes_any else tuple(p.name for p in parameters)


def _forward(self: nn.Module, *arguments: Any, **named: Any) -> Tensor:
    """x as the class's own forward takes it; what else that takes, it does not use."""
    settings: _Settings = kept(self._sluice)
    if settings.parameters is not None and (
        len(arguments) > len(settings.parameters) or any(n not in settings.parameters for n in named)
    ):
        return type(self).forward(self, *arguments, **named)  # which says what is wrong
    if not arguments and settings.form.argument not in named:
        return type(self).forward(self, **named)
    x = arguments[0] if arguments else named[settings.form.argument]
    device = x.device.type
    if (
        device not in settings.backends
        or _obstacle(self, settings.form) is not None  # else down may have no weight
        or _activation_type(self, settings.form) is not settings.activation
        or x.dtype is not self._modules[settings.form.down]._parameters["weight"].dtype
        or not _is_dense(x)
        or torch.is_autocast_enabled(device)
        or _has_any_global_hook()  # the projections' too
        or ops.is_transformed()
    ):
        return type(self).forward(self, *arguments, **named)
    return _ours(self, x, settings.form, settings.gate, **settings.options)


def _linear_obstacle(linear: nn.Module) -> str | None:
    """Why the layer's own forward has to run; also asked at every call."""
    if type(linear) is not nn.Linear:
        return f"{_name(type(linear))} is not torch.nn.Linear"
    if has_hooks(linear):
        return "it has hooks"
    weight = linear._parameters.get("weight")
    if type(weight) is not nn.Parameter:
        return f"weight is {_name(type(weight))}, not a dense parameter"
    if weight.dtype not in DTYPES:
        return f"weight is {weight.dtype}"
    if weight.dim() != 2 or 0 in weight.shape:
        return "weight is no matrix with elements (a sharded parameter?)"
    if weight.stride(1) != 1:
        return "weight is a transposed view, which every call would copy"
    return _bias_obstacle(linear, weight)


def _is_torchs(linear: nn.Linear, x: Tensor, settings: _LinearSettings) -> bool:
    """Whether the layer's own forward has to run for x: also where gradients are recorded."""
    device = x.device.type
    return (
        device not in settings.backends
        or _linear_obstacle(linear) is not None
        or x.dtype is not linear.weight.dtype
        or not _is_dense(x)
        or torch.is_autocast_enabled(device)
        or _has_any_global_hook()
        or x.dim() == 0
        or x.shape[-1] != linear.weight.shape[1]
        or ops.is_transformed()
        or (
            torch.is_grad_enabled()
            and (
                x.requires_grad
                or linear.weight.requires_grad
                or (linear.bias is not None and linear.bias.requires_grad)
            )
        )
    )


def _linear_forward(self: nn.Module, input: Tensor) -> Tensor:  # noqa: A002: as nn.Linear calls it
    """The operator chooses by the token count."""
    settings: _LinearSettings = kept(self._sluice)
    if _is_torchs(self, input, settings):
        return type(self).forward(self, input)
    return torch.ops.sluice_serving.linear(input, self.weight, self.bias, settings.weights_static)


# A bound method is pickled by its function's name. By this one a module that was patched is read as one that was
# not, also where there is no Sluice.
_forward.__name__ = _linear_forward.__name__ = "forward"


def _products(x: Tensor, *linears: nn.Linear) -> Sequence[Tensor]:
    """What linear layers of one input give: at once where ``_linear_forward`` would serve each of them."""
    first = linears[0]
    settings = kept(first._sluice) if hasattr(first, "_sluice") else None  # undone, but kept by a wrapper
    if (
        settings is None
        or x.numel() > operators.MOST_LINEAR * x.shape[-1]
        or any(_has_own_forward(linear) or _is_torchs(linear, x, settings) for linear in linears)
        or any((linear.bias is None) != (first.bias is None) for linear in linears)
    ):
        return [linear(x) for linear in linears]
    weights = [linear.weight for linear in linears]
    biases = [] if first.bias is None else [linear.bias for linear in linears]
    y = torch.ops.sluice_serving.linears(x, weights, biases, settings.weights_static)
    parts = y.split([weight.shape[0] for weight in weights], -1)
    return [part.contiguous() for part in parts]  # any view of a layer's own result is one of these


def _function_of(module: nn.Module) -> Any:
    """Of the forward of its own that a module may have."""
    return getattr(module.__dict__.get("forward"), "__func__", None)


def _has_our_forward(module: nn.Module) -> bool:
    function = _function_of(module)
    return function in (_forward, _linear_forward) or is_at_once(function)


def _replaced(module: nn.Module) -> str | None:
    """Why the module's forward cannot be replaced, where it has one of its own."""
    if "forward" not in module.__dict__ or _has_class_forward(module):
        return None
    if is_at_once(_function_of(module)) or ("_sluice" in module.__dict__ and kept(module._sluice).backends):
        return "patched already"
    return None if _has_our_forward(module) else "its forward was replaced already"


def _gate_of(module: nn.Module, form: Form) -> Gate | str:
    """The gate, or why there is none."""
    if form.is_function:
        return Gate(form.activation)
    activation = getattr(module, form.activation)
    known = ACTIVATIONS.get(_name(type(activation)))
    return Gate(known) if known else f"activation {_name(type(activation))} is not known"


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, Form | str]]:
    """Modules with the form, and those that look like a gated MLP without it, with the reason."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # it has no Python forward
        form = form_of(type(module))
        if isinstance(form, Form) and form.takes_both:  # or there is one product and no gate
            form = f"{form.down} reads {form.activation}'s result alone"
        if isinstance(form, Form):
            yield name, module, form
        elif looks_gated((*module._modules, *module._parameters)):
            yield name, module, f"{_name(type(module))}.forward: {form}"


def _objection(module: nn.Module, form: Form, gate: Gate, backends: frozenset[str]) -> str | None:
    """What the comparison in numbers says, in fp32 and in the weights' type: fp32 tells alike gates
    apart. Nothing where no kernel is for the weights' device."""
    weight = module._modules[form.down].weight
    if weight.device.type not in backends:
        return None
    return proof.objection(
        module, form, gate, type(module).forward, lambda twin, x: _ours(twin, x, form, gate),
        tuple(dict.fromkeys((torch.float32, weight.dtype))),
    )  # fmt: skip


def _undo(module: nn.Module) -> None:
    if _has_our_forward(module):
        del module.forward
    if "forward" not in module.__dict__:
        module.__dict__.pop("_sluice", None)
    elif "_sluice" in module.__dict__:  # Sluice's forward within the wrapper reads it
        module._sluice = keep(replace(kept(module._sluice), backends=frozenset()))


def unpatch(model: nn.Module) -> None:
    """``Patched.undo`` without its ``Patched``: every module of the model that ``patch`` serves gets its own forward
    back, also in a deep copy."""
    for module in model.modules():
        _undo(module)


@dataclass
class Patched:
    """What ``patch`` did: module names to their class, or to the reason why they were left. Linear layers
    apart: ``linears`` to their shape, ``linears_left`` to the reason."""

    patched: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    linears: dict[str, str] = field(default_factory=dict)
    linears_left: dict[str, str] = field(default_factory=dict)
    _modules: list[nn.Module] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Gives every module its own forward back; where somebody has wrapped Sluice's since, theirs stays,
        around the module's own. A second call does nothing."""
        for module in self._modules:
            _undo(module)
        self._modules.clear()
        self.patched.clear()
        self.linears.clear()

    def __str__(self) -> str:
        lines = [f"{len(self.patched)} of {len(self.patched) + len(self.left)} MLPs patched"]
        if self.linears or self.linears_left:
            count = len(self.linears) + len(self.linears_left)
            lines.append(f"{len(self.linears)} of {count} linear layers beside them patched")
        by_reason: dict[str, list[str]] = {}
        for name, reason in (*self.left.items(), *self.linears_left.items()):
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"left {names[0]}{more}: {reason}")
        return "\n".join(lines)


def _put_together(tensors: list[Tensor]) -> Tensor | None:
    """One view of the tensors, which are put one behind the other into a buffer of their own where their device is
    of JOINED, unless they are parts of larger ones; None where they do not lie so."""
    whole, first = operators.lie_together(tensors), tensors[0]
    if (
        whole is None
        and all(t.device == first.device and not t.is_inference() for t in tensors)
        and first.device.type in JOINED
        and all(t.numel() * t.element_size() == t.untyped_storage().nbytes() for t in tensors)
        and len({t.data_ptr() for t in tensors}) == len(tensors)  # or one layer is two of them
    ):
        whole = torch.cat(tensors)
        if first.is_cuda:
            torch.cuda.synchronize(first.device)  # other streams may read the old ones, and will read this
        for tensor, part in zip(tensors, whole.split([tensor.shape[0] for tensor in tensors])):
            tensor.data = part
    return whole


def _joined(
    module: nn.Module, group: Siblings, backends: frozenset[str], weights_static: bool, prove: bool
) -> Siblings | None:
    """The layers of the group that are one product and lie so now."""
    # Another layer between two of them may write into their input.
    runs = itertools.groupby(group.layers, lambda name: type(module._modules.get(name)) is nn.Linear)
    names = max((list(run) for plain, run in runs if plain), key=len, default=[])
    linears = [module._modules[name] for name in names]
    if len(names) < 2 or any(_has_own_forward(m) or _linear_obstacle(m) for m in linears):
        return None
    first = linears[0]
    if any(
        m.in_features != first.in_features
        or m.weight.dtype is not first.weight.dtype
        or (m.bias is None) != (first.bias is None)
        for m in linears
    ):
        return None
    # What is made in inference mode stays out of later training.
    with torch.inference_mode(False), torch.no_grad():
        bias = None
        if (weight := _put_together([m.weight for m in linears])) is None:
            return None
        if first.bias is not None and (bias := _put_together([m.bias for m in linears])) is None:
            return None
        if prove and weight.device.type in backends:  # before a graph is captured
            if isinstance(operators.linear_choice(weight, bias, weights_static), str):
                return None
    return Siblings(tuple(names), group.argument)


def _serve(linear: nn.Module, name: str, settings: str, result: Patched) -> None:
    linear._sluice = settings
    result._modules.append(linear)
    result.linears[name] = f"{linear.out_features}x{linear.in_features}"


def _patch_linears(
    model: nn.Module, result: Patched, backends: frozenset[str], weights_static: bool, prove: bool
) -> None:
    """The linear layers that belong to no MLP that is patched: those of one input at once, then the others."""
    operators.load()
    done = {id(m) for mlp in model.modules() if _function_of(mlp) is _forward for m in mlp.modules()}
    held: set[int] = set()  # by a forward of an earlier patch
    settings = keep(_LinearSettings(backends, weights_static))
    for parent, module in model.named_modules():
        again = is_at_once(_function_of(module))
        if id(module) in done or (_has_own_forward(module) and not again):
            continue
        found = (_joined(module, g, backends, weights_static, prove) for g in siblings_of(type(module)))
        groups = tuple(group for group in found if group)
        layers = [module._modules[name] for group in groups for name in group.layers]
        if again:  # its layers may have moved since
            held |= {id(layer) for layer in layers}
            continue
        if groups:
            module.forward = MethodType(at_once(type(module), groups, _products), module)
            result._modules.append(module)
        for name, layer in zip((name for group in groups for name in group.layers), layers):
            _serve(layer, f"{parent}.{name}" if parent else name, settings, result)
            done.add(id(layer))
    for name, linear in model.named_modules():
        if not isinstance(linear, nn.Linear) or id(linear) in done:
            continue
        if id(linear) in held or (_has_our_forward(linear) and kept(linear._sluice).backends):
            result.linears_left[name] = "patched already"
        elif _has_own_forward(linear):
            result.linears_left[name] = "its forward was replaced already"
        elif reason := _linear_obstacle(linear):
            result.linears_left[name] = reason
        else:
            tensors = (linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
            if prove and linear.weight.device.type in backends:
                # Before a graph is captured. The operator would find it out at its first call.
                choice = operators.linear_choice(*tensors, weights_static)
                if isinstance(choice, str):
                    result.linears_left[name] = choice
                    continue
            linear.forward = MethodType(_linear_forward, linear)
            _serve(linear, name, settings, result)


def patch(
    model: nn.Module, *, recompute: bool = False, weights_static: bool = False, prove: bool = True,
    linears: bool = False,
) -> Patched:  # fmt: skip
    """Computes the model's gated MLPs by Sluice from now on; ``print`` the result to see which.

    ``recompute`` keeps x alone for the backward pass; ``weights_static`` promises that no queued
    work writes the weights, for inference. ``prove`` compares each class's own forward with Sluice's on a
    few random tokens first, once a class, type and kind of device; a class that differs is left alone and
    logged. Under autocast, on a device that this build has no kernels for, or with activations of another
    type than the weights, a patched module computes as before. Patch before ``torch.compile``.

    ``linears`` serves plain ``nn.Linear`` modules elsewhere in the model too (q, k, v, o, lm_head), y = x @ W.T + b,
    x [.., K], W [N, K], b [N], one type: for 1 to 64 tokens without gradients, on a GPU where timing this shape
    says that Sluice is 3 % faster, on the CPU always; Torch computes the rest. Their numbers are compared once a
    shape; a layer that is left is in ``linears_left`` with the reason. Layers that a forward gives one input (q, k, v)
    are one product of up to 64 tokens: on a GPU their parameters become views of one buffer, with their values. So
    patch before graphs are captured; a state dict or a view that was taken before holds the old tensors.
    """
    backends = _backends()
    options = {"recompute": recompute, "weights_static": weights_static}
    result = Patched()
    for name, module, form in _candidates(model):
        if isinstance(form, str):
            result.left[name] = form
        elif reason := _replaced(module) or _obstacle(module, form):
            result.left[name] = reason
        elif isinstance(gate := _gate_of(module, form), str):
            result.left[name] = gate
        elif prove and (reason := _objection(module, form, gate, backends)):
            result.left[name] = reason
        else:
            activation, parameters = _activation_type(module, form), _parameters_of(type(module))
            module._sluice = keep(_Settings(form, gate, activation, backends, parameters, options))
            module.forward = MethodType(_forward, module)
            result._modules.append(module)
            result.patched[name] = type(module).__qualname__
    if linears:
        _patch_linears(model, result, backends, weights_static, prove)
    return result
