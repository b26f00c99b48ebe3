# SPDX-License-Identifier: Apache-2.0
"""Which modules of an engine are served. vLLM and SGLang build an MLP of the same parts under the same
names: a merged column-parallel projection, an activation that multiplies, a row-parallel projection.

A class is served where its forward is the plain gated MLP (``form``), whatever it and its version of the
engine are called; a comparison in numbers (``proof``) follows before its first module is served. Whether
the projections are still plain dense ones is asked at each call: LoRA replaces them after construction,
quantisation has its own linear methods.

vLLM's compiler traces ``Engine.activation``, ``obstacle``, ``parts`` and ``is_plain_norm``.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sluice import proof
from sluice.form import Form, spelling
from sluice.gate import ACTIVATIONS, Gate
from sluice.serving import operators

DTYPES = (torch.bfloat16, torch.float16)
REPLACED = "the projections are of another class or were replaced (LoRA)"
OTHER_FORWARD = "its class has another forward"

_SILU, _GELU_TANH, _GELU_ERF = (Gate(name).code for name in ("silu", "gelu_tanh", "gelu_erf"))


class Engine:
    """An engine's classes, and what is said of its modules. A module that is served has its ``Form`` as
    ``sluice_form``; None is for one whose forward stays the engine's."""

    def __init__(
        self, name: str, log: logging.Logger, *, merged: type, row: type, unquantised: type,
        silu: type, gelu: type, norm: type,
    ) -> None:  # fmt: skip
        self.name, self.log = name, log
        self.merged, self.row, self.unquantised = merged, row, unquantised
        self.silu, self.gelu, self.norm = silu, gelu, norm
        self._said: set[str] = set()
        self._agreed: dict[tuple[Any, ...], bool] = {}
        self._linears: dict[type, tuple[type, ...]] = {}

    def say(self, key: str, text: str) -> None:
        """One line of log for each key."""
        if key not in self._said:
            self._said.add(key)
            self.log.info("Sluice: %s", text)

    def say_left(self, kind: type, reason: str) -> None:
        """One line of log for each reason."""
        self.say(reason, f"{kind.__name__} stays {self.name}'s: {reason}")

    def activation(self, mlp: nn.Module, form: Form) -> int:
        """The gate's code, or -1 for one that Sluice does not know."""
        act = getattr(mlp, form.activation, None)
        if type(act) is self.silu:
            return _SILU
        if type(act) is self.gelu:
            return _GELU_TANH if act.approximate == "tanh" else _GELU_ERF
        return -1

    def obstacle(self, mlp: nn.Module) -> str | None:
        """Why the engine's forward has to run."""
        form = mlp.sluice_form
        if form is None:
            return OTHER_FORWARD
        if not form.takes_both or form.dropouts:
            return "gate and up are two projections"
        gate_up, down = getattr(mlp, form.gate, None), getattr(mlp, form.down, None)
        if type(gate_up) is not self.merged or type(down) is not self.row:
            return REPLACED
        # SGLang's return (y, bias) always, vLLM's unless they are told not to.
        if (
            getattr(gate_up, "return_bias", True) is not form.tuples
            or getattr(down, "return_bias", True) is not form.tuples
        ):
            return "the projections return something else"
        if (
            type(gate_up.quant_method) is not self.unquantised
            or type(down.quant_method) is not self.unquantised
        ):
            return "the weights are quantised"
        if gate_up.bias is not None or down.bias is not None:
            return "the projections have biases"
        if gate_up.gather_output or not down.input_is_parallel:
            return "the projections gather or split activations"
        if gate_up.weight.dtype not in DTYPES or down.weight.dtype is not gate_up.weight.dtype:
            return "the weights are neither bfloat16 nor float16"
        if self.activation(mlp, form) < 0:
            return "the activation is not known"
        rows, width = gate_up.weight.shape
        if down.weight.shape != (width, rows // 2):
            return f"down is {list(down.weight.shape)}, wanted [{width}, {rows // 2}]"
        return None

    def parts(self, mlp: nn.Module, form: Form) -> tuple[Tensor, Tensor, int]:
        """What the operators take of an MLP after x: w_gate_up [2H, D], w_down [D, H], the gate's code."""
        weights = getattr(mlp, form.gate).weight, getattr(mlp, form.down).weight
        return (*weights, self.activation(mlp, form))

    def is_plain_norm(self, norm: nn.Module, dtype: torch.dtype) -> bool:
        """Is it RMSNorm over whole rows, with a weight of this type?"""
        return (
            type(norm) is self.norm
            and norm.has_weight
            and norm.variance_size_override is None
            and norm.weight.dtype is dtype
        )

    def is_gated(self, mlp: nn.Module, form: Form) -> bool:
        """Has it a merged projection, in a LoRA wrapper or not? Else it is two layers and no gate, or was
        not built by its constructor, and nothing is said of it."""
        gate = getattr(mlp, form.gate, None)
        return isinstance(getattr(gate, "base_layer", gate), self.merged)

    def decide(self, mlp: nn.Module, form: Form, stock: Callable[..., Any]) -> None:
        """Sets ``sluice_form``: the form, or None where ``stock``, the engine's forward, computes something
        else. Says once of each class that it is served, and of each reason that a gated MLP is not."""
        mlp.sluice_form = form
        if not self.is_gated(mlp, form):
            return
        reason = self.obstacle(mlp)
        if reason is not None:
            self.say_left(type(mlp), reason)
        elif not self._agree(mlp, form, self._objection(mlp, form, stock) is None):  # which logs
            mlp.sluice_form = None
        else:
            getattr(mlp, form.down).sluice_mlp = True  # whose ladder has its product
            self.say(type(mlp).__name__, f"serves {type(mlp).__name__}")

    def _agree(self, mlp: nn.Module, form: Form, sound: bool) -> bool:
        """Is the MLP to be served, on all ranks where its sum may be Sluice's? Asked once of a class and shape."""
        down = getattr(mlp, form.down)
        if not getattr(down, "sluice_group", ""):
            return sound
        key = (type(mlp), down.weight.shape, down.weight.dtype, down.sluice_group)
        if key not in self._agreed:
            self._agreed[key] = operators.all_say(f"{type(mlp).__name__} {list(down.weight.shape)}", sound)
        return self._agreed[key]

    def may_be_linear(self, method: object, layer: nn.Module, x: Tensor) -> bool:
        """Is this product of a linear method one for ``sluice_serving::linear``? Traced; the token count is the
        operator's to look at. Of a LoRA wrapper ``layer`` is the base, whose product alone this is."""
        weight = getattr(layer, "weight", None)
        return (
            type(layer) in self._linears.get(type(method), ())
            and not getattr(layer, "sluice_mlp", False)
            and weight is not None
            and weight.dim() == 2
            and weight.dtype in DTYPES
            and weight.stride(1) == 1
            and x.dtype is weight.dtype
            and x.device == weight.device
        )

    def linears(self) -> str:
        """What there is to say of linear layers, behind the version and the mode."""
        names = ", ".join(kind.__name__ for kinds in self._linears.values() for kind in kinds)
        return f"; up to {operators.MOST_LINEAR} tokens of {names}" if names else ""

    def serve_linears(
        self, method: type, kinds: tuple[type | None, ...],
        refuses: Callable[[nn.Module], bool] = lambda layer: False,
    ) -> None:  # fmt: skip
        """Replaces ``apply`` of an unquantised method: the product y = x @ weight.T + bias, x [.., K], weight
        [N, K], by Sluice for layers of exactly these classes, in bfloat16 and float16. ``refuses`` is asked at
        each call. Subclasses of the method, which are quantised ones, keep theirs."""
        self._linears[method] = tuple(kind for kind in kinds if kind is not None)
        stock = method.apply
        if hasattr(stock, "sluice_stock"):
            stock = stock.sluice_stock

        def apply(method: Any, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
            if not self.may_be_linear(method, layer, x) or refuses(layer):
                return stock(method, layer, x, bias)
            return torch.ops.sluice_serving.linear(x, layer.weight, bias, True)

        apply.sluice_stock = stock  # type: ignore[attr-defined]
        method.apply = apply

    def _objection(self, mlp: nn.Module, form: Form, stock: Callable[..., Any]) -> str | None:
        """What the comparison with the engine's forward says, on the weights' device and in their type."""

        def own(twin: nn.Module, x: Tensor) -> Tensor:
            down = getattr(twin, form.down)
            down.reduce_results = False  # the twin is this rank's own
            down.sluice_mlp = True  # its product is the engine's, and no ladder is timed for it
            return stock(twin, x)

        weight = getattr(mlp, form.down).weight
        if weight.device.type == "meta":
            return None
        with _own_stream(weight.device):
            return proof.objection(
                mlp, form, Gate(ACTIVATIONS[self.activation(mlp, form)]), own,
                lambda twin, x: operators.MLP["sluice"](x, *self.parts(twin, form)), (weight.dtype,),
            )  # fmt: skip


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Without what an engine's logger tells below warnings."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


@cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def _own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """A stream for comparisons alone. Sluice keeps a workspace for each stream, and vLLM's sleep mode
    may discard what is allocated while a model is built."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(_stream(device.index))


# --- forwards by their text


@cache
def _spelling_of(function: Callable[..., Any]) -> str:
    return spelling(inspect.getsource(function))


def is_spelled(kind: type, forward: Callable[..., Any]) -> bool:
    """Has the class a forward like this one, under any names of its variables?"""
    try:
        return not hasattr(kind.forward, "__wrapped__") and (
            spelling(inspect.getsource(kind.forward)) == _spelling_of(forward)
        )
    except (OSError, TypeError, SyntaxError):
        return False


@cache
def last_product(kind: type) -> str | None:
    """The attribute of a class whose ``forward`` ends with ``y, _ = self.attribute(x)`` and ``return y``, where that is
    its one return; None elsewhere."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(kind.forward))).body
    except (AttributeError, OSError, TypeError, SyntaxError, ValueError):
        return None
    if hasattr(kind.forward, "__wrapped__") or getattr(function, "decorator_list", True):
        return None
    match getattr(function, "body", [])[-2:]:
        case [
            ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=y), ast.Name()])],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="self"), attr=attribute), args=[ast.Name()], keywords=[]
                ),
            ),
            ast.Return(value=ast.Name(id=returned)),
        ] if y == returned:  # fmt: skip
            pass
        case _:
            return None
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Attribute) and n.attr == attribute]
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    return attribute if len(uses) == len(returns) == 1 else None


def own_classes(module: ModuleType) -> Iterator[type]:
    """The classes of ``nn.Module`` that a module of Python defines with a forward of their own."""
    for kind in {id(value): value for value in vars(module).values()}.values():  # some have two names
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            continue
        if kind.__module__ == module.__name__ and "forward" in vars(kind):
            yield kind


class OnImport(importlib.abc.MetaPathFinder):
    """Calls ``serve`` with each module whose name starts with one of ``names``: those that are imported
    already, and the others when they are. Where it fails, the engine's modules stay as they are, one line
    of log says why, and it ends."""

    def __init__(
        self, names: tuple[str, ...], serve: Callable[[ModuleType], None], log: logging.Logger
    ) -> None:
        self.names, self.serve, self.log = names, serve, log
        self.failed = False
        sys.meta_path.insert(0, self)
        for name, module in list(sys.modules.items()):
            if name.startswith(names):
                self.see(module)

    def see(self, module: ModuleType) -> None:
        """Raises nothing, since a model that cannot be imported is one that cannot be served."""
        if self.failed:
            return
        try:
            self.serve(module)
        except Exception as error:  # noqa: BLE001
            self.failed = True
            self.log.warning("Sluice: not used from %s on: %s: %s", module.__name__,
                             type(error).__name__, error)  # fmt: skip

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.failed or not name.startswith(self.names):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.see(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
