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
``y =`` is summed over the group (``sluice.ranks``); biases of y and residuals are added once.

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
live as long as the graph. What an ``.out`` form writes is never copied.

All are differentiable once; a second derivative is a ``RuntimeError``, but for ``norm``, which has one.
Without ``recompute`` the forward pass also stores g and u, [.., H] each, for the backward pass; with it
nothing but the inputs is kept and g and u are computed again. The gradients of weights come in the
weights' type. ``norm`` and ``norm_mlp`` are one operator where no gradient is
wanted; where one is, Torch computes the norm.

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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sluice.capi import library_folder
from sluice.gate import Gate

OPERATORS = (
    "gate_up", "gate_up_save", "down", "mlp", "mlp_save", "norm_mlp", "norm", "gate_mul",
    "gate_mul_grad", "gate_up_grad", "mlp_grad",
)  # fmt: skip
OVER_RANKS = ("down_reduce", "mlp_reduce", "norm_mlp_reduce")
_SILU = Gate()
Group = Any  # a torch.distributed.ProcessGroup, which Torch may lack, or its name


def _load() -> None:
    path = library_folder() / "sluice_torch.so"
    if hasattr(torch.ops.sluice, "mlp"):
        return
    if not path.is_file():
        raise ImportError(
            f"{path} is not there: this Sluice was built without Torch operators; in an "
            "environment with Torch 2.11 or later: pip install --no-build-isolation ."
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(f"{path}: {error} (Torch {torch.__version__}; 2.11 or later)") from error
    missing = [name for name in (*OPERATORS, *OVER_RANKS) if not hasattr(torch.ops.sluice, name)]
    if missing:  # a schema that Torch refuses is only a line on standard error
        raise ImportError(f"{path}: Torch {torch.__version__} took no {', '.join(missing)}")


_load()
_ops = torch.ops.sluice


# --- fakes: shapes for tracing. The strides are those of fresh contiguous tensors.


def _hidden(weight: Tensor) -> Any:
    """Rows of a weight, which may come as blocks of rows."""
    return weight.numel() // weight.shape[-1] if weight.dim() > 2 else weight.shape[0]


def _wide(like: Tensor, width: Any) -> Tensor:
    return like.new_empty((*like.shape[:-1], width))


def _fresh(like: Tensor) -> Tensor:
    return like.new_empty(like.shape)


def _saved(x: Tensor, w_gate: Tensor, recompute: bool) -> tuple[Tensor, Tensor]:
    """g and u, or nothing of them."""
    width = _hidden(w_gate)
    return tuple(x.new_empty(0) if recompute else _wide(x, width) for _ in range(2))


def _register_fakes() -> None:
    fake = torch.library.register_fake

    @fake("sluice::gate_up")
    def _(x, w_gate, w_up, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _wide(x, _hidden(w_gate))

    @fake("sluice::gate_up_save")
    def _(x, w_gate, w_up, *_args, recompute=False, **_kwargs):  # type: ignore[no-untyped-def]
        return _wide(x, _hidden(w_gate)), *_saved(x, w_gate, recompute)

    @fake("sluice::down_reduce")
    @fake("sluice::down")
    def _(h, w_down, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _wide(h, w_down.shape[0])

    @fake("sluice::mlp_reduce")
    @fake("sluice::mlp")
    def _(x, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x)

    @fake("sluice::mlp.plain")
    def _(x, w_gate, w_up, w_down):  # type: ignore[no-untyped-def]
        return _fresh(x)

    @fake("sluice::mlp_save")
    def _(x, w_gate, *_args, recompute=False, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x), *_saved(x, w_gate, recompute)

    @fake("sluice::norm_mlp_reduce")
    @fake("sluice::norm_mlp")
    def _(  # type: ignore[no-untyped-def]
        x, norm_weight, w_gate, w_up, w_down, x_residual=None, *_args, **_kwargs
    ):
        return _fresh(x), x.new_empty(0) if x_residual is None else _fresh(x)

    @fake("sluice::norm")
    def _(x, norm_weight, x_residual=None, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x), x.new_empty(0) if x_residual is None else _fresh(x)

    @fake("sluice::gate_mul")
    def _(g, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(g)

    @fake("sluice::gate_mul_grad")
    def _(dh, g, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(g), _fresh(g)

    @fake("sluice::gate_up_grad")
    def _(dy, w_down, g, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(g), _fresh(g), _fresh(g)

    @fake("sluice::mlp_grad")
    def _(  # type: ignore[no-untyped-def]
        dy, x, w_gate, w_up, w_down, g=None, u=None, b_gate=None, b_up=None, activation=0,
        alpha=1.0, limit=None, up_offset=0.0, gate_multiplier=1.0, output_multiplier=1.0,
        need_x=True, need_weights=True, need_bias_gate_up=False, need_bias_down=False,
    ):  # fmt: skip
        hidden = _hidden(w_gate) if need_bias_gate_up else 0
        weights = [_fresh(w) if need_weights else w.new_empty(0) for w in (w_gate, w_up, w_down)]
        return (
            _fresh(x) if need_x else w_gate.new_empty(0),
            *weights,
            w_gate.new_empty(hidden),
            w_gate.new_empty(hidden),
            w_gate.new_empty(w_down.shape[0] if need_bias_down else 0),
        )

    for name in OPERATORS:
        if "out" in getattr(_ops, name).overloads():
            fake(f"sluice::{name}.out", lambda *_args, **_kwargs: None)


# --- autograd. Each backward returns one gradient an argument of the schema, in its order.


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _times(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in a's type: weights may be narrower than activations."""
    return a @ b.to(a.dtype)


def _padded(values: tuple[Any, ...], count: int, filler: Any = None) -> tuple[Any, ...]:
    return values + (filler,) * (count - len(values))


def _needed(ctx: Any) -> tuple[bool, ...]:
    """Which arguments want a gradient; the dispatcher leaves out those that have their default."""
    return _padded(ctx.needs_input_grad, ctx.count, False)


def _save(ctx: Any, tensors: tuple[Any, ...], recompute: bool, output: Any) -> None:
    """Keeps the inputs, and g and u, the results behind the first, where there are any."""
    _, *saved = output
    ctx.mark_non_differentiable(*saved)
    ctx.set_materialize_grads(False)  # else zeros of g's and u's size are made for each
    ctx.save_for_backward(*tensors, *(() if recompute else saved))


def _gate_up_setup(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    x, w_gate, w_up, b_gate, b_up, *gate = inputs
    ctx.gate, ctx.count = gate, len(inputs)
    _save(ctx, (x, w_gate, w_up, b_gate, b_up), keyword_only_inputs["recompute"], output)


def _gate_up_backward(ctx: Any, dh: Tensor | None, *_unused: None) -> tuple[Tensor | None, ...]:
    if dh is None:
        return _padded((), ctx.count)
    x, w_gate, w_up, b_gate, b_up, *saved = ctx.saved_tensors
    g, u = saved or _ops.gate_up_save(x, w_gate, w_up, b_gate, b_up, *ctx.gate)[1:]
    dg, du = (_rows(t) for t in _ops.gate_mul_grad(dh, g, u, *ctx.gate))
    needed = _needed(ctx)
    dx = _times(dg, _rows(w_gate)) + _times(du, _rows(w_up)) if needed[0] else None
    return _padded(
        (
            dx.reshape(x.shape) if dx is not None else None,
            _times(dg.T, _rows(x)).to(w_gate.dtype).reshape(w_gate.shape) if needed[1] else None,
            _times(du.T, _rows(x)).to(w_up.dtype).reshape(w_up.shape) if needed[2] else None,
            dg.sum(0, dtype=b_gate.dtype) if needed[3] else None,
            du.sum(0, dtype=b_up.dtype) if needed[4] else None,
        ),
        ctx.count,
    )


def _down_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, w_down, b_down, *_ = inputs
    ctx.count = len(inputs)
    ctx.save_for_backward(h, w_down, b_down)


def _down_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    h, w_down, b_down = ctx.saved_tensors
    needed = _needed(ctx)
    rows = _rows(dy)
    return _padded(
        (
            _times(rows, w_down).reshape(h.shape) if needed[0] else None,
            _times(rows.T, _rows(h)).to(w_down.dtype) if needed[1] else None,
            rows.sum(0, dtype=b_down.dtype) if needed[2] else None,
            dy if needed[3] else None,
        ),
        ctx.count,
    )


def _mlp_setup(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    x, w_gate, w_up, w_down, b_gate, b_up, _b_down, _residual, *gate = inputs
    ctx.gate, ctx.count = gate, len(inputs)
    tensors = (x, w_gate, w_up, w_down, b_gate, b_up)
    _save(ctx, tensors, keyword_only_inputs["recompute"], output)


def _first_of(outputs: tuple[Tensor, ...]) -> Tensor:
    """The result of an operator that also saves g and u, which nobody but its backward pass sees."""
    result = outputs[0]
    if not torch.compiler.is_compiling() and result.grad_fn is not None:
        result.grad_fn.owns_saved = True
    return result


def _may_overwrite_saved(ctx: Any) -> bool:
    """May a backward pass write its results over g and u? Not where the graph may be asked again."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return getattr(ctx, "owns_saved", False) and not keeps()


def _products_by_torch(x: Tensor) -> bool:
    """On GPUs the plain products are its GEMMs', which know more shapes than anybody's."""
    return x.is_cuda


def _mlp_backward(ctx: Any, dy: Tensor | None, *_unused: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return _padded((), ctx.count)
    dy, needed = dy.contiguous(), _needed(ctx)
    gradients = _mlp_products if _products_by_torch(dy) else _mlp_grad
    return _padded((*gradients(ctx, dy, needed), dy if needed[7] else None), ctx.count)


def _mlp_grad(ctx: Any, dy: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Of x, the weights and the biases, by one operator."""
    x, w_gate, w_up, w_down, b_gate, b_up, *saved = ctx.saved_tensors
    gradients = _ops.mlp_grad(
        dy, x, w_gate, w_up, w_down, *(saved or (None, None)), b_gate, b_up, *ctx.gate,
        need_x=needed[0], need_weights=any(needed[1:4]), need_bias_gate_up=any(needed[4:6]),
        need_bias_down=needed[6],
    )  # fmt: skip
    return tuple(gradient if need else None for gradient, need in zip(gradients, needed))


def _mlp_products(ctx: Any, dy: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The same from dg, du and h of one operator. dg and du take the place of g and u where they may, and
    each goes when the last product has read it: the most memory is needed beside the last weight's
    gradient."""
    x, w_gate, w_up, w_down, b_gate, b_up, *saved = ctx.saved_tensors
    owned = bool(saved) and _may_overwrite_saved(ctx)
    if owned or not saved:
        h, dg, du = (
            (torch.empty_like(saved[0]), *saved)
            if saved
            else _ops.gate_up_save(x, w_gate, w_up, b_gate, b_up, *ctx.gate)
        )
        _ops.gate_up_grad.out(dy, w_down, dg, du, *ctx.gate, dg=dg, du=du, h=h)
    else:
        dg, du, h = _ops.gate_up_grad(dy, w_down, *saved, *ctx.gate)
    rows, x_rows, dg, du = (_rows(t) for t in (dy, x, dg, du))
    dw_down = _times(rows.T, _rows(h)).to(w_down.dtype) if needed[3] else None
    del h
    dx = None
    if needed[0]:
        dx = _times(dg, _rows(w_gate)).addmm_(du, _rows(w_up).to(du.dtype)).reshape(x.shape)
    db_gate = dg.sum(0, dtype=b_gate.dtype) if needed[4] else None
    db_up = du.sum(0, dtype=b_up.dtype) if needed[5] else None
    dw_gate = _times(dg.T, x_rows).to(w_gate.dtype).reshape(w_gate.shape) if needed[1] else None
    if owned and dg.untyped_storage().nbytes() == dg.numel() * dg.element_size():
        dg.untyped_storage().resize_(0)  # the graph's node holds on to g until this returns
    del dg
    dw_up = _times(du.T, x_rows).to(w_up.dtype).reshape(w_up.shape) if needed[2] else None
    db_down = rows.sum(0, dtype=w_down.dtype) if needed[6] else None
    return dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down


def _gate_mul_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    g, u, *gate = inputs  # and round_gate
    ctx.gate = gate
    ctx.save_for_backward(g, u)


def _gate_mul_backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
    dg, du = _ops.gate_mul_grad(dh, *ctx.saved_tensors, *ctx.gate)
    return _padded((dg, du), 2 + len(ctx.gate))


def _once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """``backward`` whose results raise when they are differentiated. (Torch's ``once_differentiable`` asks
    whether the incoming gradient wants one; of a sum it does not, and the result would be a constant.)"""

    def once(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():  # no create_graph
            return results
        wanted = [r.detach().requires_grad_() for r in results if r is not None]
        if not wanted:
            return results
        refuse = torch._C._functions.DelayedError(
            "sluice: second derivatives are not defined", len(wanted)
        )
        outputs = refuse(*wanted)  # a tensor where there is one, else a tuple
        refused = iter(outputs if isinstance(outputs, tuple) else (outputs,))
        return tuple(None if r is None else next(refused) for r in results)

    return once


def _register_autograd() -> None:
    for name, backward, setup in (
        ("gate_up_save", _gate_up_backward, _gate_up_setup),
        ("down", _down_backward, _down_setup),
        ("mlp_save", _mlp_backward, _mlp_setup),
        ("gate_mul", _gate_mul_backward, _gate_mul_setup),
    ):
        torch.library.register_autograd(f"sluice::{name}", _once(backward), setup_context=setup)


def _lies_in_a_pool(tensor: Tensor) -> bool:
    """Does the tensor's memory belong to the graph that is captured, or to a ``torch.cuda.MemPool``?
    workspace.cpp asks once a capture: what it borrows from Torch's ordinary memory would be another tensor's
    when the graph is replayed."""
    if (backend := torch.cuda.get_allocator_backend()) != "native":
        return backend == "cudaMallocAsync"  # whose memory is a node of whatever graph is captured
    address = tensor.data_ptr()
    return any(
        segment["segment_pool_id"] != (0, 0)
        and segment["address"] <= address < segment["address"] + segment["total_size"]
        for segment in torch.cuda.memory_snapshot(include_traces=False)
    )


_register_fakes()
_register_autograd()
_library = torch.library.Library("sluice", "IMPL")
_library.impl("_lies_in_a_pool", _lies_in_a_pool, "CUDA")


def _register_over_ranks(name: str) -> None:
    def run(*arguments: Any, group: str) -> Any:
        from sluice import ranks  # imports torch.distributed

        return getattr(ranks, name)(*arguments, group=group)

    for place in ("CPU", "CUDA"):
        _library.impl(name, run, place)


for _name in OVER_RANKS:
    _register_over_ranks(_name)


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


# --- the functions. They name the overload: to look for the one that fits costs 3 us of the host.


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def gate_up(
    x: Tensor, w_gate: Tensor, w_up: Tensor, b_gate: Tensor | None = None,
    b_up: Tensor | None = None, *, gate: Gate = _SILU, recompute: bool = False,
    weights_static: bool = False,
) -> Tensor:  # fmt: skip
    """``h = act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)``: x [.., D] -> h [.., H]."""
    arguments = (x, w_gate, w_up, b_gate, b_up, *gate.arguments)
    if _wants_gradient(x, w_gate, w_up, b_gate, b_up):
        return _ops.gate_up_save.default(*arguments, recompute=recompute)[0]
    return _ops.gate_up.default(*arguments, weights_static)


def down(
    h: Tensor, w_down: Tensor, b_down: Tensor | None = None, residual: Tensor | None = None, *,
    weights_static: bool = False, group: Group = None,
) -> Tensor:  # fmt: skip
    """``y = h @ w_down.T + b_down + residual``: h [.., H] -> y [.., D]; with ``group`` the product is summed."""
    if group is not None:
        name = _name_for(group, h, w_down, b_down, residual)
        return _ops.down_reduce.default(h, w_down, b_down, residual, weights_static, group=name)
    return _ops.down.default(h, w_down, b_down, residual, weights_static)


def mlp(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, b_gate: Tensor | None = None,
    b_up: Tensor | None = None, b_down: Tensor | None = None, residual: Tensor | None = None, *,
    gate: Gate = _SILU, recompute: bool = False, weights_static: bool = False, group: Group = None,
) -> Tensor:  # fmt: skip
    """``y = down(gate_up(x))``: x [.., D] -> y [.., D].

    With ``group``: ``y = sum over ranks of h(r) @ w_down(r).T, + b_down + residual``, where each rank has its H
    of w_gate, w_up [H, D], w_down [D, H], b_gate and b_up [H], and all have the same x, b_down and residual.
    ``ValueError`` for operands that want a gradient and for what is no group; all else: ``sluice.ranks``."""
    tensors = (x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual)
    if group is not None:
        name = _name_for(group, *tensors)
        return _ops.mlp_reduce.default(*tensors, *gate.arguments, weights_static, group=name)
    if _wants_gradient(*tensors):
        return _first_of(_ops.mlp_save.default(*tensors, *gate.arguments, recompute=recompute))
    alone = b_gate is b_up is b_down is residual is None and not weights_static
    if alone and (gate is _SILU or gate == _SILU):
        return _ops.mlp.plain(x, w_gate, w_up, w_down)
    return _ops.mlp.default(*tensors, *gate.arguments, weights_static)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *,
    weights_static: bool = False, group: Group = None,
) -> Tensor:  # fmt: skip
    """``y = x @ weight.T + bias + residual``: x [.., K], weight [N, K] -> y [.., N]. ``down`` by its general
    name: messages call x h, weight w_down and bias b_down."""
    return down(x, weight, bias, residual, weights_static=weights_static, group=group)


def _norm_by_torch(
    x: Tensor, norm_weight: Tensor, x_residual: Tensor | None, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    """n and r of a norm that is differentiated."""
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
    weights_static: bool = False, group: Group = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``r = x + x_residual``, ``n = r / sqrt(mean(r^2) + eps) * (norm_weight + weight_offset)``,
    ``y = mlp(n)``, plus r with ``add_sum``: x [.., D] -> y, r [.., D]. Without ``x_residual`` r is x.

    norm_weight [D] in the weights' type; x_residual has x's strides. r and n are rounded to x's type; in bf16
    n perhaps before the division, which then applies to g and u (docs/numerics.md). With ``group`` mlp(n) is
    summed, b_down and r are added once.
    """
    tensors = (x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down)
    if group is not None:
        name = _name_for(group, *tensors)
        y, r = _ops.norm_mlp_reduce.default(
            *tensors, eps, weight_offset, add_sum, *gate.arguments, weights_static, group=name
        )
        return y, x if x_residual is None else r
    if not _wants_gradient(*tensors):
        y, r = _ops.norm_mlp.default(*tensors, eps, weight_offset, add_sum, *gate.arguments, weights_static)
        return y, x if x_residual is None else r
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
    return _ops.gate_mul.default(g, u, *gate.arguments, round_gate)
