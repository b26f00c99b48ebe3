# SPDX-License-Identifier: Apache-2.0
"""The gated MLP on JAX arrays: ``mlp``, ``gate_up``, ``linear`` and ``gate_mul``, through XLA's foreign
function interface.

M tokens, D model width, H hidden width::

    mlp        y = h @ w_down.T + b_down + residual, h = gate_up(x)     x [.., D] -> y [.., D]
    gate_up    h = act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)      x [.., D] -> h [.., H]
    linear     y = x @ weight.T + bias + residual                      x [.., K] -> y [.., N]
    gate_mul   h = act(g) * u                                     g, u [.., H] -> h [.., H]

w_gate, w_up [H, D]; w_down [D, H]; weight [N, K]; biases [H], [D] or [N]; residual as y. ``Gate`` says what
``act`` is. Arrays are bfloat16, float16 or float32 (float64 on CPUs where JAX has it, for checks), on CPUs and
CUDA devices. x, g, u, residual and the results have one type, weights and biases one. Accumulation is in
float32 or wider. A shape or type that does not fit is a ``ValueError`` naming the operand when the function is
traced; what the library refuses (a gate's numbers, what no kernel of the device takes) is a
``jax.errors.JaxRuntimeError`` when it runs.

All work under ``jit``, ``grad`` and ``vmap``, and are differentiable once, in reverse mode. ``vmap`` over
tokens is one call with more of them; over weights, and of gradients of weights, it is one call after another.
``mlp`` computes no gradient of x, and none of the weights, where none is asked for. Of arrays that ``jit``
shards XLA gathers the whole: call these inside ``jax.shard_map``.

On CUDA devices XLA captures none of the calls in a command buffer (CUDA graph), and ``w_gate`` and ``w_up``
may not be one buffer. Importing this module registers the operators; ``ImportError`` says what is missing.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sluice.capi import OPS, COperands, library_folder
from sluice.gate import Gate, checked

try:
    import jax
    import jax.numpy as jnp
    from jax import Array, lax
    from jax.custom_batching import custom_vmap
    from jax.custom_derivatives import SymbolicZero
except ImportError as error:
    raise ImportError(f"sluice.jax needs JAX 0.10 or later (pip install jax): {error}") from error

_TARGET = "sluice"
_SILU = Gate()


def _register() -> None:
    path = library_folder() / "sluice_jax.so"
    if not path.is_file():
        raise ImportError(
            f"{path} is not there: this Sluice was built without JAX operators; in an environment "
            "with JAX 0.10 or later: pip install --no-build-isolation ."
        )
    try:
        handlers = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path}: {error}") from error
    for platform in ("cpu", "CUDA"):
        handler = getattr(handlers, f"sluice_jax_{platform.lower()}")
        jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform=platform)


_register()


# --- one call of the library


_TYPES = ("bfloat16", "float16", "float32", "float64")  # in the order of sluice.h
_OPERANDS = [name for name, _ in COperands._fields_[1:]]
# Shapes of what a call may read or write; M stands for the leading dimensions, however many.
_SHAPES = {
    "x": "MD", "w_gate": "HD", "w_up": "HD", "w_down": "DH", "b_gate": "H", "b_up": "H",
    "b_down": "D", "residual": "MD", "dy": "MD", "dh": "MH", "g": "MH", "u": "MH", "h": "MH",
    "y": "MD", "dg": "MH", "du": "MH", "dx": "MD", "dw_gate": "HD", "dw_up": "HD", "dw_down": "DH",
    "db_gate": "H", "db_up": "H", "db_down": "D",
}  # fmt: skip


def _has_tokens(name: str) -> bool:
    return _SHAPES[name].startswith("M")


def _shown(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _shape(name: str, dims: dict[str, Any]) -> tuple[Any, ...]:
    letters = _SHAPES[name]
    if letters.startswith("M"):
        return (*dims["M"], dims[letters[1]])
    return tuple(dims[letter] for letter in letters)


@dataclass(frozen=True)
class _Call:
    """An operator, the operands that it is given, and the results that are wanted of it."""

    op: str
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    gate: Gate = _SILU

    def dims(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """M (leading dimensions), D and H, each by the first operand that has it. Raises ``ValueError``
        where another operand has another one."""
        found: dict[str, Any] = {}
        for name, array in zip(self.inputs, arrays):
            letters, given = _SHAPES[name], array.shape
            if not given:
                raise ValueError(f"{name}: expected at least one dimension, got a scalar")
            if _has_tokens(name):
                given = given[:-1], given[-1]
            for letter, size in zip(letters, given):
                found.setdefault(letter, size)
            wanted = _shape(name, {letter: letter for letter in letters} | found)
            if array.shape != wanted:
                raise ValueError(f"{name}: expected shape {_shown(wanted)}, got {_shown(array.shape)}")
        return {"M": (), "D": 1, "H": 1} | found

    def types(self, arrays: Sequence[Array]) -> tuple[Any, Any]:
        """Of the activations and of the weights. Raises ``ValueError`` where operands differ."""
        found: dict[bool, Any] = {}
        for name, array in zip(self.inputs, arrays):
            if array.dtype.name not in _TYPES:
                raise ValueError(f"{name}: expected one of {', '.join(_TYPES)}, got {array.dtype}")
            wanted = found.setdefault(_has_tokens(name), array.dtype)
            if array.dtype != wanted:
                raise ValueError(f"{name}: expected {wanted}, got {array.dtype}")
        return found[True], found.get(False, found[True])

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        dims, (x_type, w_type) = self.dims(arrays), self.types(arrays)
        shapes = [
            jax.ShapeDtypeStruct(_shape(name, dims), x_type if _has_tokens(name) else w_type)
            for name in self.results
        ]
        tokens = math.prod(dims["M"])
        if tokens == 0:
            return tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
        gate = self.gate
        operands = [_OPERANDS.index(name) for name in (*self.inputs, *self.results)]
        return tuple(
            jax.ffi.ffi_call(_TARGET, shapes)(
                *arrays,
                op=np.int32(OPS.index(self.op)),
                m=np.int64(tokens),
                d=np.int64(dims["D"]),
                h=np.int64(dims["H"]),
                x_dtype=np.int32(_TYPES.index(x_type.name)),
                w_dtype=np.int32(_TYPES.index(w_type.name)),
                activation=np.int32(gate.code),
                alpha=np.float32(gate.alpha),
                limit=np.float32(gate.limit),
                up_offset=np.float32(gate.up_offset),
                gate_multiplier=np.float32(gate.gate_multiplier),
                output_multiplier=np.float32(gate.output_multiplier),
                operands=np.array(operands, np.int32),
            )
        )


@cache
def _batchable(call: _Call) -> Callable[..., tuple[Array, ...]]:
    """The call with its rule for ``vmap``."""
    function = custom_vmap(call)

    @function.def_vmap
    def rule(size: int, batched: Sequence[bool], *arrays: Array) -> tuple[Any, Any]:
        def more_tokens(name: str, array: Array, is_batched: bool) -> Array:
            repeats = _has_tokens(name) and not is_batched
            return jnp.broadcast_to(array, (size, *array.shape)) if repeats else array

        def one(parts: list[Array]) -> tuple[Array, ...]:
            part = iter(parts)
            return function(*(next(part) if b else a for a, b in zip(arrays, batched)))

        named = list(zip(call.inputs, arrays, batched))
        batched_names = [name for name, _, is_batched in named if is_batched]
        if all(map(_has_tokens, (*batched_names, *call.results))):  # no sums over tokens
            results = function(*(more_tokens(*each) for each in named))
        else:
            results = lax.map(one, [array for _, array, b in named if b])
        return results, tuple(True for _ in results)

    return function


def _run(
    op: str, results: Sequence[str], *, gate: Gate = _SILU, **operands: Array | None
) -> tuple[Array, ...]:
    given = {name: array for name, array in operands.items() if array is not None}
    call = _Call(op, tuple(given), tuple(results), checked(gate))
    return _batchable(call)(*given.values())


# --- derivatives. Of gate_up and linear alone the products are XLA's, which leaves out what nothing reads;
# mlp_grad shares tokens between its products, and is told which results are wanted.


def _mark(is_there: bool) -> tuple[()] | None:
    """A bool in what is saved for the backward pass, where it would become an array."""
    return () if is_there else None


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _times(a: Array, weight: Array) -> Array:
    """a @ weight of the wider of both types, summed and returned in float32 or wider."""
    dtype = jnp.promote_types(a.dtype, weight.dtype)
    return jnp.matmul(a.astype(dtype), weight.astype(dtype), preferred_element_type=_wide(dtype))


def _weight_gradient(dy: Array, x: Array, weight: Array) -> Array:
    """``dy.T @ x`` over all tokens, in the weight's type."""
    axes = tuple(range(dy.ndim - 1))
    dimensions = ((axes, axes), ((), ()))
    product = lax.dot_general(dy, x, dimensions, preferred_element_type=_wide(x.dtype))
    return product.astype(weight.dtype)


def _bias_gradient(dy: Array, bias: Any, weight: Array) -> Array | None:
    if bias is None:
        return None
    return dy.sum(range(dy.ndim - 1), dtype=_wide(dy.dtype)).astype(weight.dtype)


def _gate_up_inputs(x: Any, w_gate: Any, w_up: Any, b_gate: Any, b_up: Any) -> dict[str, Any]:
    return {"x": x, "w_gate": w_gate, "w_up": w_up, "b_gate": b_gate, "b_up": b_up}


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gate_up(gate: Gate, recompute: bool, *tensors: Any) -> Array:
    return _run("gate_up", ("h",), gate=gate, **_gate_up_inputs(*tensors))[0]


def _gate_up_forward(gate: Gate, recompute: bool, *tensors: Any) -> tuple[Array, Any]:
    if recompute:
        return _gate_up(gate, recompute, *tensors), (tensors, None)
    h, *saved = _run("gate_up", ("h", "g", "u"), gate=gate, **_gate_up_inputs(*tensors))
    return h, (tensors, saved)


def _gate_up_backward(gate: Gate, recompute: bool, kept: Any, dh: Array) -> tuple[Any, ...]:
    tensors, saved = kept
    x, w_gate, w_up, b_gate, b_up = tensors
    if saved is None:
        _, *saved = _run("gate_up", ("h", "g", "u"), gate=gate, **_gate_up_inputs(*tensors))
    g, u = saved
    dg, du = _run("gate_mul_grad", ("dg", "du"), gate=gate, dh=dh, g=g, u=u)
    return (
        (_times(dg, w_gate) + _times(du, w_up)).astype(x.dtype),
        _weight_gradient(dg, x, w_gate),
        _weight_gradient(du, x, w_up),
        _bias_gradient(dg, b_gate, w_gate),
        _bias_gradient(du, b_up, w_up),
    )


_gate_up.defvjp(_gate_up_forward, _gate_up_backward)

_MLP = ("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down", "residual")


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mlp(gate: Gate, recompute: bool, *tensors: Any) -> Array:
    return _run("mlp", ("y",), gate=gate, **dict(zip(_MLP, tensors)))[0]


def _mlp_forward(gate: Gate, recompute: bool, *primals: Any) -> tuple[Array, Any]:
    given = {name: p.value for name, p in zip(_MLP, primals) if p is not None}
    results = ("y",) if recompute else ("y", "g", "u")
    y, *saved = _run("mlp", results, gate=gate, **given)
    wanted = {name: _mark(p is not None and p.perturbed) for name, p in zip(_MLP, primals)}
    read_again = ("x", "w_gate", "w_up", "w_down", *(("b_gate", "b_up") if recompute else ()))
    kept = {name: a for name, a in given.items() if name in read_again}
    return y, (kept | dict(zip("gu", saved)), wanted)


def _mlp_backward(gate: Gate, recompute: bool, saved: Any, dy: Any) -> tuple[Any, ...]:
    kept, wanted = saved
    if isinstance(dy, SymbolicZero):
        dy = jnp.zeros(dy.shape, dy.dtype)
    weights = any(wanted[name] is not None for name in ("w_gate", "w_up", "w_down"))
    biases = any(wanted[name] is not None for name in ("b_gate", "b_up"))
    results = [
        *(["dx"] if wanted["x"] is not None else []),
        *(["dw_gate", "dw_up", "dw_down"] if weights else []),
        *(["db_gate", "db_up"] if biases else []),
        *(["db_down"] if wanted["b_down"] is not None else []),
    ]
    if not results:  # of the residual alone
        return tuple(None if wanted[name] is None else dy for name in _MLP)
    found = dict(zip(results, _run("mlp_grad", results, gate=gate, dy=dy, **kept)))
    found = {name.removeprefix("d"): array for name, array in found.items()} | {"residual": dy}
    return tuple(None if wanted[name] is None else found[name] for name in _MLP)


_mlp.defvjp(_mlp_forward, _mlp_backward, symbolic_zeros=True)


@jax.custom_vjp
def _linear(x: Array, weight: Array, bias: Any, residual: Any) -> Array:
    return _run("down", ("y",), h=x, w_down=weight, b_down=bias, residual=residual)[0]


def _linear_forward(x: Array, weight: Array, bias: Any, residual: Any) -> tuple[Array, Any]:
    kept = x, weight, _mark(bias is not None), _mark(residual is not None)
    return _linear(x, weight, bias, residual), kept


def _linear_backward(kept: Any, dy: Array) -> tuple[Any, ...]:
    x, weight, bias, residual = kept
    return (
        _times(dy, weight).astype(x.dtype),
        _weight_gradient(dy, x, weight),
        _bias_gradient(dy, bias, weight),
        None if residual is None else dy,
    )


_linear.defvjp(_linear_forward, _linear_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gate_mul(gate: Gate, g: Array, u: Array) -> Array:
    return _run("gate_mul", ("h",), gate=gate, g=g, u=u)[0]


def _gate_mul_forward(gate: Gate, g: Array, u: Array) -> tuple[Array, Any]:
    return _gate_mul(gate, g, u), (g, u)


def _gate_mul_backward(gate: Gate, kept: Any, dh: Array) -> tuple[Array, ...]:
    g, u = kept
    return _run("gate_mul_grad", ("dg", "du"), gate=gate, dh=dh, g=g, u=u)


_gate_mul.defvjp(_gate_mul_forward, _gate_mul_backward)


# --- the functions


def _both_biases(b_gate: Array | None, b_up: Array | None) -> None:
    if (b_gate is None) != (b_up is None):
        missing, given = ("b_gate", "b_up") if b_gate is None else ("b_up", "b_gate")
        raise ValueError(f"{missing}: got none, wanted one with {given}")


@partial(jax.jit, static_argnames=("gate", "recompute"))
def mlp(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, b_gate: Array | None = None,
    b_up: Array | None = None, b_down: Array | None = None, residual: Array | None = None, *,
    gate: Gate = _SILU, recompute: bool = False,
) -> Array:  # fmt: skip
    """``y = h @ w_down.T + b_down + residual``, ``h = gate_up(x)``: x [.., D] -> y [.., D]. Saves x, g and u
    for the backward pass, [.., H] each; with ``recompute`` x alone."""
    _both_biases(b_gate, b_up)
    return _mlp(gate, recompute, x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual)


@partial(jax.jit, static_argnames=("gate", "recompute"))
def gate_up(
    x: Array, w_gate: Array, w_up: Array, b_gate: Array | None = None, b_up: Array | None = None,
    *, gate: Gate = _SILU, recompute: bool = False,
) -> Array:  # fmt: skip
    """``h = act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)``: x [.., D] -> h [.., H]. Saves as ``mlp``."""
    _both_biases(b_gate, b_up)
    return _gate_up(gate, recompute, x, w_gate, w_up, b_gate, b_up)


@jax.jit
def linear(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None
) -> Array:
    """``y = x @ weight.T + bias + residual``: x [.., K], weight [N, K] -> y [.., N]. Messages call x h,
    weight w_down and bias b_down."""
    return _linear(x, weight, bias, residual)


@partial(jax.jit, static_argnames=("gate",))
def gate_mul(g: Array, u: Array, *, gate: Gate = _SILU) -> Array:
    """``h = act(g) * u``: g, u [.., H] -> h [.., H]."""
    return _gate_mul(gate, g, u)
