# SPDX-License-Identifier: Apache-2.0
"""Linear layers that a ``forward`` gives the same input, as q, k and v of attention, by one product: which they
are, read from its syntax, and the same ``forward`` with them computed at once. Standard library only.

A class's text is not changed: a copy of its function runs in its module's globals, and differs in one call
before the first of the layers and in the names that stand where the layers were called. Nothing between the
first and the last of them may write into a tensor or bind a name that they read, as far as syntax tells: what a
method of the class does with tensors that it has kept, it does not."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_FACTS = ("device", "dtype", "ndim", "shape")  # of a tensor, which reading does not change
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)
# What may run a part of a statement later, or not at all.
_DEFERRED = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield,
             ast.YieldFrom, ast.IfExp, ast.BoolOp, ast.Compare)  # fmt: skip
# What may bind a forward's names, or run later what is written here.
_SCOPES = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Global, ast.Lambda, ast.Nonlocal)
_REFLECTION = ("eval", "exec", "globals", "locals", "vars")
_WRITES = re.compile(r"(?!__).*[^_]_|__setitem__|__i\w+__")  # methods that write into their tensor
_PRODUCTS = "_sluice_products"  # the function's name for what computes them
_made: set[FunctionType] = set()


@dataclass(frozen=True)
class Siblings:
    """The attributes of the layers, in the order of their calls, and ``forward``'s name for their input."""

    layers: tuple[str, ...]
    argument: str

    def holds(self, other: Siblings) -> bool:
        return self.argument == other.argument and set(other.layers) <= set(self.layers)


def _call_of(node: ast.AST) -> tuple[str, str] | None:
    """Layer and argument of ``self.layer(argument)``."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("self"), layer), [ast.Name(argument)], []):
            return layer, argument
    return None


def _writes(node: ast.AST) -> bool:
    """Whether it may write into a tensor, or an attribute."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(attr=name):
            return _WRITES.fullmatch(name) is not None
        case ast.keyword("out" | "inplace"):
            return True
    return False


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
        parts = list(ast.walk(statement))
        simple = isinstance(statement, _SIMPLE) and not any(isinstance(part, _DEFERRED) for part in parts)
        if not simple or any(_writes(part) for part in parts):
            for argument in list(open_):
                close(argument)
            continue
        calls = [part for part in parts if isinstance(part, ast.Call) and _call_of(part)]
        touched = _touched(statement)
        for argument in touched:
            close(argument)
        for call in sorted(calls, key=lambda part: (part.lineno, part.col_offset)):
            layer, argument = _call_of(call)  # type: ignore[misc]
            if argument not in touched:
                open_.setdefault(argument, ([], index))[0].append(layer)
    for argument in list(open_):
        close(argument)
    return found


def _code_of(node: ast.FunctionDef) -> CodeType:
    """Of the function alone."""
    code = compile(ast.fix_missing_locations(ast.Module([node], [])), "<forward>", "exec", dont_inherit=True)
    return next(const for const in code.co_consts if isinstance(const, CodeType))


def _facts(code: CodeType) -> tuple[Any, ...]:
    """What the same text gives the same: no text of strings, whose indentation differs."""
    consts = [const for const in code.co_consts if not isinstance(const, (str, CodeType))]
    return code.co_names, code.co_varnames, repr(consts)


def _parse(function: FunctionType) -> ast.FunctionDef | None:
    """Its text, where this is what runs, and a copy of it would do the same."""
    if hasattr(function, "__wrapped__") or function.__code__.co_freevars:  # super(), or names around the class
        return None
    try:
        source = inspect.getsource(function)
        indented = source[:1].isspace()  # kept, or the strings in it change
        body = ast.parse("if True:\n" + source if indented else source).body
        (node,) = body[0].body if indented and isinstance(body[0], ast.If) else body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return None
    ast.increment_lineno(node, function.__code__.co_firstlineno - node.lineno)
    for part in ast.walk(node):
        if part is not node and isinstance(part, _SCOPES):
            return None
        if isinstance(part, ast.Name) and part.id in _REFLECTION:
            return None
        if isinstance(part, ast.Attribute) and part.attr.startswith("__") and not part.attr.endswith("__"):
            return None  # a class changes the name
    for argument in (part for part in ast.walk(node.args) if isinstance(part, ast.arg)):
        argument.annotation = None
    node.returns = None
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [default and ast.Constant(None) for default in node.args.kw_defaults]
    return node if _facts(_code_of(node)) == _facts(function.__code__) else None


@functools.cache
def _siblings_of_function(function: FunctionType) -> tuple[Siblings, ...]:
    node = _parse(function)
    return tuple(found for found, _ in _read(node)) if node else ()


def siblings_of(kind: type) -> tuple[Siblings, ...]:
    """The groups of a class's ``forward``; none where it cannot be read or copied."""
    forward = getattr(kind, "forward", None)  # a scripted module's class has none
    return _siblings_of_function(forward) if isinstance(forward, FunctionType) else ()


class _Replace(ast.NodeTransformer):
    def __init__(self, names: dict[tuple[str, str], str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        call = _call_of(node)
        if call in self.names:
            return ast.copy_location(ast.Name(self.names[call], ast.Load()), node)
        self.generic_visit(node)
        return node


def _compute_before(node: ast.FunctionDef, group: Siblings, first: int, number: int) -> None:
    """``names = _sluice_products(argument, self.layer, ...)`` before the statement of the first call."""
    names = [f"_sluice_{number}_{layer}" for layer in group.layers]
    replace = _Replace({(layer, group.argument): name for layer, name in zip(group.layers, names)})
    layers = ", ".join(f"self.{layer}" for layer in group.layers)
    (before,) = ast.parse(f"{', '.join(names)} = {_PRODUCTS}({group.argument}, {layers})").body
    for part in ast.walk(before):
        ast.copy_location(part, node.body[first])
    left = len(group.layers)
    for index in range(first, len(node.body)):
        if left == 0:  # a later call of the same text reads another input
            break
        left -= sum(_call_of(part) in replace.names for part in ast.walk(node.body[index]))
        node.body[index] = replace.visit(node.body[index])
    node.body.insert(first, before)


@functools.cache
def _at_once(
    forward: FunctionType, groups: tuple[Siblings, ...], products: Callable[..., Sequence[Any]]
) -> FunctionType:
    node = _parse(forward)
    assert node is not None
    # The last ones first: a statement before them moves none of the others.
    for number, (found, first) in sorted(enumerate(_read(node)), key=lambda item: -item[1][1]):
        for group in groups:
            if found.holds(group):
                _compute_before(node, group, first, number)
    around = ast.parse(f"def make({_PRODUCTS}): return forward").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body.insert(0, node)
    tree = ast.fix_missing_locations(ast.Module([around], []))
    made: dict[str, Any] = {}
    code = compile(tree, forward.__code__.co_filename, "exec", dont_inherit=True)
    exec(code, forward.__globals__, made)  # noqa: S102: text of the forward itself
    function = made["make"](products)
    function.__defaults__, function.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__
    function.__qualname__, function.__module__ = forward.__qualname__, forward.__module__
    _made.add(function)
    return function


def at_once(
    kind: type, groups: tuple[Siblings, ...], products: Callable[..., Sequence[Any]]
) -> FunctionType:
    """The class's ``forward``, where ``products(x, *layers)`` gives what the layers of each group give for x. A
    group is one of ``siblings_of``, or some of its layers."""
    return _at_once(kind.forward, groups, products)


def is_at_once(function: Any) -> bool:
    """Made by ``at_once``."""
    return function in _made
