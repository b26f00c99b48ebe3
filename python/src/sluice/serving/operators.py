# SPDX-License-Identifier: Apache-2.0
"""``torch.ops.sluice_serving.{mlp, norm_mlp, add_norm, linear, linears}``: what the plug-ins and ``patch`` call.

    mlp        y = MLP(x)                                          x [M, D] -> y [M, D]
    norm_mlp   r = x + residual, y = MLP(rms_norm(r, norm_weight))  x, residual [M, D] -> y, r [M, D]
    add_norm   r = x + residual, n = rms_norm(r, norm_weight)       x, residual [M, D] -> n, r [M, D]
    linear     y = x @ weight.T + bias                              x [.., K] -> y [.., N]
    linears    y = linear(x, weights[0]), linear(x, weights[1]), ..  x [.., K] -> y [.., sum of N]

w_gate_up [2H, D], gate's rows first; w_down [D, H]. Functional; CUDA graphs may capture them. The two with an
MLP know three ways to its result: ``sluice``; ``stock``, what vLLM runs one by one (cuBLAS, an activation kernel
that spreads a row over many SMs and an add + RMSNorm, like those that vLLM's compiler makes; ``_C``'s take one
block a row); and ``mixed``, ``gate_up`` by Sluice and the product behind it by cuBLAS. In
mode ``auto`` all are timed for a ladder of token counts when an operator first sees a shape, which is
vLLM's profiling run, before graphs are captured and requests served; a call takes the fastest one of the
step at or above its M. SGLang's plug-in calls ``chosen`` with SGLang's own kernels as ``stock``.

``linear`` takes weight [N, K] and bias [N] or None, all of x's type, on one device. Up to ``MOST_LINEAR`` tokens it
knows ``sluice`` and ``stock``, which is Torch's, above them ``stock`` alone; where Torch refuses the operands it
raises Torch's error. ``linears`` is one product where the weights, and the biases, lie one behind the other in one
buffer, else one of each.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sluice import proof, torch_operators
from sluice.gate import ACTIVATIONS, Gate
from sluice.serving import alike

STEPS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096,
         8192, 16384, 32768)  # fmt: skip
MOST_CAPTURED = 512  # vLLM captures up to here; above, its pieces run one kernel after the other
REPEATS, SAMPLES = 4, 5
# A model's step is not a row of repeats: Sluice serves where it won by more than they differ, since
# a table that says 1.02 was seen to cost 3 % of a step.
MARGIN = 0.03
MOST_LINEAR = 64  # tokens; kernels for few of them read each weight once
MEASURED = ("cuda",)  # devices whose kernels are timed; elsewhere Sluice serves
_COLD_BYTES = 2**26  # weights below this lie in the L2 cache when they are read again

Way = Callable[..., Any]

_log = logging.getLogger("sluice")
_mode = "auto"
_group: Callable[[], alike.Group | None] | None = None  # asked when something is timed: engines make it late


def configure(mode: str, log: logging.Logger, group: Callable[[], alike.Group | None] | None = None) -> None:
    """``auto`` or ``force``, the logger of the engine in this process, and its tensor-parallel group."""
    global _mode, _log, _group
    _mode, _log, _group = mode, log, group


def warn(text: str) -> None:
    """A line of the engine's log."""
    _log.warning("Sluice: %s", text)


def is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def all_say(what: str, mine: bool) -> bool:
    """Is it true on every tensor-parallel rank?"""
    return alike.all_say(_group, what, mine, _log)


# --- the three ways


@cache
def gate_arguments(activation: int) -> tuple[Any, ...]:
    return Gate(ACTIVATIONS[activation]).arguments


def _ours(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    w_gate, w_up = w_gate_up.chunk(2)
    return torch.ops.sluice.mlp(
        x, w_gate, w_up, w_down, None, None, None, None, *gate_arguments(activation), True
    )  # fmt: skip


def _ours_norm(
    x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor, eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    w_gate, w_up = w_gate_up.chunk(2)
    gate = gate_arguments(activation)
    return torch.ops.sluice.norm_mlp(
        x, norm_weight, w_gate, w_up, w_down, residual, None, None, None, eps, 0.0, False, *gate, True
    )


def _stock(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    g, u = functional.linear(x, w_gate_up).chunk(2, 1)
    h = torch.ops.sluice.gate_mul(g, u, *gate_arguments(activation))
    return functional.linear(h, w_down)


def _mixed(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    w_gate, w_up = w_gate_up.chunk(2)
    gate = gate_arguments(activation)
    h = torch.ops.sluice.gate_up(x, w_gate, w_up, None, None, *gate, True)
    return functional.linear(h, w_down)


def _behind_norm(way: Way) -> Way:
    """The way behind an add + RMSNorm of its own."""
    def norm_and(
        x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor,
        eps: float, activation: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        n, r = add_norm(x, residual, norm_weight, eps)
        return way(n, w_gate_up, w_down, activation), r

    return norm_and


MLP: dict[str, Way] = {"sluice": _ours, "mixed": _mixed, "stock": _stock}
NORM_MLP: dict[str, Way] = {
    "sluice": _ours_norm, "mixed": _behind_norm(_mixed), "stock": _behind_norm(_stock),
}  # fmt: skip


# --- which one


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """For captures; one, since workspaces are kept by stream."""
    return torch.cuda.Stream(device)


def _sampler(
    run: Callable[[], Any], between: Callable[[], Any], captured: bool, pool: Any = None,
    capturing: Callable[[Any], AbstractContextManager[Any]] = torch.cuda.stream,
) -> Callable[[], float]:  # fmt: skip
    """A function that takes one sample: microseconds of a run and of what a model has between two, which
    keeps programmatic launches of one run from starting under the one before. The weights of a layer
    exceed the L2 cache of the models that matter, so that repeats find them in memory."""
    run()  # plans, workspaces, compilation
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def all_runs() -> None:
        for _ in range(REPEATS):
            run()
            between()

    graph = torch.cuda.CUDAGraph()
    if captured:
        stream = _side_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        with capturing(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                all_runs()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    again = graph.replay if captured else all_runs
    again()

    def sample() -> float:
        begin.record()
        again()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / REPEATS

    return sample


@dataclass
class Choice:
    """For one operator on one shape: the steps that were timed, and what each way took, us."""

    name: str
    steps: list[int] = field(default_factory=list)
    us: dict[str, list[float]] = field(default_factory=dict)

    def _samplers(
        self, step: int, rows: Tensor, ways: dict[str, Callable[[int], Any]]
    ) -> dict[str, Callable[[], float]]:
        """Of the ways that run; without one that does not, but for the engine's own."""
        samplers = {}
        for name, way in ways.items():
            try:
                samplers[name] = _sampler(partial(way, step), rows[:step].clone, step <= MOST_CAPTURED)
            except RuntimeError as error:
                if name == "stock":
                    raise
                _log.warning("Sluice: %s of %d tokens, %s: %s", self.name, step, name, error)
        return samplers

    def _slowest(self, group: alike.Group, what: str, known: int) -> alike.Times | None:
        """Of the steps from ``known`` on, on all ranks; None where they could not tell each other."""
        new = {name: us[known:] for name, us in self.us.items()}
        return alike.slowest(group, what, self.steps[known:], new, _log)

    def measure(self, rows: Tensor, ways: dict[str, Callable[[int], Any]]) -> None:
        """Times the steps that are not known up to the rows at hand, and the last one whole; on several
        ranks all take the slowest one's times."""
        m, known = rows.shape[0], len(self.steps)
        for step in [step for step in STEPS if step < m] + [m]:
            if self.steps and step <= self.steps[-1]:
                continue
            samplers = self._samplers(step, rows, ways)
            times = [{name: s() for name, s in samplers.items()} for _ in range(SAMPLES)]  # in turns
            for name in ways:
                self.us.setdefault(name, []).append(min(t.get(name, math.inf) for t in times))
            self.steps.append(step)
        if group := alike.group_of(_group):
            for name, us in (self._slowest(group, f"{self.name} {rows.dtype}", known) or {}).items():
                self.us[name][known:] = us
        _log.info("Sluice: %s", self)

    def fastest(self, m: int) -> str:
        """At the step at or above m; above all of them, at the last."""
        return self._fastest_at(min(bisect.bisect_left(self.steps, m), len(self.steps) - 1))

    def _fastest_at(self, index: int) -> str:
        best = min(self.us, key=lambda name: self.us[name][index])
        enough = self.us[best][index] * (1 + MARGIN) <= self.us["stock"][index]
        return best if enough else "stock"

    def __str__(self) -> str:
        steps = [
            f"{step}:{self._fastest_at(i)}" + "".join(
                f" {self.us['stock'][i] / us[i]:.2f}" for name, us in self.us.items() if name != "stock"
            )
            for i, step in enumerate(self.steps)
        ]  # fmt: skip
        others = " and ".join(name for name in self.us if name != "stock")
        return f"{self.name}, by tokens who serves, stock's time over that of {others}: {', '.join(steps)}"


choices: dict[tuple[Any, ...], Choice] = {}
calls = dict.fromkeys(MLP, 0)  # of the operators, captured or run: shows whether they are there


@cache
def title(name: str, d: int, h: int, activation: int) -> str:
    """Of a choice for an MLP."""
    return f"{name} {d}x{h} {ACTIVATIONS[activation]}"


def choose(
    title: str, ways: dict[str, Way], x: Tensor, on_rows: Callable[[Way, int], Any],
    kind: Callable[[str], Choice] = Choice, unknown: str = "sluice",
) -> str:  # fmt: skip
    """The way for these rows; `on_rows` calls one on the first so many of them. ``unknown`` where a capture forbids
    to measure."""
    m = x.shape[0]
    if _mode == "force" or m == 0:
        return "sluice"
    key = (title, x.dtype, x.device)
    choice = choices.get(key)
    if choice is None or not choice.steps or m > 2 * choice.steps[-1]:
        if not is_capturing():
            choice = choices.setdefault(key, kind(title))
            choice.measure(x, {name: partial(on_rows, way) for name, way in ways.items()})
    return unknown if choice is None or not choice.steps else choice.fastest(m)


def chosen(
    name: str, ways: dict[str, Way], x: Tensor, w_down: Tensor, activation: int,
    on_rows: Callable[[Way, int], Any],
) -> Way:  # fmt: skip
    """The way of an MLP for these rows, counted."""
    best = choose(title(name, *w_down.shape, activation), ways, x, on_rows)
    calls[best] += 1
    return ways[best]


def _mlp(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    rest = (w_gate_up, w_down, activation)
    way = chosen("mlp", MLP, x, w_down, activation, lambda way, m: way(x[:m], *rest))
    return way(x, *rest)


def _norm_mlp(
    x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor, eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rest = (norm_weight, w_gate_up, w_down, eps, activation)
    way = chosen(
        "norm_mlp", NORM_MLP, x, w_down, activation,
        lambda way, m: way(x[:m], residual[:m], *rest),
    )  # fmt: skip
    return way(x, residual, *rest)


# --- linear layers


def _linear_ours(x: Tensor, weight: Tensor, bias: Tensor | None, weights_static: bool) -> Tensor:
    return torch.ops.sluice.down(x, weight, bias, None, weights_static)


def _linear_stock(x: Tensor, weight: Tensor, bias: Tensor | None, weights_static: bool) -> Tensor:
    return functional.linear(x, weight, bias)


LINEAR: dict[str, Way] = {"sluice": _linear_ours, "stock": _linear_stock}
linear_choices: dict[tuple[Any, ...], Choice | str] = {}  # or why Torch serves all
linear_calls = dict.fromkeys(LINEAR, 0)


def linear_choice(weight: Tensor, bias: Tensor | None, weights_static: bool) -> Choice | str | None:
    """Of a layer's shape, type and device: what was measured for up to ``MOST_LINEAR`` tokens, or why Torch
    serves all of them. Compares the numbers first. None where a graph that is being captured forbids both."""
    kind = (tuple(weight.shape), weight.dtype, bias is None, weight.device, weights_static)
    key = (_mode, *kind)
    if key not in linear_choices:
        if is_capturing():
            return None
        reason = proof.linear_objection(
            weight, bias, lambda x: _linear_ours(x, weight, bias, weights_static)
        )
        if reason == proof.NOT_FINITE:
            return reason
        linear_choices[key] = reason or _measured_linear(weight, bias, weights_static)
    return linear_choices[key]


def measures(device: torch.device) -> bool:
    """Are kernels timed here? Else Sluice serves."""
    return _mode != "force" and device.type in MEASURED


def inputs(weight: Tensor, rows: int) -> Tensor:
    """Normal, not of the process's own numbers, which the model's sampling draws from."""
    own = torch.Generator(weight.device).manual_seed(0)
    return torch.randn((rows, weight.shape[1]), generator=own, device=weight.device, dtype=weight.dtype)


def cold(weight: Tensor) -> Iterator[Tensor]:
    """The weight and its copies in turns, one a repeat where it is small: a model reads other layers' weights
    before this one's again."""
    small = weight.numel() * weight.element_size() < _COLD_BYTES
    return itertools.cycle([weight] + [weight.clone() for _ in range(REPEATS - 1)] * small)


def _measured_linear(weight: Tensor, bias: Tensor | None, weights_static: bool) -> Choice:
    n, k = weight.shape
    choice = Choice(f"linear {n}x{k}{'' if bias is None else ' with bias'}")
    if not measures(weight.device):
        return choice
    x, weights = inputs(weight, MOST_LINEAR), cold(weight)

    def of(way: Way) -> Callable[[int], Tensor]:
        return lambda m: way(x[:m], next(weights), bias, weights_static)

    choice.measure(x, {name: of(way) for name, way in LINEAR.items()})
    return choice


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, weights_static: bool) -> Tensor:
    m = x.numel() // x.shape[-1]
    best = "stock"
    if 0 < m <= MOST_LINEAR:
        choice = linear_choice(weight, bias, weights_static)
        if isinstance(choice, Choice):
            best = choice.fastest(m) if choice.steps else "sluice"
    linear_calls[best] += 1
    return LINEAR[best](x, weight, bias, weights_static)


def lie_together(tensors: Sequence[Tensor]) -> Tensor | None:
    """One [sum of N, ..] over tensors [N, ..] that lie one behind the other in one buffer; None where they do not."""
    first = tensors[0]
    address, place = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        if (
            not tensor.is_contiguous()
            or tensor.storage_offset() != place
            or tensor.untyped_storage().data_ptr() != address
            or tensor.dtype is not first.dtype
            or tensor.shape[1:] != first.shape[1:]
        ):
            return None
        place += tensor.numel()
    return first.as_strided((sum(tensor.shape[0] for tensor in tensors), *first.shape[1:]), first.stride())


def _linears(x: Tensor, weights: list[Tensor], biases: list[Tensor], weights_static: bool) -> Tensor:
    weight, bias = lie_together(weights), lie_together(biases) if biases else None
    if weight is not None and (bias is None) == (not biases):
        return _linear(x, weight, bias, weights_static)
    each = itertools.zip_longest(weights, biases)
    return torch.cat([_linear(x, weight, bias, weights_static) for weight, bias in each], -1)


def add_norm(x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """On Hopper its launch is programmatic, as what vLLM's compiler makes is not: behind Sluice's ``down``, which permits
    that from its start, it is in place when the last row is stored."""
    n, r = torch.ops.sluice.norm(x, norm_weight, residual, eps, 0.0)
    return n, r


# --- registration

# Schema, function and, for traces, the results' shapes.
Definition = tuple[str, Callable[..., Any], Callable[..., Any]]


def like_x(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def two_like_x(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return like_x(x), like_x(x)


def rows_of(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_DEFINITIONS: tuple[Definition, ...] = (
    ("mlp(Tensor x, Tensor w_gate_up, Tensor w_down, int activation) -> Tensor", _mlp, like_x),
    ("norm_mlp(Tensor x, Tensor residual, Tensor norm_weight, Tensor w_gate_up, Tensor w_down, float eps, "
     "int activation) -> (Tensor, Tensor)", _norm_mlp, two_like_x),
    ("add_norm(Tensor x, Tensor residual, Tensor norm_weight, float eps) -> (Tensor, Tensor)", add_norm, two_like_x),
    ("linear(Tensor x, Tensor weight, Tensor? bias, bool weights_static) -> Tensor", _linear, rows_of),
    ("linears(Tensor x, Tensor[] weights, Tensor[] biases, bool weights_static) -> Tensor", _linears,
     lambda x, weights, *_: x.new_empty((*x.shape[:-1], sum(weight.shape[0] for weight in weights)))),
)  # fmt: skip
_library: torch.library.Library | None = None


def load() -> None:
    """Defines the operators, once."""
    global _library
    if _library is not None:
        return
    assert torch_operators.OPERATORS  # importing it has made torch.ops.sluice
    from sluice.serving import reduced  # which has ways of this module

    _library = torch.library.Library("sluice_serving", "DEF")
    for schema, run, fake in (*_DEFINITIONS, *reduced.DEFINITIONS):
        name = schema.split("(")[0]
        _library.define(schema)
        for key in ("CPU", "CUDA"):
            _library.impl(name, run, key)
        torch.library.register_fake(f"sluice_serving::{name}", fake, lib=_library)
