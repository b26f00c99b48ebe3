# SPDX-License-Identifier: Apache-2.0
"""``torch.ops.sluice_vllm.mlp`` and ``norm_mlp``: what vLLM's compiled graphs call.

    mlp        y = MLP(x)                                          x [M, D] -> y [M, D]
    norm_mlp   r = x + residual, y = MLP(rms_norm(r, norm_weight))  x, residual [M, D] -> y, r [M, D]

w_gate_up [2H, D], gate's rows first; w_down [D, H]. Functional; CUDA graphs may capture them. Each knows
two ways to its result: Sluice's operators, and vLLM's kernels one by one (cuBLAS, ``_C``'s activation,
an add + RMSNorm in Triton like the one that vLLM's compiler makes). In mode ``auto`` both are timed for a
ladder of token counts when an operator first sees a shape, which is vLLM's profiling run, before graphs
are captured and requests served; a call takes the faster one of the step at or above its M.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sluice import ops
from sluice.gate import ACTIVATIONS, Gate

STEPS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096,
         8192, 16384, 32768)  # fmt: skip
MOST_CAPTURED = 512  # vLLM captures up to here; above, its pieces run one kernel after the other
REPEATS, SAMPLES = 4, 3
STOCK_GATES = {"silu": "silu_and_mul", "gelu_tanh": "gelu_tanh_and_mul", "gelu_erf": "gelu_and_mul"}

_log = logging.getLogger("vllm.sluice")
_mode = "auto"


def set_mode(mode: str) -> None:
    """``auto`` or ``force``."""
    global _mode
    _mode = mode


# --- the two ways


def _ours(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    w_gate, w_up = w_gate_up.chunk(2)
    gate = Gate(ACTIVATIONS[activation]).arguments
    return torch.ops.sluice.mlp(x, w_gate, w_up, w_down, None, None, None, None, *gate, True)


def _ours_norm(
    x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor, eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    w_gate, w_up = w_gate_up.chunk(2)
    gate = Gate(ACTIVATIONS[activation]).arguments
    return torch.ops.sluice.norm_mlp(
        x, norm_weight, w_gate, w_up, w_down, residual, None, None, None, eps, 0.0, False, *gate, True
    )


def _stock(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    both = functional.linear(x, w_gate_up)
    h = both.new_empty(both.shape[0], both.shape[1] // 2)
    getattr(torch.ops._C, STOCK_GATES[ACTIVATIONS[activation]])(h, both)
    return functional.linear(h, w_down)


def _stock_norm(
    x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor, eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from sluice.vllm.add_norm import add_norm

    n, r = add_norm(x, residual, norm_weight, eps)
    return _stock(n, w_gate_up, w_down, activation), r


# --- which one


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """For captures; one, since workspaces are kept by stream."""
    return torch.cuda.Stream(device)


def _time(run: Callable[[], Any], captured: bool) -> float:
    """Microseconds of a run: the least of a few samples, each of REPEATS runs. The weights of a layer
    exceed the L2 cache of the models that matter, so that repeats find them in memory."""
    run()  # plans, workspaces, compilation
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def all_runs() -> None:
        for _ in range(REPEATS):
            run()

    if captured:
        stream = _side_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            run()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                all_runs()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay()
    least = float("inf")
    for _ in range(SAMPLES):
        begin.record()
        graph.replay() if captured else all_runs()
        end.record()
        end.synchronize()
        least = min(least, begin.elapsed_time(end) * 1e3 / REPEATS)
    return least


@dataclass
class Choice:
    """For one operator on one shape: the steps that were timed, and what each took, us."""

    name: str
    steps: list[int] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    stock: list[float] = field(default_factory=list)

    def measure(self, rows: Tensor, ours: Callable[[int], Any], stock: Callable[[int], Any]) -> None:
        """Times the steps that are not known up to the rows at hand, and the last one whole."""
        m = rows.shape[0]
        wanted = [step for step in STEPS if step < m] + [m]
        for step in wanted:
            if self.steps and step <= self.steps[-1]:
                continue
            captured = step <= MOST_CAPTURED
            try:
                sluice_us = _time(lambda: ours(step), captured)
            except RuntimeError as error:
                _log.warning("Sluice: %s of %d tokens stays vLLM's: %s", self.name, step, error)
                sluice_us = float("inf")
            self.ours.append(sluice_us)
            self.stock.append(_time(lambda: stock(step), captured))
            self.steps.append(step)
        _log.info("Sluice: %s", self)

    def sluice_is_faster(self, m: int) -> bool:
        """At the step at or above m; above all of them, at the last."""
        index = min(bisect.bisect_left(self.steps, m), len(self.steps) - 1)
        return self.ours[index] <= self.stock[index]

    def __str__(self) -> str:
        ratios = " ".join(
            f"{step}:{stock / ours:.2f}" for step, ours, stock in zip(self.steps, self.ours, self.stock)
        )
        return f"{self.name}, stock's time over Sluice's by tokens {ratios}"


choices: dict[tuple[Any, ...], Choice] = {}
calls = {"sluice": 0, "stock": 0}  # of the operators, captured or run: shows whether they are there


def _sluice_serves(
    name: str, x: Tensor, w_down: Tensor, activation: int, ours: Callable[[int], Any],
    stock: Callable[[int], Any],
) -> bool:  # fmt: skip
    m, (d, h) = x.shape[0], w_down.shape
    if _mode == "force" or m == 0:
        return True
    key = (name, d, h, x.dtype, activation, x.device)
    choice = choices.get(key)
    if choice is None or m > 2 * choice.steps[-1]:
        if torch.cuda.is_current_stream_capturing():
            return choice is None or choice.sluice_is_faster(m)
        choice = choices.setdefault(key, Choice(f"{name} {d}x{h} {ACTIVATIONS[activation]}"))
        choice.measure(x, ours, stock)
    return choice.sluice_is_faster(m)


def _count(sluice: bool) -> None:
    calls["sluice" if sluice else "stock"] += 1


def _mlp(x: Tensor, w_gate_up: Tensor, w_down: Tensor, activation: int) -> Tensor:
    rest = (w_gate_up, w_down, activation)
    sluice = _sluice_serves(
        "mlp", x, w_down, activation, lambda m: _ours(x[:m], *rest), lambda m: _stock(x[:m], *rest)
    )
    _count(sluice)
    return (_ours if sluice else _stock)(x, *rest)


def _norm_mlp(
    x: Tensor, residual: Tensor, norm_weight: Tensor, w_gate_up: Tensor, w_down: Tensor, eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rest = (norm_weight, w_gate_up, w_down, eps, activation)
    sluice = _sluice_serves(
        "norm_mlp", x, w_down, activation, lambda m: _ours_norm(x[:m], residual[:m], *rest),
        lambda m: _stock_norm(x[:m], residual[:m], *rest),
    )  # fmt: skip
    _count(sluice)
    return (_ours_norm if sluice else _stock_norm)(x, residual, *rest)


# --- registration

_library: torch.library.Library | None = None


def load() -> None:
    """Defines the operators, once."""
    global _library
    if _library is not None:
        return
    assert ops.OPERATORS  # importing it has made torch.ops.sluice
    _library = torch.library.Library("sluice_vllm", "DEF")
    _library.define("mlp(Tensor x, Tensor w_gate_up, Tensor w_down, int activation) -> Tensor")
    _library.define(
        "norm_mlp(Tensor x, Tensor residual, Tensor norm_weight, Tensor w_gate_up, Tensor w_down, "
        "float eps, int activation) -> (Tensor, Tensor)"
    )
    for key in ("CPU", "CUDA"):
        _library.impl("mlp", _mlp, key)
        _library.impl("norm_mlp", _norm_mlp, key)

    @torch.library.register_fake("sluice_vllm::mlp", lib=_library)
    def _(x, *_rest):  # type: ignore[no-untyped-def]
        return x.new_empty(x.shape)

    @torch.library.register_fake("sluice_vllm::norm_mlp", lib=_library)
    def _(x, *_rest):  # type: ignore[no-untyped-def]
        return x.new_empty(x.shape), x.new_empty(x.shape)
