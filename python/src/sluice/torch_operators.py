# SPDX-License-Identifier: Apache-2.0
"""``torch.ops.sluice`` as Torch knows it: the operators of sluice_torch.so, which importing this module
loads, with their fakes for tracing, their gradients, and those that are Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sluice.capi import library_folder, without_operators

OPERATORS = (
    "gate_up", "gate_up_save", "down", "mlp", "mlp_save", "norm_mlp", "norm", "gate_mul",
    "gate_mul_grad", "gate_up_grad", "mlp_grad",
)  # fmt: skip
OVER_RANKS = ("down_reduce", "mlp_reduce", "norm_mlp_reduce")


def _load() -> None:
    path = library_folder() / "sluice_torch.so"
    if hasattr(torch.ops.sluice, "mlp"):
        return
    if not path.is_file():
        raise ImportError(f"{path} is not there: {without_operators()}")
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
    if weight.dim() == 1:
        return 1
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

    def normed(y, next_norm):  # type: ignore[no-untyped-def]
        return y.new_empty(0) if next_norm is None else _fresh(y)

    @fake("sluice::down_reduce")
    def _(h, w_down, *_args, next_norm=None, **_kwargs):  # type: ignore[no-untyped-def]
        y = _wide(h, _hidden(w_down))
        return y, normed(y, next_norm)

    @fake("sluice::mlp_reduce")
    def _(x, *_args, next_norm=None, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x), normed(x, next_norm)

    @fake("sluice::norm_mlp_reduce")
    def _(  # type: ignore[no-untyped-def]
        x, norm_weight, w_gate, w_up, w_down, x_residual=None, *_args, next_norm=None, **_kwargs
    ):
        x_sum = x.new_empty(0) if x_residual is None else _fresh(x)
        return _fresh(x), x_sum, normed(x, next_norm)

    @fake("sluice::down")
    def _(h, w_down, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _wide(h, _hidden(w_down))

    @fake("sluice::mlp")
    def _(x, *_args, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x)

    @fake("sluice::mlp.plain")
    def _(x, w_gate, w_up, w_down):  # type: ignore[no-untyped-def]
        return _fresh(x)

    @fake("sluice::mlp_save")
    def _(x, w_gate, *_args, recompute=False, **_kwargs):  # type: ignore[no-untyped-def]
        return _fresh(x), *_saved(x, w_gate, recompute)

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


def _as(gradient: Tensor, like: Tensor) -> Tensor:
    """In an argument's type and shape: shapes are taken that have its rows otherwise than the result's."""
    return gradient.to(like.dtype).reshape(like.shape)


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
            _as(_times(dg.T, _rows(x)), w_gate) if needed[1] else None,
            _as(_times(du.T, _rows(x)), w_up) if needed[2] else None,
            _as(dg.sum(0), b_gate) if needed[3] else None,
            _as(du.sum(0), b_up) if needed[4] else None,
        ),
        ctx.count,
    )


def _down_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, w_down, b_down, residual, *_ = inputs
    ctx.count, ctx.shape = len(inputs), None if residual is None else residual.shape
    ctx.save_for_backward(h, w_down, b_down)


def _down_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    h, w_down, b_down = ctx.saved_tensors
    needed = _needed(ctx)
    rows = _rows(dy)
    return _padded(
        (
            _times(rows, _rows(w_down)).reshape(h.shape) if needed[0] else None,
            _as(_times(rows.T, _rows(h)), w_down) if needed[1] else None,
            _as(rows.sum(0), b_down) if needed[2] else None,
            dy.reshape(ctx.shape) if needed[3] else None,
        ),
        ctx.count,
    )


def _mlp_setup(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    x, w_gate, w_up, w_down, b_gate, b_up, _b_down, _residual, *gate = inputs
    ctx.gate, ctx.count = gate, len(inputs)
    ctx.shapes = [None if t is None else t.shape for t in inputs[:8]]
    tensors = (x, w_gate, w_up, w_down, b_gate, b_up)
    _save(ctx, tensors, keyword_only_inputs["recompute"], output)


def first_of(outputs: tuple[Tensor, ...]) -> Tensor:
    """The result of an operator that also saves g and u, which nobody but its backward pass sees."""
    result = outputs[0]
    if torch.compiler.is_compiling() or result.grad_fn is None:
        return result
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)
    result.grad_fn.owns_saved = hooks(True) is None  # they may keep what they are given
    return result


def _may_overwrite_saved(ctx: Any) -> bool:
    """May a backward pass write its results over g and u? Not where the graph may be asked again."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return getattr(ctx, "owns_saved", False) and not keeps()


def _is_batched(dy: Tensor) -> bool:
    """Is it several gradients, of ``is_grads_batched`` or of vmap around a backward pass? Results of one would be
    written where there is no room for them."""
    return torch._C._functorch.is_legacy_batchedtensor(dy) or torch._C._functorch.is_batchedtensor(dy)


def _products_by_torch(x: Tensor) -> bool:
    """On GPUs the plain products are its GEMMs', which know more shapes than anybody's."""
    return x.is_cuda


def _mlp_backward(ctx: Any, dy: Tensor | None, *_unused: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return _padded((), ctx.count)
    dy, needed = dy.contiguous(), _needed(ctx)
    products = _mlp_products if _products_by_torch(dy) else _mlp_grad
    gradients = *products(ctx, dy, needed), dy if needed[7] else None
    # Shapes are taken that have the rows otherwise than the result, biases of one row, too.
    given = (None if t is None else t.reshape(shape) for t, shape in zip(gradients, ctx.shapes))
    return _padded(tuple(given), ctx.count)


_GRADIENTS = ("dx", "dw_gate", "dw_up", "dw_down", "db_gate", "db_up", "db_down")


def _mlp_grad(ctx: Any, dy: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Of x, the weights and the biases, by one operator."""
    x, w_gate, w_up, w_down, b_gate, b_up, *saved = ctx.saved_tensors
    arguments = (dy, x, w_gate, w_up, w_down, *(saved or (None, None)), b_gate, b_up, *ctx.gate)
    biases = any(needed[4:6])
    if any(needed[1:4]) and not all(needed[1:4]) and type(dy) is Tensor and not _is_batched(dy):
        wanted = (*needed[:4], biases, biases, needed[6])
        # b_down is not kept, and is as wide as w_down is high.
        like = (x, w_gate, w_up, w_down, b_gate, b_up, w_down[..., 0] if needed[6] else None)
        results = {name: _fresh(t) for name, t, want in zip(_GRADIENTS, like, wanted) if want}
        _ops.mlp_grad.out(*arguments, **results)
        return tuple(results.get(name) if need else None for name, need in zip(_GRADIENTS, needed))
    gradients = _ops.mlp_grad(
        *arguments, need_x=needed[0], need_weights=any(needed[1:4]), need_bias_gate_up=biases,
        need_bias_down=needed[6],
    )  # fmt: skip
    return tuple(gradient if need else None for gradient, need in zip(gradients, needed))


def _mlp_products(ctx: Any, dy: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The same from dg, du and h of one operator. dg and du take the place of g and u where they may, and
    each goes when the last product has read it: the most memory is needed beside the last weight's
    gradient."""
    x, w_gate, w_up, w_down, b_gate, b_up, *saved = ctx.saved_tensors
    batched = _is_batched(dy)
    owned = bool(saved) and not batched and _may_overwrite_saved(ctx)
    if batched and not saved:
        saved = _ops.gate_up_save(x, w_gate, w_up, b_gate, b_up, *ctx.gate)[1:]
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
    dw_down = _as(_times(rows.T, _rows(h)), w_down) if needed[3] else None
    del h
    dx = None
    if needed[0]:
        dx = _times(dg, _rows(w_gate)).addmm_(du, _rows(w_up).to(du.dtype)).reshape(x.shape)
    db_gate = dg.sum(0).to(b_gate.dtype) if needed[4] else None
    db_up = du.sum(0).to(b_up.dtype) if needed[5] else None
    dw_gate = _as(_times(dg.T, x_rows), w_gate) if needed[1] else None
    if owned and dg.untyped_storage().nbytes() == dg.numel() * dg.element_size():
        dg.untyped_storage().resize_(0)  # the graph's node holds on to g until this returns
    del dg
    dw_up = _as(_times(du.T, x_rows), w_up) if needed[2] else None
    db_down = rows.sum(0).to(w_down.dtype) if needed[6] else None
    return dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down


def _gate_mul_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    g, u, *gate = inputs  # and round_gate
    ctx.gate = gate
    ctx.save_for_backward(g, u)


def _gate_mul_backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
    g, u = ctx.saved_tensors
    dg, du = _ops.gate_mul_grad(dh, g, u, *ctx.gate)
    return _padded((dg, du.reshape(u.shape)), 2 + len(ctx.gate))


class _Unpacked:
    """A backward pass's context whose saved tensors are unpacked already: hooks may refuse to do it twice, as
    those of ``torch.utils.checkpoint`` do."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Refuse(torch.autograd.Function):
    """``results`` as they are, but functions of ``sources``, which all of them may depend on, and without
    derivatives."""

    @staticmethod
    def forward(_ctx: Any, results: tuple[Any, ...], *_sources: Tensor) -> tuple[Any, ...]:
        return tuple(None if r is None else r.detach() for r in results)  # one may be the incoming gradient

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError("sluice: second derivatives are not defined")


def once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """``backward`` whose results raise when they are differentiated, by whatever they were computed from.
    (Torch's ``once_differentiable`` asks whether the incoming gradient wants one; of a sum it does not, and its
    results lead to no input of the forward pass: their derivative would be a zero.)"""

    def run(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():  # no create_graph
            return backward(ctx, *gradients)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            results = backward(ctx, *gradients)
        sources = (t for t in (*ctx.saved_tensors, *gradients) if t is not None and t.requires_grad)
        return _Refuse.apply(results, *sources)

    return run


def _register_autograd() -> None:
    for name, backward, setup in (
        ("gate_up_save", _gate_up_backward, _gate_up_setup),
        ("down", _down_backward, _down_setup),
        ("mlp_save", _mlp_backward, _mlp_setup),
        ("gate_mul", _gate_mul_backward, _gate_mul_setup),
    ):
        torch.library.register_autograd(f"sluice::{name}", once(backward), setup_context=setup)


def lies_in_a_pool(tensor: Tensor) -> bool:
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
_library.impl("_lies_in_a_pool", lies_in_a_pool, "CUDA")
for _place in ("CPU", "CUDA"):  # call.cpp asks: what an .out form is given may want none
    _library.impl("_wants_gradient", lambda tensors: any(t.requires_grad for t in tensors), _place)


def _register_over_ranks(name: str) -> None:
    def run(*arguments: Any, **named: Any) -> Any:
        from sluice import ranks  # imports torch.distributed

        return getattr(ranks, name)(*arguments, **named)

    for place in ("CPU", "CUDA"):
        _library.impl(name, run, place)


for _name in OVER_RANKS:
    _register_over_ranks(_name)
