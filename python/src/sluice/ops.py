# SPDX-License-Identifier: Apache-2.0
"""The gated MLP on Torch tensors: ``gate_up``, ``down``, ``mlp``, ``norm_mlp``, ``gate_mul`` and their
gradients; ``norm`` and ``linear`` alone.

M tokens, D model width, H hidden width::

    gate_up    h = act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)      x [.., D] -> h [.., H]
    down       y = h @ w_down.T + b_down + residual                     h [.., H] -> y [.., D]
    mlp        y = down(gate_up(x))                                     x [.., D] -> y [.., D]
    norm_mlp   r = x + x_residual, y = mlp(rms_norm(r))              x [.., D] -> y, r [.., D]
    gate_mul   h = act(g) * u                                    g, u [.., H] -> h [.., H]
    norm       r = x + x_residual, n = rms_norm(r)                  x [.., D] -> n, r [.., D]
    linear     y = x @ weight.T + bias + residual, which is down     x [.., K] -> y [.., N]

With ``group``, a ``torch.distributed.ProcessGroup`` or its name, H is a rank's share and the product behind
``y =`` is summed over the group (``sluice.ranks``); biases of y and residuals are added once. With ``next_norm``
[D], the next block's norm weight, the result's last is y_norm = rms_norm(y), which on GPUs comes with the sum.

w_gate, w_up [H, D]; w_down [D, H]; biases [H] or [D]; residual [.., D]. ``Gate`` says what ``act`` is
and how its arguments are clamped, scaled and shifted.

Tensors are bfloat16, float16 or float32, on the CPU or a CUDA device; float64 on the CPU, for checks.
x, h, g, u have one type, weights and biases one, which may be narrower; y has x's. Accumulation is in
float32 or wider. A broken rule is a ``ValueError`` that names the operand (a ``RuntimeError`` on Torch 2.15,
which knows one error behind its stable ABI).

Operands are read in place where their last dimension is contiguous and the others merge into rows at one
distance, which may be any. Gate and up share their strides: they may be halves of one buffer (``w[:H]``,
``w[H:]``), its interleaved rows (``w[0::2]``, ``w[1::2]``) or blocks of rows (``pack_gate_up`` and
``unpack_gate_up`` make and split such a buffer). Every call copies an operand with
other strides, such as a transposed x or weight (``w.t()``), and both of gate and up where their strides differ.
On a GPU every call also copies a weight that is gate and up both.
Inside a graph capture that Torch did not start such an operand is a ``ValueError``, for the copy would not
live as long as the graph. What an ``.out`` form writes is never copied. A GPU's call also copies 16-bit operands
whose rows begin inside units of 16 bytes, weights too, but not in such a capture: slow kernels read them there.

All are differentiable once; a second derivative is a ``RuntimeError``, but for ``norm``, which has one.
Without ``recompute`` the forward pass also stores g and u, [.., H] each, for the backward pass; with it
nothing but the inputs is kept and g and u are computed again. The gradients of weights come in the
weights' type. ``norm`` and ``norm_mlp`` are one operator where no gradient is
wanted; where one is, Torch computes the norm.

Under autocast ``gate_up``, ``down``, ``mlp`` and ``linear`` take its type, as ``torch.nn.functional.linear`` does:
operands but float64 ones are cast at every call, and a residual is added in the wider type. ``norm_mlp`` does so
behind its norm. With ``group`` nothing is cast, as in ``gate_mul`` and ``norm``.

Runs on Torch's current stream or on its CPU threads, allocates nothing but its results, 2 MiB a
stream and what a call needs beyond for that call, and can be captured in CUDA graphs and compiled with
``fullgraph=True``. A graph that Torch did not capture keeps what its calls need; its results are the caller's to
keep. ``weights_static=True`` promises that no work still queued writes the weights
(``norm_weight`` is one), so that kernels may fetch them early.

The functions below wrap ``torch.ops.sluice.*``, which have ``.out`` forms besides, and ``mlp`` one without
the arguments that have defaults, ``mlp.plain``: eleven of them cost the host a microsecond. Of those, only
``gate_up_save``, ``mlp_save``, ``down`` and ``gate_mul`` are differentiable: Torch's registration of a
Python backward costs every call of an operator some 6 us of the host.
Importing this module loads them; ``ImportError`` says what is missing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sluice.gate import Gate, checked
from sluice.torch_operators import first_of

_SILU = Gate()
_ops = torch.ops.sluice
_is_compiling = torch.compiler.is_compiling
_functorch_level = torch._C._functorch.peek_interpreter_stack
Group = Any  # a torch.distributed.ProcessGroup, which Torch may lack, or its name


def name_of_group(group: Group) -> str:
    """``ValueError`` for what is neither a group nor a name."""
    name = group if isinstance(group, str) else getattr(group, "group_name", None)
    if not isinstance(name, str):
        raise ValueError(
            f"group: got {type(group).__name__}, wanted a torch.distributed.ProcessGroup or its name"
        )
    return name


def _name_for(group: Group, *tensors: Tensor | None) -> str:
    """The group's name; ``ValueError`` where gradients are wanted, which the sum over ranks has none of."""
    if _wants_gradient(*tensors):
        raise ValueError(
            "group: got operands that want a gradient, wanted none: the sum over ranks is for inference. "
            "Call under torch.no_grad(), or train without group and sum y by torch.distributed"
        )
    return name_of_group(group)


# --- DTensors


def _alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, all DTensors where one is."""
    for tensor in tensors:
        if type(tensor) is not Tensor and hasattr(tensor, "placements"):  # the first costs next to nothing
            from sluice import sharding  # imports DTensor

            return sharding.alike(*tensors)
    return tensors


# --- sums over ranks


def _summed(op: Any, *arguments: Any, group: str, norms: tuple[Any, ...]) -> Any:
    """The operator's results; without a norm, but the last one, and y alone where that leaves one."""
    results = op.default(
        *arguments, group=group, next_norm=norms[0], next_eps=norms[1], next_weight_offset=norms[2]
    )
    if norms[0] is not None:
        return results
    return results[0] if len(results) == 2 else results[:-1]


# --- the functions. They name the overload: to look for the one that fits costs 3 us of the host.


@torch.compiler.assume_constant_result
def _traced_levels() -> tuple[bool, bool]:
    """Whether Dynamo, which enters and guards the levels that it finds, traces within one of forward-mode
    differentiation and within one of functorch."""
    return forward_ad._current_level >= 0, _functorch_level() is not None


def is_transformed() -> bool:
    """Whether forward-mode differentiation or functorch (vmap, grad, jvp) looks on: tensors do not tell then what
    is wanted of them."""
    if _is_compiling():
        return any(_traced_levels())
    return forward_ad._current_level >= 0 or _functorch_level() is not None


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Raises ``NotImplementedError`` where a derivative would be lost: there are none in forward mode."""
    if _is_compiling():
        has_tangent = _traced_levels()[0]  # at least one may
    elif forward_ad._current_level < 0:
        return
    else:
        try:
            has_tangent = any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
        except RuntimeError:  # batched ones do not tell
            has_tangent = True
    if has_tangent:
        raise NotImplementedError("sluice.ops: no derivative in forward mode (jvp, jacfwd, dual tensors)")


def _wants_gradient(*tensors: Tensor | None) -> bool:
    if is_transformed():
        _refuse_tangents(*tensors)
        return torch.is_grad_enabled()  # what vmap has batched may want one and does not say so
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _autocast_type(x: Tensor) -> torch.dtype | None:
    device = x.device.type
    casts = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)  # of others it may not be asked
    return torch.get_autocast_dtype(device) if casts else None


def _cast(dtype: torch.dtype, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """As autocast does for ``torch.nn.functional.linear``, which leaves float64."""
    return tuple(
        t if t is None or t.dtype is torch.float64 or not t.is_floating_point() else t.to(dtype) for t in tensors
    )


def _plus(y: Tensor, residual: Tensor | None) -> Tensor:
    """The sum in the wider type, which nobody casts."""
    return y if residual is None else y + residual.reshape(y.shape)


def gate_up(
    x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Tensor | None = None,
    b_up: Tensor | None = None, *, gate: Gate = _SILU, recompute: bool = False,
    weights_static: bool = False,
) -> Tensor:  # fmt: skip
    """``h = act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)``: x [.., D] -> h [.., H]."""
    if (dtype := _autocast_type(x)) is not None:
        x, w_gate, w_up, b_gate, b_up = _cast(dtype, x, w_gate, w_up, b_gate, b_up)
    arguments = (x, w_gate, w_up, b_gate, b_up, *checked(gate).arguments)
    if _wants_gradient(x, w_gate, w_up, b_gate, b_up):
        return _ops.gate_up_save.default(*arguments, recompute=recompute)[0]
    return _ops.gate_up.default(*arguments, weights_static)


def down(
    h: Tensor, w_down: Tensor, b_down: Tensor | None = None, residual: Tensor | None = None, *,
    weights_static: bool = False, group: Group = None, next_norm: Tensor | None = None,
    next_eps: float = 1e-6, next_weight_offset: float = 0.0,
) -> Any:  # fmt: skip
    """``y = h @ w_down.T + b_down + residual``: h [.., H] -> y [.., D]; with ``group`` the product is summed, with
    ``next_norm`` -> y, y_norm [.., D]."""
    if group is not None:
        name = _name_for(group, h, w_down, b_down, residual, next_norm)
        norms = (next_norm, next_eps, next_weight_offset)
        return _summed(_ops.down_reduce, h, w_down, b_down, residual, weights_static, group=name, norms=norms)
    _refuse_tangents(h, w_down, b_down, residual)
    if (dtype := _autocast_type(h)) is None:
        y = _ops.down.default(h, w_down, b_down, residual, weights_static)
    else:
        y = _ops.down.default(*_cast(dtype, h, w_down, b_down), None, weights_static)
        y = _plus(y, residual)
    if next_norm is None:
        return y
    return y, norm(y, next_norm, eps=next_eps, weight_offset=next_weight_offset)[0]


def mlp(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, b_gate: Tensor | None = None,
    b_up: Tensor | None = None, b_down: Tensor | None = None, residual: Tensor | None = None, *,
    gate: Gate = _SILU, recompute: bool = False, weights_static: bool = False, group: Group = None,
    next_norm: Tensor | None = None, next_eps: float = 1e-6, next_weight_offset: float = 0.0,
) -> Any:  # fmt: skip
    """``y = down(gate_up(x))``: x [.., D] -> y [.., D]; with ``next_norm`` -> y, y_norm [.., D].

    With ``group``: ``y = sum over ranks of h(r) @ w_down(r).T, + b_down + residual``, where each rank has its H
    of w_gate, w_up [H, D], w_down [D, H], b_gate and b_up [H], and all have the same x, b_down and residual.
    ``ValueError`` for operands that want a gradient and for what is no group; all else: ``sluice.ranks``."""
    tensors = (x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual)
    if group is not None:
        name = _name_for(group, *tensors, next_norm)
        norms = (next_norm, next_eps, next_weight_offset)
        return _summed(_ops.mlp_reduce, *tensors, *checked(gate).arguments, weights_static, group=name, norms=norms)
    if next_norm is not None:
        y = mlp(*tensors, gate=gate, recompute=recompute, weights_static=weights_static)
        return y, norm(y, next_norm, eps=next_eps, weight_offset=next_weight_offset)[0]
    added = None
    if (dtype := _autocast_type(x)) is not None:
        tensors, added, residual = (*_cast(dtype, *tensors[:7]), None), residual, None
    if _wants_gradient(*tensors):
        y = first_of(_ops.mlp_save.default(*tensors, *checked(gate).arguments, recompute=recompute))
        return _plus(y, added)
    alone = b_gate is b_up is b_down is residual is None and not weights_static
    if alone and (gate is _SILU or gate == _SILU):
        return _plus(_ops.mlp.plain(*tensors[:4]), added)
    return _plus(_ops.mlp.default(*tensors, *checked(gate).arguments, weights_static), added)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *,
    weights_static: bool = False, group: Group = None, next_norm: Tensor | None = None,
    next_eps: float = 1e-6, next_weight_offset: float = 0.0,
) -> Any:  # fmt: skip
    """``y = x @ weight.T + bias + residual``: x [.., K], weight [N, K] -> y [.., N]. ``down`` by its general
    name: messages call x h, weight w_down and bias b_down."""
    return down(
        x, weight, bias, residual, weights_static=weights_static, group=group, next_norm=next_norm,
        next_eps=next_eps, next_weight_offset=next_weight_offset,
    )  # fmt: skip


_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# The operator has these numbers in float32: between them none is rounded to 0 or infinity.
_LEAST_EPS, _FLOAT_LIMIT = 2.0**-150, 2.0**128 - 2.0**103


def _norm_by_torch(
    x: Tensor, norm_weight: Tensor, x_residual: Tensor | None, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    """n and r of a norm that is differentiated; refuses what the operator refuses."""
    if x.dtype not in _DTYPES:
        raise ValueError("x: expected bfloat16, float16, float32 or float64")
    if x.dim() == 0:
        raise ValueError("x: expected at least one dimension, got a scalar")
    if norm_weight.dtype not in _DTYPES:
        raise ValueError("norm_weight: expected bfloat16, float16, float32 or float64")
    width = x.shape[-1]
    if width < 1:
        raise ValueError("d: got 0, wanted at least 1")
    if norm_weight.numel() != width or norm_weight.shape[-1:] != (width,):
        raise ValueError(f"norm_weight: expected shape [{width}], got {list(norm_weight.shape)}")
    norm_weight = norm_weight.reshape(width)
    if x_residual is not None and x_residual.numel() == x.numel() and x_residual.shape[-1:] == (width,):
        x_residual = x_residual.reshape(x.shape)  # other dimensions of the same rows
    if x_residual is not None and (x_residual.shape != x.shape or x_residual.dtype is not x.dtype):
        raise ValueError(
            f"x_residual: expected {x.dtype} {list(x.shape)}, got {x_residual.dtype} {list(x_residual.shape)}"
        )
    if not _LEAST_EPS < eps < _FLOAT_LIMIT:
        raise ValueError(f"norm.eps: got {eps:g}, wanted a finite number above 0")
    if not -_FLOAT_LIMIT < weight_offset < _FLOAT_LIMIT:
        raise ValueError(f"norm.weight_offset: got {weight_offset:f}, wanted a finite number")
    r = x if x_residual is None else x + x_residual
    wide = torch.promote_types(r.dtype, torch.float32)
    scale = norm_weight.to(wide) + weight_offset
    return torch.nn.functional.rms_norm(r.to(wide), scale.shape, scale, eps).to(r.dtype), r


def norm(
    x: Tensor, norm_weight: Tensor, x_residual: Tensor | None = None, *, eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``r = x + x_residual``, ``n = r / sqrt(mean(r^2) + eps) * (norm_weight + weight_offset)``:
    x [.., D] -> n, r [.., D], both in x's type. Without ``x_residual`` r is x. x_residual has x's strides."""
    if _wants_gradient(x, norm_weight, x_residual):
        return _norm_by_torch(x, norm_weight, x_residual, eps, weight_offset)
    n, r = _ops.norm.default(x, norm_weight, x_residual, eps, weight_offset)
    return n, x if x_residual is None else r


def norm_mlp(
    x: Tensor, norm_weight: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor,
    x_residual: Tensor | None = None, b_gate: Tensor | None = None, b_up: Tensor | None = None,
    b_down: Tensor | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0,
    add_sum: bool = False, gate: Gate = _SILU, recompute: bool = False,
    weights_static: bool = False, group: Group = None, next_norm: Tensor | None = None,
    next_eps: float = 1e-6, next_weight_offset: float = 0.0,
) -> Any:  # fmt: skip
    """``r = x + x_residual``, ``n = r / sqrt(mean(r^2) + eps) * (norm_weight + weight_offset)``,
    ``y = mlp(n)``, plus r with ``add_sum``: x [.., D] -> y, r [.., D], with ``next_norm`` -> y, r, y_norm. Without
    ``x_residual`` r is x.

    norm_weight [D] in the weights' type; x_residual has x's strides. r and n are rounded to x's type; in bf16
    n perhaps before the division, which then applies to g and u (docs/numerics.md). With ``group`` mlp(n) is
    summed, b_down and r are added once.
    """
    tensors = (x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down)
    if group is not None:
        name = _name_for(group, *tensors, next_norm)
        y, r, *y_norm = _summed(
            _ops.norm_mlp_reduce, *tensors, eps, weight_offset, add_sum, *checked(gate).arguments, weights_static,
            group=name, norms=(next_norm, next_eps, next_weight_offset),
        )  # fmt: skip
        return y, x if x_residual is None else r, *y_norm
    if next_norm is not None:
        y, r = norm_mlp(
            *tensors, eps=eps, weight_offset=weight_offset, add_sum=add_sum, gate=gate, recompute=recompute,
            weights_static=weights_static,
        )  # fmt: skip
        return y, r, norm(y, next_norm, eps=next_eps, weight_offset=next_weight_offset)[0]
    casts = _autocast_type(x) is not None
    if not (casts or _wants_gradient(*tensors)):
        y, r = _ops.norm_mlp.default(*tensors, eps, weight_offset, add_sum, *checked(gate).arguments, weights_static)
        return y, x if x_residual is None else r
    if norm_weight.dtype is not w_gate.dtype:
        raise ValueError(f"norm_weight: expected {w_gate.dtype}, got {norm_weight.dtype}")
    if casts:
        n, r = norm(x, norm_weight, x_residual, eps=eps, weight_offset=weight_offset)
    else:
        n, r = _norm_by_torch(x, norm_weight, x_residual, eps, weight_offset)
    return mlp(
        n, w_gate, w_up, w_down, b_gate, b_up, b_down, r if add_sum else None, gate=gate,
        recompute=recompute, weights_static=weights_static,
    ), r  # fmt: skip


_ORDERS = ("gate_up", "up_gate")


def pack_gate_up(gate: Tensor, up: Tensor, block: int, order: str = "gate_up") -> Tensor:
    """Gate and up in alternating blocks of ``block`` rows of one tensor: gate, up [H, ..] -> [2H, ..].

    Row r of the first is row ``2 * block * (r // block) + r % block``, that of the second ``block`` rows
    behind it; ``order`` is ``"gate_up"`` or ``"up_gate"``, the first named first. ``block`` 1 alternates
    single rows, H makes two halves. Biases [H] are packed the same. One copy, on any device and of any type;
    differentiable. Raises ``ValueError`` for unequal shapes or types, a ``block`` that does not divide H and
    another ``order``.
    """
    if gate.dim() < 1 or gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(
            f"up: got {list(up.shape)} {up.dtype}, wanted what gate has, {list(gate.shape)} "
            f"{gate.dtype}, of at least one dimension"
        )
    _check_packing(gate.shape[0], block, order)
    pair = [gate, up] if order == "gate_up" else [up, gate]
    return torch.stack([w.unflatten(0, (-1, block)) for w in pair], 1).flatten(0, 2)


def unpack_gate_up(w: Tensor, block: int, order: str = "gate_up") -> tuple[Tensor, Tensor]:
    """Gate and up as views of a packed tensor: w [2H, ..] -> two of [H, ..] where ``block`` is 1 or H, else
    of [H / block, block, ..], which ``gate_up`` and ``mlp`` read in place too and ``.flatten(0, 1)`` copies
    to [H, ..]. A bias is to be flattened. Raises ``ValueError`` for an odd number of rows, a ``block`` that does
    not divide H and another ``order``."""
    if w.dim() < 1 or w.shape[0] % 2 != 0:
        raise ValueError(f"w: got {list(w.shape)}, wanted 2H rows")
    hidden = w.shape[0] // 2
    _check_packing(hidden, block, order)
    pairs = w.unflatten(0, (-1, 2, block))
    first, second = pairs.select(1, 0), pairs.select(1, 1)
    if block == 1 or block == hidden:  # one dimension of 1
        first, second = first.flatten(0, 1), second.flatten(0, 1)
    return (first, second) if order == "gate_up" else (second, first)


def _check_packing(hidden: int, block: int, order: str) -> None:
    if block < 1 or hidden < 1 or hidden % block != 0:
        raise ValueError(f"block: got {block}, wanted a divisor of H = {hidden}")
    if order not in _ORDERS:
        raise ValueError(f"order: got {order!r}, wanted one of {', '.join(_ORDERS)}")


def gate_mul(g: Tensor, u: Tensor, *, gate: Gate = _SILU, round_gate: bool = False) -> Tensor:
    """``h = act(g) * u``: g, u [.., H] -> h [.., H]. g and u may be halves of one buffer.

    ``round_gate`` rounds ``act(g)`` to the tensors' type before the product, and ``dh * u`` before the product
    with ``act'(g)`` in the gradient, as ``act(g) * u`` of eager Torch does. The result is less precise and
    compares with eager's.

    g and u may be DTensors: each rank computes its part, and placements stay as they are. Where g's and u's
    differ one is redistributed; a plain tensor beside a DTensor is taken to be whole and the same on all ranks."""
    g, u = _alike(g, u)
    _refuse_tangents(g, u)
    return _ops.gate_mul.default(g, u, *checked(gate).arguments, round_gate)
