# SPDX-License-Identifier: Apache-2.0
"""``torch.ops.sluice_serving.{mlp_reduce, linear_reduce, linear_reduce_norm}``: products of tensor-parallel ranks and
their sum.

    mlp_reduce          y = MLP(x) summed over ranks                       x [M, D] -> y [M, D]
    linear_reduce       y = x @ weight.T summed over ranks                 x [M, K] -> y [M, N]
    linear_reduce_norm  r = linear_reduce(x) + residual, n = rms_norm(r)   residual [M, N] -> n, r [M, N]

Each rank has its part of the weights: w_gate_up [2H, D], w_down [D, H], weight [N, K]. ``group`` is the engine's word
for the ranks' process group (``use_group``): the group's own name may be another in the next process, which an
engine's stored graphs would not know. Beside the ways of ``operators``, behind which the engine sums, there is
``sluice``, whose plan ends with Sluice's own sum (``sluice.ranks``), and ``apart``: Sluice's products and the engine's
sum. The first serves up to ``MOST_SUMMED`` tokens; above them it is ``apart``, and linear layers are the engine's.

All ranks sum in one way, or each would wait for ever: what can fail on one rank is tried without a sum first, and a
way is timed where it runs on all; they choose by the slowest one's times, and where they could not tell each other,
by none of Sluice's sums. What a sum needs of peer memory is there before the first graph is captured.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sluice import proof
from sluice.serving import alike, operators
from sluice.serving.operators import Choice, Way

MOST_SUMMED = 512  # tokens; above, the links' bandwidth counts, and the engine's sum has it

calls: Counter[str] = Counter()  # of each way, captured or run
_all_reduce: Callable[[Tensor], Tensor] | None = None  # the engine's
_capturing: Callable[[Any], AbstractContextManager[Any]] = torch.cuda.stream
_groups: dict[str, weakref.ref[Any]] = {}
_reserved: set[tuple[str, int, torch.dtype, torch.device]] = set()
_linear_choices: dict[tuple[Any, ...], Choice | str] = {}


def configure(
    all_reduce: Callable[[Tensor], Tensor],
    capturing: Callable[[Any], AbstractContextManager[Any]] = torch.cuda.stream,
) -> None:
    """The sum of the engine in this process over its tensor-parallel group, out of place, and what it has around a
    capture on a stream."""
    global _all_reduce, _capturing
    _all_reduce, _capturing = all_reduce, capturing


def use_group(word: str, group: Any) -> str:
    """The process group that the engine calls by this word from now on; returns the word."""
    known = _groups.get(word)
    if known is None or known() is not group:
        _groups[word] = weakref.ref(group)
        _reserved.difference_update([key for key in _reserved if key[0] == word])
    return word


def _name_of(word: str) -> str:
    """Torch's name of the group."""
    return str(_groups[word]().group_name)


def _summed_behind(way: Way) -> Way:
    """The way, then the engine's sum."""

    def way_and_sum(*operands: Any) -> Tensor:
        assert _all_reduce is not None
        return _all_reduce(way(*operands))

    return way_and_sum


def _is_reserved(x: Tensor, columns: int, group: str) -> bool:
    """Is there peer memory for sums of up to ``MOST_SUMMED`` tokens? Not where a graph is captured that no call
    went before, which is so on all ranks alike."""
    key = (group, columns, x.dtype, x.device)
    if key not in _reserved:
        if operators.is_capturing():
            return False
        h, weight = x.new_zeros(MOST_SUMMED, 8), x.new_zeros(columns, 8)
        torch.ops.sluice.down_reduce(h, weight, None, None, False, group=_name_of(group))
        _reserved.add(key)
    return True


def _serves(x: Tensor, columns: int, group: str) -> bool:
    return _is_reserved(x, columns, group) and x.shape[0] <= MOST_SUMMED


@dataclass
class SumChoice(Choice):
    """A choice between ways with a sum each. ``tries`` are the ways without their sums, which only this rank runs."""

    tries: dict[str, Callable[[], Any]] = field(default_factory=dict)
    able: set[str] | None = None  # the ways that run on all ranks
    # Graphs share a pool and live as long as it: engines map its memory on other GPUs and keep what they mapped.
    pool: Any = None
    held: list[Any] = field(default_factory=list)

    def measure(self, rows: Tensor, ways: dict[str, Callable[[int], Any]]) -> None:
        if self.able is None:
            self.able = {
                name for name in ways
                if name == "stock" or operators.all_say(f"{self.name} {rows.dtype}, {name}", self._runs(name))
            }  # fmt: skip
            self.tries = {}
        self.pool = torch.cuda.graph_pool_handle() if rows.is_cuda else None
        super().measure(rows, {name: way for name, way in ways.items() if name in self.able})
        self.held.clear()

    def _runs(self, name: str) -> bool:
        try:
            self.tries[name]()
        except (RuntimeError, ValueError) as error:
            operators.warn(f"{self.name}, {name}: {error}")
            return False
        return True

    def _samplers(
        self, step: int, rows: Tensor, ways: dict[str, Callable[[int], Any]]
    ) -> dict[str, Callable[[], float]]:
        """Raises what a way raises: behind a sum that has begun the other ranks cannot leave it out."""
        captured = step <= operators.MOST_CAPTURED
        samplers = {
            name: operators._sampler(partial(way, step), rows[:step].clone, captured, self.pool, _capturing)
            for name, way in ways.items() if name != "sluice" or step <= MOST_SUMMED
        }  # fmt: skip
        self.held.append(samplers)
        return samplers

    def _slowest(self, group: alike.Group, what: str, known: int) -> alike.Times | None:
        times = super()._slowest(group, what, known)
        if times is None and "sluice" in self.us:
            self.us["sluice"][known:] = [math.inf] * len(self.us["sluice"][known:])
        return times


# --- MLPs

_APART = {name: _summed_behind(way) for name, way in operators.MLP.items()}


def _mlp_ours(group: str, x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    if not _serves(x, w_down.shape[0], group):
        return _APART["sluice"](x, w_gate_up, w_down, activation)
    w_gate, w_up = w_gate_up.chunk(2)
    operands = (x, w_gate, w_up, w_down, None, None, None, None, *operators.gate_arguments(activation), True)
    return torch.ops.sluice.mlp_reduce(*operands, group=_name_of(group))[0]


@cache
def _mlp_ways(group: str) -> dict[str, Way]:
    return {**_APART, "sluice": partial(_mlp_ours, group), "apart": _APART["sluice"]}


def _mlp_reduce(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int, group: str) -> Tensor:
    rest, ways = (w_gate_up, w_down, activation), _mlp_ways(group)
    title = operators.title("mlp_reduce", *w_down.shape, activation)
    tries = {"sluice": "sluice", "apart": "sluice", "mixed": "mixed"}
    kind = partial(SumChoice, tries={n: partial(operators.MLP[of], x, *rest) for n, of in tries.items()})
    best = operators.choose(title, ways, x, lambda way, m: way(x[:m], *rest), kind, "stock")
    calls[best] += 1
    return ways[best](x, *rest)


# --- linear layers


def _sum_ours(group: str, x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.sluice.down_reduce(x, weight, None, None, True, group=_name_of(group))[0]


def _norm_ours(
    group: str, x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    r, n = torch.ops.sluice.down_reduce(
        x, weight, None, residual, True, group=_name_of(group), next_norm=norm_weight, next_eps=eps
    )
    return n, r


def _product_ours(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.sluice.down(x, weight, None, None, True)


def _norm_behind(way: Way) -> Way:
    """The way, then an add + RMSNorm."""

    def way_and_norm(x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> Any:
        return operators.add_norm(way(x, weight), residual, norm_weight, eps)

    return way_and_norm


_LINEAR: dict[str, Way] = {
    "apart": _summed_behind(_product_ours), "stock": _summed_behind(functional.linear),
}  # fmt: skip
_LINEAR_NORM: dict[str, Way] = {name: _norm_behind(way) for name, way in _LINEAR.items()}


def _linear_choice(weight: Tensor, group: str, name: str, ways: dict[str, Way], *rest: Any) -> Choice | str | None:
    """What was measured for a layer's shape, or why the engine serves all of it; None where a graph that is being
    captured forbids both. ``rest`` follows the weight; those of two dimensions have a row a token."""
    key = (name, tuple(weight.shape), weight.dtype, weight.device, group)
    if key not in _linear_choices:
        if operators.is_capturing():
            return None
        reason = proof.linear_objection(weight, None, lambda x: _product_ours(x, weight))
        n, k = weight.shape
        if not operators.all_say(f"{name} {n}x{k} {weight.dtype}", reason is None):
            reason = reason or "another rank leaves it to the engine"
            operators.warn(f"{name} {n}x{k} is the engine's: {reason}")
        if reason is None:
            choice = SumChoice(f"{name} {n}x{k}")
            if operators.measures(weight.device):
                rows = operators.inputs(weight, MOST_SUMMED)
                choice.tries = dict.fromkeys(("sluice", "apart"), partial(_product_ours, rows, weight))
                others = [
                    weight.new_zeros(MOST_SUMMED, n) if isinstance(t, Tensor) and t.dim() == 2 else t for t in rest
                ]  # fmt: skip
                cold = operators.cold(weight)

                def run(way: Way, m: int) -> Any:
                    cut = (t[:m] if isinstance(t, Tensor) and t.dim() == 2 else t for t in others)
                    return way(rows[:m], next(cold), *cut)

                choice.measure(rows, {way: partial(run, ways[way]) for way in ways})
        _linear_choices[key] = reason or choice
    return _linear_choices[key]


def _linear_best(name: str, ways: dict[str, Way], x: Tensor, weight: Tensor, group: str, *rest: Any) -> Any:
    best, m = "stock", x.shape[0]
    # Also of more tokens: an engine's first call, before which it captures nothing, has the most.
    if m > 0 and _is_reserved(x, weight.shape[0], group):
        choice = _linear_choice(weight, group, name, ways, *rest)
        if isinstance(choice, Choice) and m <= MOST_SUMMED:
            best = choice.fastest(m) if choice.steps else "sluice"
    calls[best] += 1
    return ways[best](x, weight, *rest)


@cache
def _linear_ways(group: str) -> dict[str, Way]:
    return {"sluice": partial(_sum_ours, group), **_LINEAR}


@cache
def _linear_norm_ways(group: str) -> dict[str, Way]:
    return {"sluice": partial(_norm_ours, group), **_LINEAR_NORM}


def _linear_reduce(x: Tensor, weight: Tensor, group: str) -> Tensor:
    return _linear_best("linear_reduce", _linear_ways(group), x, weight, group)


def _linear_reduce_norm(
    x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    ways = _linear_norm_ways(group)
    return _linear_best("linear_reduce_norm", ways, x, weight, group, residual, norm_weight, eps)


# Schema, function and shapes, as those of ``operators``.
DEFINITIONS: tuple[operators.Definition, ...] = (
    ("mlp_reduce(Tensor x, Tensor w_gate_up, Tensor w_down, int activation, str group) -> Tensor", _mlp_reduce,
     operators.like_x),
    ("linear_reduce(Tensor x, Tensor weight, str group) -> Tensor", _linear_reduce, operators.rows_of),
    ("linear_reduce_norm(Tensor x, Tensor weight, Tensor residual, Tensor norm_weight, float eps, str group) "
     "-> (Tensor, Tensor)", _linear_reduce_norm, lambda x, weight, residual, *_: operators.two_like_x(residual)),
)  # fmt: skip
