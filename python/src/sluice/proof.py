# SPDX-License-Identifier: Apache-2.0
"""Does a class compute what its ``form`` says? Its own forward and Sluice's on a few random
tokens.

Syntax says what a forward calls, not what the names stand for: a function may have been replaced,
an activation of a known class changed. The comparison runs on a twin of the module, with its
activation and small projections of the same kind: model weights may be zeros, or larger than the
memory that is left.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.form import Form
from sluice.gate import Gate

# M is above 16, where kernels of engines for few tokens end (SGLang's dual GEMM); rows of H elements of 16 bits
# are whole vectors of 32 bytes, the widest that activation kernels load.
M, D, H = 17, 16, 32
_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
_SUM = 2.0**-24  # of a sum in fp32, a term
_STEEPEST = 1.13  # slope of any activation: gelu_tanh's

_log = logging.getLogger("sluice")
_results: dict[object, str | None] = {}
NOT_FINITE = "its weights are not finite"  # of a layer, not of its shape: not kept
_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)  # not kept either


def _raised(error: Exception) -> str:
    return f"on random tokens {type(error).__name__}: {error}"


def objection(
    module: nn.Module,
    form: Form,
    gate: Gate,
    own: Callable[[nn.Module, Tensor], Tensor],
    ours: Callable[[nn.Module, Tensor], Tensor],
    dtypes: tuple[torch.dtype, ...],
) -> str | None:
    """Why Sluice must not compute this class, or None. Found once for a class, activation, types
    and kind of device, and logged once. ``own`` and ``ours`` compute y of a module like this and x."""
    device = getattr(module, form.down).weight.device
    biases = tuple(getattr(module, name).bias is not None for name in form.projections)
    key = (type(module), form, gate, biases, dtypes, device.type)
    if key not in _results:
        reason = None
        try:
            for dtype in dtypes:
                reason = reason or _compared(module, form, gate, own, ours, dtype, device)
        except _NO_MEMORY as error:  # there may be some the next time
            return _raised(error)
        _results[key] = reason
        if reason is not None:
            _log.warning("Sluice: %s is left alone: %s", type(module).__qualname__, reason)
    return _results[key]


def _apart(part: nn.Module | None) -> nn.Module | None:
    """A copy of what has parameters or statistics, which are the model's; where it can be copied."""
    if part is None or not any(True for _ in (*part.parameters(), *part.buffers())):
        return part
    try:
        return copy.deepcopy(part)
    except Exception:  # noqa: BLE001
        return part


def _compared(
    module: nn.Module,
    form: Form,
    gate: Gate,
    own: Callable[[nn.Module, Tensor], Tensor],
    ours: Callable[[nn.Module, Tensor], Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float) -> Tensor:
        return (torch.randn(shape, generator=generator, device="cpu") * scale).to(device, dtype)

    def small(linear: nn.Module, rows: int, columns: int) -> nn.Module:
        twin = copy.copy(linear)
        bias = None if linear.bias is None else normal(rows, scale=0.5)
        tensors = {"weight": normal(rows, columns, scale=columns**-0.5), "bias": bias}
        twin._parameters = {
            name: None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            for name, tensor in tensors.items()
        }
        return twin

    twin = copy.copy(module)
    twin._modules = {
        name: part if name in form.projections else _apart(part) for name, part in module._modules.items()
    }
    twin.__dict__.pop("forward", None)
    for name in form.projections:
        rows, columns = (D, H) if name == form.down else (2 * H if form.merged else H, D)
        twin._modules[name] = small(getattr(module, name), rows, columns)
    for name in form.dropouts:
        twin._modules[name] = nn.Identity()
    x = normal(M, D, scale=1.0)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            theirs, got = own(twin, x.clone()), ours(twin, x)
        except _NO_MEMORY:
            raise
        except Exception as error:  # noqa: BLE001
            return _raised(error)
        if not isinstance(theirs, Tensor) or theirs.shape != got.shape:
            return "its result is no tensor of x's shape"
        bound = _bound(twin, form, gate, x, theirs)
        over = float(((theirs.double() - got.double()).abs() / bound).max())
    return None if over <= 1 else f"its result differs from Sluice's by {over:.3g} times the bound"


def linear_objection(
    weight: Tensor, bias: Tensor | None, ours: Callable[[Tensor], Tensor]
) -> str | None:
    """Why Sluice must not compute x @ weight.T + bias for weights of this shape, type and kind of device, or
    None. ``ours`` computes y [M, N] of x [M, K]; some of y's columns are compared with fp64. Found and logged
    once."""
    n, k = weight.shape
    key = (n, k, weight.dtype, bias is None, weight.device.type)
    if key in _results:
        return _results[key]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((M, k), generator=generator, device="cpu").to(weight.device, weight.dtype)
    columns = torch.arange(0, n, max(1, n // 128), device=weight.device)
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        w = weight[columns].double()
        b = torch.zeros((), dtype=torch.float64, device=x.device)
        b = b if bias is None else bias[columns].double()
        y = functional.linear(x.double(), w) + b
        terms = functional.linear(x.double().abs(), w.abs()) + b.abs()
        bound = 2 * ((k + 2) * _SUM * terms + _ROUNDOFF[x.dtype] * y.abs()) + 2.0**-120
        sound = (terms < torch.finfo(x.dtype).max / 2).all(0)  # NaN is not
        if not sound.any():
            return NOT_FINITE
        try:
            over = float(((ours(x)[:, columns].double() - y).abs() / bound)[:, sound].max())
            reason = None if over <= 1 else f"its result is off by {over:.3g} times the bound"
        except _NO_MEMORY as error:
            return _raised(error)
        except Exception as error:  # noqa: BLE001
            reason = _raised(error)
    _results[key] = reason
    if reason is not None:
        _log.warning("Sluice: linear %dx%d is left alone: %s", n, k, reason)
    return reason


def _input_rounding(dtype: torch.dtype) -> float:
    """What Torch may round factors of an fp32 product to: TF32 or bf16 where that is allowed."""
    if dtype is not torch.float32:
        return 0.0
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set another way
        exact = False
    return 0.0 if exact else 2.0**-8


def _bound(module: nn.Module, form: Form, gate: Gate, x: Tensor, y: Tensor) -> Tensor:
    """Of the difference of two results that each round g, u, act(g), h and y to x's type and sum in
    fp32, in the worst case and to first order (docs/numerics.md; Sluice rounds less often): [M, D],
    fp64."""

    def magnitudes(name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        """|value @ W.T + b|, and the sum of the magnitudes of its terms."""
        linear = getattr(module, name)
        weight = linear.weight.double()
        bias = torch.zeros((), dtype=torch.float64, device=x.device)
        bias = bias if linear.bias is None else linear.bias.double()
        return (functional.linear(value, weight) + bias).abs(), (
            functional.linear(value.abs(), weight.abs()) + bias.abs()
        )

    stored, factors = _ROUNDOFF[x.dtype], 2 * _input_rounding(x.dtype)
    g, g_sum = magnitudes(form.gate, x.double())
    u, u_sum = magnitudes(form.up, x.double())
    if form.merged:
        first, second = (1, 0) if form.up_first else (0, 1)
        g, g_sum = g.chunk(2, -1)[first], g_sum.chunk(2, -1)[first]
        u, u_sum = u.chunk(2, -1)[second], u_sum.chunk(2, -1)[second]
    error_g = ((D + 2) * _SUM + factors) * g_sum + stored * g
    error_u = ((D + 2) * _SUM + factors) * u_sum + stored * u
    act = g + (gate.activation == "sigmoid")  # |act(g)| <= |g|, or 1
    # act(g) and the product are rounded; 8: the activation's own evaluation, in units of fp32.
    error_h = _STEEPEST * error_g * u + act * error_u + (2 * stored + 8 * _SUM) * act * u
    down = getattr(module, form.down).weight.double().abs()
    _, y_sum = magnitudes(form.down, act * u)
    error_y = functional.linear(error_h, down) + ((H + 2) * _SUM + factors) * y_sum
    return 2 * (error_y + stored * y.double().abs()) + 2.0**-120
