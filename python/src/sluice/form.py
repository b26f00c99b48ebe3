# SPDX-License-Identifier: Apache-2.0
"""Which gated MLP a class computes, read from the syntax of its ``forward``. Standard library
only.

Hundreds of classes are the same block under names of their own, and dozens under like names
compute something else. So neither names nor attributes decide: ``forward`` is reduced to the one
expression that it returns, and that has to be ``down(act(gate(x)) * up(x))`` and nothing more.
What a name stands for in a given module (a plain linear layer, a known activation) is for the
caller to check; ``proof`` compares the two in numbers.

A ``forward`` with branches has the form under a condition, which a caller that can ask it at each
call (``Call``) may accept: those of SGLang take another kernel or cast x in some settings.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

# Functions of torch and torch.nn.functional that are gates; gelu says which by `approximate`.
_FUNCTIONS = {"silu": "silu", "relu": "relu", "sigmoid": "sigmoid", "gelu": "gelu_erf"}
_FUNCTIONAL = ("F", "functional", "nn.functional", "torch.nn.functional", "torch")
# act(x), unless the linear layer after it has quantised weights, which no plain one has:
_ACT_UNLESS_QUANTISED = "maybe_fused_act_quant"  # vLLM's f(self.act, x, self.linear)
_METHOD_UNLESS_QUANTISED = "forward_decode"  # SGLang's self.m.f(x, self.act, self.linear)
_MOST_PATHS = 32  # through the branches of a forward


@dataclass(frozen=True)
class Form:
    """``down(act(gate(x)) * up(x))``: the names of a class's attributes, and how it calls them."""

    gate: str
    up: str  # gate's name again where one projection makes both
    down: str
    activation: str  # an attribute, or where `is_function` the name of a gate
    argument: str  # forward's name for x
    is_function: bool = False
    takes_both: bool = False  # the activation takes both halves and multiplies them itself
    up_first: bool = False  # the merged projection's first rows are up's
    tuples: bool = False  # projections return (y, bias)
    dropouts: tuple[str, ...] = ()  # attributes that change nothing unless they drop something
    condition: str = ""  # an expression of forward's parameters, for when it computes this; "": always
    passes: tuple[tuple[str, str], ...] = ()  # what down gets besides h: keywords and expressions

    @property
    def merged(self) -> bool:
        return self.gate == self.up

    @property
    def projections(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.gate, self.up, self.down)))


class _Refused(Exception):
    """Why a ``forward`` is no gated MLP."""


def form_of(kind: type, *, conditional: bool = False) -> Form | str:
    """The form of a class, or why it has none. Only with ``conditional`` a form may have a
    condition, or pass something to down besides h."""
    return _form_of_function(kind.forward, conditional)


@functools.cache
def _form_of_function(function: Callable[..., Any], conditional: bool) -> Form | str:
    if hasattr(function, "__wrapped__"):
        return "forward is wrapped"
    try:
        return form_of_source(_source(function), conditional=conditional)
    except (OSError, TypeError, SyntaxError):
        return "forward has no source to read"


def _source(function: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(function))


def form_of_source(source: str, *, conditional: bool = False) -> Form | str:
    """The form of a ``forward`` by its text, as ``form_of``. Raises ``SyntaxError``."""
    (node, *_) = ast.parse(source).body
    try:
        if not isinstance(node, ast.FunctionDef):
            raise _Refused("forward is no function")
        return _read(node, conditional)
    except _Refused as reason:
        return str(reason)


class Call:
    """Takes the arguments of a ``forward`` with this form, and returns x, whether the form's condition
    holds, and the keywords that down gets. Evaluates the expressions as forward would, with its
    globals; raises what they raise, and ``TypeError`` where the arguments do not fit."""

    def __init__(self, forward: Callable[..., Any], form: Form) -> None:
        node = ast.parse(_source(forward)).body[0]
        assert isinstance(node, ast.FunctionDef)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        given = ", ".join(f"{name!r}: ({text})" for name, text in form.passes)
        condition = form.condition or "True"
        body = f"({form.argument}, True if ({condition}) else False, {{{given}}})"
        tree = ast.Expression(ast.Lambda(node.args, ast.parse(body, mode="eval").body))
        # Of defaults only the number counts here: those that forward was made with are put in below.
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
        node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
        code = compile(ast.fix_missing_locations(tree), f"<call of {forward.__qualname__}>", "eval")
        self._bound = eval(code, forward.__globals__)  # noqa: S307: text of the forward itself
        self._bound.__defaults__ = forward.__defaults__
        self._bound.__kwdefaults__ = forward.__kwdefaults__

    def __call__(self, *arguments: Any, **named: Any) -> tuple[Any, bool, dict[str, Any]]:
        return self._bound(*arguments, **named)


def looks_gated(names: Iterable[str]) -> bool:
    """Do these attributes call themselves gate, up and down? Such a class deserves a reason."""
    parts = {part for name in names for part in re.split(r"[_\d]+", name)}
    return {"gate", "up", "down"} <= parts


def spelling(source: str) -> str:
    """The text of a function without docstring, annotations and the author's names for its
    parameters and variables: equal for functions that compute the same in the same steps."""
    node = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(node, ast.FunctionDef)
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    node.returns = None
    places = [
        (n.lineno, n.col_offset, n.arg if isinstance(n, ast.arg) else n.id) for n in ast.walk(node)
        if isinstance(n, ast.arg) or (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    ]  # fmt: skip
    names = dict.fromkeys(name for *_, name in sorted(places) if name not in ("self", "_"))
    renamed = {name: f"v{i}" for i, name in enumerate(names)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            inner.id = renamed.get(inner.id, inner.id)
        elif isinstance(inner, ast.arg):
            inner.arg, inner.annotation = renamed.get(inner.arg, inner.arg), None
    return ast.unparse(node)


# --- to one expression


def _short(node: Any, depth: int = 6) -> Any:
    """A copy without what is passed to calls and without depths: nodes are shared, so that a tree
    may be endless."""
    if isinstance(node, list):
        return [_short(item, depth) for item in node]
    if not isinstance(node, ast.AST):
        return node
    if depth <= 0 and isinstance(node, ast.expr):
        return ast.Constant(...)
    if isinstance(node, ast.Call):
        return ast.Call(_short(node.func, depth - 1), [ast.Constant(...)], [])
    return type(node)(**{name: _short(value, depth - 1) for name, value in ast.iter_fields(node)})


def _shown(node: ast.AST) -> str:
    """A piece of syntax for a reason, by its first line."""
    short = node if isinstance(node, ast.stmt) else _short(node)
    return textwrap.shorten(ast.unparse(short).split("\n")[0], 80, placeholder=" ...")


class _Substitute(ast.NodeTransformer):
    """Puts in for local variables what they hold. Shares nodes, so that the result stays small."""

    def __init__(self, known: dict[str, ast.expr], casts: set[str]) -> None:
        self.known, self.casts = known, casts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:  # v.to(self.down.weight.dtype), which plain parts have already
            case ast.Call(
                ast.Attribute(value, "to"),
                [ast.Attribute(ast.Attribute(ast.Attribute(_, name) as layer, "weight"), "dtype")],
                [],
            ) if ast.unparse(layer) == f"self.{name}":
                self.casts.add(name)
                return self.visit(value)
        return self.generic_visit(node)


def _bind(known: dict[str, ast.expr], target: ast.expr, value: ast.expr) -> None:
    match target:
        case ast.Name(name) if name != "self":
            known[name] = value
        case ast.Tuple(elements):
            for i, element in enumerate(elements):
                whole = isinstance(value, ast.Tuple) and len(value.elts) == len(elements)
                part = value.elts[i] if whole else ast.Subscript(value, ast.Constant(i), ast.Load())
                _bind(known, element, part)
        case _:
            raise _Refused(f"writes to {_shown(target)}")


def _nodes(tree: ast.AST) -> Iterable[ast.AST]:
    """Each once: nodes are shared, so that a tree may be endless."""
    seen: dict[int, ast.AST] = {}
    left = [tree]
    while left:
        if id(node := left.pop()) not in seen:
            seen[id(node)] = node
            left.extend(ast.iter_child_nodes(node))
    return seen.values()


def _may_change(value: ast.expr) -> Iterable[ast.Call]:
    """Calls of the module's parts, and of methods that write into their tensor."""
    for node in _nodes(value):
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"))):
                yield node
            case ast.Call(ast.Attribute(attr=name)) if name.endswith("_"):
                yield node


@dataclass
class _Path:
    """One way through the statements: what variables hold, the tests of the branches taken, calls that may
    change something, what is returned, and why the way is no gated MLP."""

    known: dict[str, ast.expr]
    tests: tuple[tuple[str, bool], ...] = ()
    called: tuple[ast.Call, ...] = ()
    returned: ast.expr | None = None
    refused: str | None = None

    @property
    def ended(self) -> bool:
        return self.returned is not None or self.refused is not None


class _Walker:
    """Walks through the statements of a ``forward``. With ``conditional`` each branch is a path of its
    own; without, a branch is refused unless it changes nothing."""

    def __init__(self, argument: str, parameters: set[str], conditional: bool) -> None:
        self.argument, self.parameters, self.conditional = argument, parameters, conditional
        self.casts: set[str] = set()

    def walk(self, body: list[ast.stmt], path: _Path) -> list[_Path]:
        paths = [path]
        for statement in body:
            paths = [after for p in paths for after in ([p] if p.ended else self.step(statement, p))]
            if len(paths) > _MOST_PATHS:
                raise _Refused(f"has more than {_MOST_PATHS} paths")
        return paths

    def step(self, statement: ast.stmt, path: _Path) -> list[_Path]:
        try:
            return self.after(statement, path)
        except _Refused as reason:
            if not self.conditional:
                raise
            return [replace(path, refused=str(reason))]

    def value(self, node: ast.expr, path: _Path) -> ast.expr:
        # A copy, since paths share statements and the visitor writes into what it visits.
        return _Substitute(path.known, self.casts).visit(copy.deepcopy(node))

    def after(self, statement: ast.stmt, path: _Path) -> list[_Path]:
        """The paths that go on from here, or end."""
        match statement:
            case ast.Expr(ast.Constant()):
                pass
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                held = self.value(value, path)
                path.called += tuple(_may_change(held))
                _bind(path.known, target, held)
            case ast.Return(ast.expr() as value):
                path.returned = self.value(value, path)
            case ast.If(test, [ast.Return(ast.Name(name))], []) if (
                name == self.argument
                and self.argument not in path.known
                and _is_empty(test, self.argument)
            ):
                pass  # no tokens: x is then what the block would return
            case ast.If(test, body, otherwise) if self.conditional:
                return self.branches(test, body, otherwise, path)
            case ast.If(test, body, []):
                (inner,) = self.walk(body, _Path(dict(path.known)))
                if inner.ended or inner.known != path.known:
                    raise _Refused(f"branches: if {_shown(test)}")
            case ast.If(test):
                raise _Refused(f"branches: if {_shown(test)}")
            case ast.AugAssign(target):
                raise _Refused(f"changes {_shown(target)} in place")
            case _:
                raise _Refused(f"has a statement of its own: {_shown(statement)}")
        return [path]

    def branches(
        self, test: ast.expr, body: list[ast.stmt], otherwise: list[ast.stmt], path: _Path
    ) -> list[_Path]:
        names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        if names & path.known.keys() or any(isinstance(n, ast.NamedExpr) for n in ast.walk(test)):
            raise _Refused(f"branches: if {_shown(test)}")  # by what it has computed
        text = ast.unparse(test)
        return [
            after for taken, branch in ((True, body), (False, otherwise))
            for after in self.walk(
                branch, _Path(dict(path.known), (*path.tests, (text, taken)), path.called)
            )
        ]  # fmt: skip

    def passed(self, options: list[ast.keyword]) -> tuple[tuple[str, str], ...] | None:
        """Keywords of a call that hand on parameters of forward, if they all do."""
        for option in options:
            names = {n.id for n in ast.walk(option.value) if isinstance(n, ast.Name)}
            calls = any(isinstance(n, ast.Call) for n in ast.walk(option.value))
            if option.arg is None or calls or not names <= self.parameters:
                return None
        return tuple((str(option.arg), ast.unparse(option.value)) for option in options)


def _condition(ways: list[tuple[tuple[str, bool], ...]]) -> str:
    """An expression that is true on these ways alone, each the tests taken in their order. A test
    whose two outcomes lead to the same is left out."""
    while True:
        for way in ways:
            if not way:
                return ""
            other = (*way[:-1], (way[-1][0], not way[-1][1]))
            if other in ways:
                ways = [w for w in ways if w not in (way, other)] + [way[:-1]]
                break
        else:
            break
    said = [
        " and ".join(f"({test})" if taken else f"not ({test})" for test, taken in way) for way in ways
    ]
    return said[0] if len(said) == 1 else " or ".join(f"({text})" for text in said)


def _is_empty(test: ast.expr, argument: str) -> bool:
    """Does the condition hold for no tokens alone?"""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_empty(value, argument) for value in test.values)
    return ast.unparse(test) in (f"{argument}.shape[0] == 0", f"{argument}.numel() == 0")


# --- from the expression


class _Reader:
    """Takes the expression apart from its outside in."""

    def __init__(self, walker: _Walker) -> None:
        self.walker, self.argument = walker, walker.argument
        self.tuples: set[bool] = set()
        self.dropouts: list[str] = []
        self.passes: tuple[tuple[str, str], ...] = ()

    def without_dropout(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), name), [value], []) if "drop" in name:
                self.dropouts.append(name)
                return self.without_dropout(value)
        return node

    def projected(
        self, node: ast.expr, what: str, *, may_pass: bool = False
    ) -> tuple[str, ast.expr]:
        """The projection that makes this, and of what: ``self.name(value)``, or its first part."""
        call, is_tuple = node, False
        match node:
            case ast.Subscript(ast.expr() as whole, ast.Constant(0)):
                call, is_tuple = whole, True
        match call:
            case ast.Call(ast.Attribute(ast.Name("self"), name), [value], []):
                self.tuples.add(is_tuple)
                return name, value
            case ast.Call(ast.Attribute(ast.Name("self"), name), [value], options) if (
                may_pass and (passes := self.walker.passed(options)) is not None
            ):
                self.tuples.add(is_tuple)
                self.passes = passes
                return name, value
            case ast.Call(ast.Attribute(ast.Name("self"), name), _, [option, *_]) if option.arg:
                raise _Refused(f"passes {option.arg} to {name}")
        raise _Refused(f"{what} {_shown(node)}")

    def of_x(self, node: ast.expr, what: str) -> tuple[str, int | None]:
        """The projection of x that makes this, and which half of it."""
        half = None
        match node:
            case ast.Subscript(ast.Call() as split, ast.Constant(int(i))) if _halves(split):
                node, half = _halves(split), i
        name, value = self.projected(node, what)
        if not (isinstance(value, ast.Name) and value.id == self.argument):
            raise _Refused(f"{name} reads {_shown(value)}")
        return name, half

    def activated(self, node: ast.expr) -> tuple[str, bool, ast.expr] | None:
        """Activation, whether it is a function, and what it reads."""
        match node:
            case ast.Call(
                ast.Name(name), [ast.Attribute(ast.Name("self"), act), value, ast.Attribute()], []
            ) if name == _ACT_UNLESS_QUANTISED:
                return act, False, value
            case ast.Call(
                ast.Attribute(ast.Attribute(ast.Name("self")), name),
                [value, ast.Attribute(ast.Name("self"), act), ast.Attribute()], [],
            ) if name == _METHOD_UNLESS_QUANTISED:
                return act, False, value
            case ast.Call(ast.Attribute(ast.Name("self"), act), [value], []):
                is_x = isinstance(value, ast.Name) and value.id == self.argument
                return None if is_x else (act, False, value)
            case ast.Call(ast.Attribute(module, name), [value], options) if (
                name in _FUNCTIONS and _shown(module) in _FUNCTIONAL
            ):
                said = [_shown(option) for option in options]
                if name == "gelu" and said == ["approximate='tanh'"]:
                    return "gelu_tanh", True, value
                return (_FUNCTIONS[name], True, value) if not said else None
        return None


def _halves(call: ast.Call) -> ast.expr | None:
    """What is cut in two along its last dimension, if that is what the call does."""
    match call:
        case ast.Call(ast.Attribute(ast.Name("torch"), "chunk"), [value, *rest], options):
            pass
        case ast.Call(ast.Attribute(value, "chunk"), rest, options):
            pass
        case _:
            return None
    said = [_shown(part) for part in (*rest, *options)]
    return value if said in (["2", "-1"], ["2", "dim=-1"]) else None


def _read(function: ast.FunctionDef, conditional: bool) -> Form:
    if function.decorator_list:
        raise _Refused(f"decorated by {_shown(function.decorator_list[0])}")
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    most_needed = len(names) - len(function.args.defaults)
    needs_keyword = any(default is None for default in function.args.kw_defaults)
    if len(names) < 2 or most_needed > 2 or needs_keyword:
        raise _Refused(f"takes more than x: ({', '.join(names)})")
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    walker = _Walker(names[1], parameters - {"self"}, conditional)
    forms: list[tuple[Form, tuple[tuple[str, bool], ...]]] = []
    for path in walker.walk(function.body, _Path({})):
        try:
            forms.append((_read_path(path, walker), path.tests))
        except _Refused as reason:
            refusal = reason  # the last path's, on which no test was true
    if not forms:
        raise refusal
    form, _ = forms[-1]
    return replace(form, condition=_condition([tests for other, tests in forms if other == form]))


def _read_path(path: _Path, walker: _Walker) -> Form:
    if path.refused is not None:
        raise _Refused(path.refused)
    if path.returned is None:
        raise _Refused("returns nothing")
    needed = {id(node) for node in _nodes(path.returned)}
    for call in path.called:
        if id(call) not in needed:
            raise _Refused(f"calls {_shown(call.func)} and returns nothing of it")
    reader = _Reader(walker)
    may_pass = walker.conditional
    down, h = reader.projected(reader.without_dropout(path.returned), "returns", may_pass=may_pass)
    h = reader.without_dropout(h)
    if isinstance(h, ast.BinOp) and isinstance(h.op, ast.Mult):
        form = _of_product(reader, h, down)
    elif (activated := reader.activated(h)) is not None and not activated[1]:
        act, _, value = activated
        gate, half = reader.of_x(value, f"{down} reads {_shown(h)} of")
        if half is not None:
            raise _Refused(f"{down} reads {_shown(h)} of {_shown(value)}")
        form = Form(gate, gate, down, act, reader.argument, takes_both=True)
    else:
        raise _Refused(f"{down} reads {_shown(h)}")
    if len(reader.tuples) > 1:
        raise _Refused("some projections return tuples, others do not")
    if not walker.casts <= set(form.projections):
        raise _Refused(f"casts to the type of {', '.join(sorted(walker.casts))}")
    return replace(
        form, tuples=True in reader.tuples, dropouts=tuple(reader.dropouts), passes=reader.passes
    )


def _of_product(reader: _Reader, h: ast.BinOp, down: str) -> Form:
    for gated, linear in ((h.left, h.right), (h.right, h.left)):
        if (activated := reader.activated(gated)) is None:
            continue
        act, is_function, value = activated
        gate, gate_half = reader.of_x(value, f"{act} reads")
        up, up_half = reader.of_x(linear, f"{act}'s result is multiplied by")
        if (gate_half, up_half) not in ((None, None), (0, 1), (1, 0)) or (
            (gate == up) != (gate_half is not None)
        ):
            break
        return Form(gate, up, down, act, reader.argument, is_function, up_first=gate_half == 1)
    raise _Refused(f"{down} reads {_shown(h)}")
