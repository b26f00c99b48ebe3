# SPDX-License-Identifier: Apache-2.0
"""Linear layers that a ``forward`` gives the same input, as q, k and v of attention, by one product: which they
are, read from its syntax, and the same ``forward`` with them computed at once. Standard library only.

A class's text is not changed: a copy of its function runs in its module's globals, and differs in one call
before the first of the layers and in the names that stand where the layers were called."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

_FACTS = ("device", "dtype", "ndim", "shape")  # of a tensor, which reading does not change
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)
# What may run a part of a statement later, or not at all.
_DEFERRED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr,
             ast.Await, ast.Yield, ast.YieldFrom, ast.IfExp, ast.BoolOp)  # fmt: skip
_PRODUCTS = "_sluice_products"  # the function's name for what computes them
_made: set[FunctionType] = set()


@dataclass(frozen=True)
class Siblings:
    """The attributes of the layers, in the order of their calls, and ``forward``'s name for their input."""

    layers: tuple[str, ...]
    argument: str


def _call_of(node: ast.AST) -> tuple[str, str] | None:
    """Layer and argument of ``self.layer(argument)``."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("self"), layer), [ast.Name(argument)], []):
            return layer, argument
    return None


def _touched(statement: ast.stmt) -> set[str]:
    """Names that a statement binds, or hands to anything but a layer: it might write into them."""
    harmless = {
        id(node.value) for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and node.attr in _FACTS
    } | {id(node.args[0]) for node in ast.walk(statement) if isinstance(node, ast.Call) and _call_of(node)}
    return {
        node.id for node in ast.walk(statement)
        if isinstance(node, ast.Name) and (not isinstance(node.ctx, ast.Load) or id(node) not in harmless)
    }  # fmt: skip


def _read(node: ast.FunctionDef) -> list[tuple[Siblings, int]]:
    """And the index of the first one's statement."""
    found: list[tuple[Siblings, int]] = []
    open_: dict[str, tuple[list[str], int]] = {}

    def close(argument: str) -> None:
        layers, first = open_.pop(argument, ([], 0))
        if len(layers) > 1 and len(set(layers)) == len(layers):
            found.append((Siblings(tuple(layers), argument), first))

    for index, statement in enumerate(node.body):
        simple = isinstance(statement, _SIMPLE)
        simple = simple and not any(isinstance(part, _DEFERRED) for part in ast.walk(statement))
        calls = [call for part in ast.walk(statement) if (call := _call_of(part))]
        touched = _touched(statement) | (set() if simple else {argument for _, argument in calls})
        for argument in touched:
            close(argument)
        for layer, argument in calls:
            if argument not in touched:
                open_.setdefault(argument, ([], index))[0].append(layer)
    for argument in list(open_):
        close(argument)
    return found


def _function(kind: type) -> tuple[Callable[..., Any], ast.FunctionDef] | None:
    forward = kind.forward
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return None
    if forward.__code__.co_freevars:  # super(), or names of a function around the class
        return None
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(forward))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    private = any(
        isinstance(part, ast.Attribute) and part.attr.startswith("__") and not part.attr.endswith("__")
        for part in ast.walk(node)
    )
    return None if private or not isinstance(node, ast.FunctionDef) or node.decorator_list else (forward, node)


@functools.cache
def siblings_of(kind: type) -> tuple[Siblings, ...]:
    """The groups of a class's ``forward``; none where it cannot be read or copied."""
    read = _function(kind)
    return tuple(found for found, _ in _read(read[1])) if read else ()


class _Replace(ast.NodeTransformer):
    def __init__(self, names: dict[tuple[str, str], str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if (call := _call_of(node)) in self._names:
            return ast.copy_location(ast.Name(self._names[call], ast.Load()), node)
        self.generic_visit(node)
        return node


def _computed_before(node: ast.FunctionDef, group: Siblings, first: int, number: int) -> None:
    """``names = _sluice_products(argument, self.layer, ...)`` before the statement of the first call."""
    names = [f"_sluice_{number}_{layer}" for layer in group.layers]
    replace = _Replace({(layer, group.argument): name for layer, name in zip(group.layers, names)})
    layers = ", ".join(f"self.{layer}" for layer in group.layers)
    text = f"{', '.join(names)} = {_PRODUCTS}({group.argument}, {layers})"
    (before,) = ast.parse(text).body
    for part in ast.walk(before):
        ast.copy_location(part, node.body[first])
    left = len(group.layers)
    for index in range(first, len(node.body)):
        if left == 0:
            break
        left -= sum(_call_of(part) in replace._names for part in ast.walk(node.body[index]))
        node.body[index] = replace.visit(node.body[index])
    node.body.insert(first, before)


@functools.cache
def at_once(
    kind: type, groups: tuple[Siblings, ...], products: Callable[..., tuple[Any, ...]]
) -> FunctionType:
    """The class's ``forward``, where ``products(x, *layers)`` gives what the layers of each group give for x."""
    forward, node = _function(kind)  # type: ignore[misc]
    for argument in (a for a in ast.walk(node.args) if isinstance(a, ast.arg)):
        argument.annotation = None
    node.returns = None
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
    # The last ones first: a statement before them moves none of the others.
    for number, (group, first) in sorted(enumerate(_read(node)), key=lambda item: -item[1][1]):
        if group in groups:
            _computed_before(node, group, first, number)
    ast.increment_lineno(node, forward.__code__.co_firstlineno - 1)
    around = ast.parse(f"def make({_PRODUCTS}): return forward").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body.insert(0, node)
    tree = ast.fix_missing_locations(ast.Module([around], []))
    made: dict[str, Any] = {}
    exec(compile(tree, forward.__code__.co_filename, "exec"), forward.__globals__, made)  # noqa: S102
    function = made["make"](products)
    function.__defaults__, function.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__
    function.__qualname__, function.__module__ = forward.__qualname__, forward.__module__
    _made.add(function)
    return function


def is_at_once(function: Any) -> bool:
    """Made by ``at_once``."""
    return function in _made
