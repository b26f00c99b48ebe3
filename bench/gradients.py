# SPDX-License-Identifier: Apache-2.0
"""Gradients of the MLP by ``sluice.ops.mlp`` and by PyTorch's own autograd, both against fp64, for every
gate.

    python bench/gradients.py bench/results/h200/gradients.json

The same bf16 x, weights and dy go to both; g has three times the deviation of u, so that a gate that is
clamped at 7 is at its limit for some of them. ``rel_err`` and ``baseline_rel_err`` are
sum |got - exact| / sum |exact| over all elements of an output, means over the draws. The exit status is 1
where Sluice's is the larger by more than a mean of that many elements scatters, twice 1 / sqrt(elements): with
relu and identity PyTorch rounds what dw_down is made of no more often, so that the two differ by the order
of sums alone. Times are of forward and backward together. Runs without a GPU too."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from numerics import DEVICE, relative_error, timed
from torch import Tensor
from torch.nn import functional
from torch_gpu import meta, row

from sluice import Gate, ops, results

OUTPUTS = ("y", "dx", "dw_gate", "dw_up", "dw_down")
CLAMPED = "clamped_swiglu"


def clamped_swiglu(g: Tensor, u: Tensor) -> Tensor:
    """As gpt-oss writes it."""
    g, u = g.clamp(max=7.0), u.clamp(min=-7.0, max=7.0)
    return g * torch.sigmoid(g * 1.702) * (u + 1)


GATES: dict[str, tuple[Gate, Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": (Gate("silu"), lambda g, u: functional.silu(g) * u),
    "gelu_tanh": (Gate("gelu_tanh"), lambda g, u: functional.gelu(g, approximate="tanh") * u),
    "gelu_erf": (Gate("gelu_erf"), lambda g, u: functional.gelu(g) * u),
    "relu": (Gate("relu"), lambda g, u: functional.relu(g) * u),
    "sigmoid": (Gate("sigmoid"), lambda g, u: torch.sigmoid(g) * u),
    "identity": (Gate("identity"), lambda g, u: g * u),
    CLAMPED: (Gate.clamped_swiglu(), clamped_swiglu),
}


def backward(mlp: Callable[..., Tensor], operands: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in operands]
    y = mlp(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def gate_rows(
    name: str, m: int, d: int, h: int, draws: int, recompute: bool
) -> Iterator[tuple[dict[str, Any], bool]]:
    """A row for each output, and whether Sluice's error is the larger."""
    gate, act = GATES[name]

    def eager(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
        linear = functional.linear
        return linear(act(linear(x, w_gate), linear(x, w_up)), w_down)

    def fused(*operands: Tensor) -> Tensor:
        return ops.mlp(*operands, gate=gate, recompute=recompute)

    times: list[tuple[float, float]] = []
    errors: list[list[tuple[float, float]]] = []
    for draw in range(draws):
        torch.manual_seed(draw)
        shapes = ((m, d, 1.0), (h, d, 3 * d**-0.5), (h, d, d**-0.5), (d, h, h**-0.5), (m, d, 1.0))
        *operands, dy = (torch.randn(r, c, device=DEVICE).mul_(s).bfloat16() for r, c, s in shapes)
        want = backward(eager, [t.double() for t in operands], dy.double())
        ours, us = timed(lambda: backward(fused, operands, dy))
        theirs, eager_us = timed(lambda: backward(eager, operands, dy))
        times.append((us, eager_us))
        errors.append([(relative_error(a, w), relative_error(b, w)) for a, b, w in zip(ours, theirs, want)])
    warm = times[1:] or times  # the first call plans and loads
    elements = dict(zip(OUTPUTS, (t.numel() for t in want)))
    for output, drawn in zip(OUTPUTS, zip(*errors)):
        own, torchs = map(statistics.mean, zip(*drawn))
        scatter = 2 / math.sqrt(draws * elements[output])
        line = row(
            "mlp_train", "full", m, d, h, *map(list, zip(*warm)), "torch_eager", device=DEVICE,
            gate=name, policy="recompute" if recompute else "save", output=output, draws=draws,
            rel_err=own, baseline_rel_err=torchs,
        )  # fmt: skip
        yield line, own > torchs * (1 + scatter)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--shape", default="2048x1024x2816", help="MxDxH")
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    m, d, h = map(int, arguments.shape.split("x"))
    rows, worse = [], 0
    for name in GATES:
        for recompute in (False, True):
            for line, larger in gate_rows(name, m, d, h, arguments.draws, recompute):
                rows.append(line)
                worse += larger
                ratio = line["rel_err"] / line["baseline_rel_err"]
                print(f"{name:14} {line['policy']:9} {line['output']:7} {line['rel_err']:.3e}, eager "
                      f"{line['baseline_rel_err']:.3e}: {ratio:.3f}"
                      f"{'  larger' * larger}", flush=True)  # fmt: skip
    command = f"python bench/gradients.py --shape {arguments.shape} --draws {arguments.draws}"
    results.save(arguments.json, meta(command), rows=rows)
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
