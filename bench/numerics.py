# SPDX-License-Identifier: Apache-2.0
"""``gate_up`` beside PyTorch eager: how far the results differ, how far both are from fp64, and how much
memory each takes.

    python bench/numerics.py numerics bench/results/h200/numerics.json
    python bench/numerics.py memory   bench/results/h200/memory.json

numerics: square problems, M = D = H, everything Kaiming-uniform in bf16 as ``nn.Linear`` starts, the table of
the Fused SwiGLU study (github.com/bit-ml/Fused-SwiGLU). A draw gives three numbers of d = h - h_eager over
all elements: max |d|, mean |d| and mean |d| / mean |h_eager|; the file holds their means and standard
deviations over the draws. ``rel_err`` and ``baseline_rel_err`` are of h and h_eager against fp64,
sum |got - exact| / sum |exact| over sampled rows of every draw.

memory: bytes beyond x and the weights at Torch's peak, h included, also of two GEMMs with Unsloth's kernel in
place, for the Llamas of 8, 70 and 405 billion parameters at 1k to 64k tokens. ``layer_ratio`` adds the study's
five [M, D] of a layer to both: queries, keys, values and two outputs.

The file is written anew after every line, so that an interrupted run keeps what it has. Runs without a GPU,
where memory is not counted, to be tried on small sizes."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rivals.elementwise import unsloth, unsloth_gate
from torch import Tensor, nn
from torch.nn import functional
from torch_gpu import meta, row

from sluice import ops, results

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The study's relative difference on an A100. It does not define it: the norm of the difference over eager's norm
# gives its figures, up to 16384.
STUDY = {
    1024: 3.71e-3, 2048: 3.74e-3, 4096: 3.80e-3, 8192: 3.86e-3, 16384: 3.81e-3, 32768: 4.34e-3,
    65536: 4.22e-3,
}  # fmt: skip
MANY_DRAWS_UP_TO = 8192
SAMPLED_ROWS = 16
CHUNK = 1 << 27  # elements of a comparison or of a weight in fp64 at once
LLAMAS = {
    "llama-3.1-8b": (4096, 14336), "llama-3.1-70b": (8192, 28672), "llama-3.1-405b": (16384, 53248),
}  # fmt: skip
MEMORY_SAMPLES = 3
TOKENS = [*(1024 << i for i in range(6)), 49152, 65536]


def eager(x: Tensor, w_gate: Tensor, w_up: Tensor) -> Tensor:
    return functional.silu(functional.linear(x, w_gate)) * functional.linear(x, w_up)


def timed(function: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """The result, and microseconds of one call."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        return function(), (time.perf_counter() - begin) * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = function()
    end.record()
    end.synchronize()
    return result, start.elapsed_time(end) * 1e3


def kaiming(rows: int, cols: int) -> Tensor:
    matrix = torch.empty(rows, cols, dtype=torch.bfloat16, device=DEVICE)
    return nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # nn.Linear's own


def difference(h: Tensor, reference: Tensor) -> tuple[float, float, float, float]:
    """max |d|, mean |d|, mean |d| / mean |reference|, norm of d / norm of the reference."""
    largest, total, magnitude, square_d, square = 0.0, 0.0, 0.0, 0.0, 0.0
    rows = max(1, CHUNK // h.shape[1])
    for ours, theirs in zip(h.split(rows), reference.split(rows)):
        d = (ours.float() - theirs.float()).abs_()
        largest = max(largest, d.max().item())
        total += d.sum(dtype=torch.float64).item()
        magnitude += theirs.float().abs_().sum(dtype=torch.float64).item()
        square_d += d.square_().sum(dtype=torch.float64).item()
        square += theirs.float().square_().sum(dtype=torch.float64).item()
    return largest, total / h.numel(), total / magnitude, math.sqrt(square_d / square)


def exact(x: Tensor, w_gate: Tensor, w_up: Tensor) -> Tensor:
    """h in fp64."""
    rows, x = max(1, CHUNK // x.shape[1]), x.double()
    parts = [
        functional.silu(x @ gate.double().T) * (x @ up.double().T)
        for gate, up in zip(w_gate.split(rows), w_up.split(rows))
    ]
    return torch.cat(parts, dim=1)


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).abs().sum() / want.abs().sum()).item()


def square(n: int, draws: int) -> dict[str, Any]:
    """One line of the table: M = D = H = n."""
    times, differences, errors = [], [], []
    sampled = torch.arange(min(SAMPLED_ROWS, n), device=DEVICE) * (n // min(SAMPLED_ROWS, n))
    for draw in range(draws):
        torch.manual_seed(draw)
        operands = (kaiming(n, n), kaiming(n, n), kaiming(n, n))
        h, us = timed(lambda: ops.gate_up(*operands))
        reference, eager_us = timed(lambda: eager(*operands))
        times.append((us, eager_us))
        differences.append(difference(h, reference))
        want = exact(operands[0][sampled], *operands[1:])
        errors.append(tuple(relative_error(y[sampled], want) for y in (h, reference)))
        del h, reference, want, operands
    warm = times[1:] or times  # the first call plans and loads
    largest, mean, relative, norm = zip(*differences)
    ours, theirs = zip(*errors)
    return row(
        "gate_up", "fwd", n, n, n, *map(list, zip(*warm)), "torch_eager", device=DEVICE,
        rel_err=statistics.mean(ours), baseline_rel_err=statistics.mean(theirs), draws=draws,
        max_diff=statistics.mean(largest), max_diff_sd=statistics.pstdev(largest),
        mean_diff=statistics.mean(mean), mean_diff_sd=statistics.pstdev(mean),
        rel_diff=statistics.mean(relative), rel_diff_sd=statistics.pstdev(relative),
        norm_diff=statistics.mean(norm), norm_diff_sd=statistics.pstdev(norm),
        study_rel_diff=STUDY.get(n),
    )  # fmt: skip


def numerics(sizes: list[int], draws: int, few_draws: int) -> Iterator[dict[str, Any]]:
    for n in sizes:
        line = square(n, draws if n <= MANY_DRAWS_UP_TO else few_draws)
        study = line["study_rel_diff"]
        print(
            f"{n:6} draws {line['draws']:3}  max {line['max_diff']:.3g} mean {line['mean_diff']:.3g} "
            f"relative {line['rel_diff']:.3e} +- {line['rel_diff_sd']:.1e}  "
            f"by norms {line['norm_diff']:.3e} +- {line['norm_diff_sd']:.1e} "
            f"({line['norm_diff'] / study if study else math.nan:.3f} of the study's)  "
            f"to fp64 {line['rel_err']:.4e}, eager {line['baseline_rel_err']:.4e}  "
            f"{line['us']:.0f} us, eager {line['baseline_us']:.0f}  {line['config']}",
            flush=True,
        )
        yield line


def peak(function: Callable[[], Tensor]) -> int:
    """Bytes that a call has allocated at once, its result included."""
    if DEVICE == "cpu":
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated() - before


def baselines(x: Tensor, w_gate: Tensor, w_up: Tensor) -> dict[str, Callable[[], Tensor]]:
    """PyTorch eager, and two GEMMs with Unsloth's kernel over g where that is installed."""
    calls: dict[str, Callable[[], Tensor]] = {"torch_eager": lambda: eager(x, w_gate, w_up)}
    if DEVICE == "cuda" and (kernels := unsloth()):

        def in_place() -> Tensor:
            g, u = functional.linear(x, w_gate), functional.linear(x, w_up)
            unsloth_gate(kernels, g, u, g)
            return g

        calls["torch_mm+unsloth_in_place"] = in_place
    return calls


def memory(models: list[str], tokens: list[int]) -> Iterator[dict[str, Any]]:
    for model in models:
        d, h = LLAMAS[model]
        w_gate, w_up = (kaiming(h, d) for _ in range(2))
        for m in tokens:
            x = torch.randn(m, d, dtype=torch.bfloat16, device=DEVICE)
            # The first call makes the workspace that stays, if there is one.
            calls = {"sluice": lambda: ops.gate_up(x, w_gate, w_up), **baselines(x, w_gate, w_up)}
            calls["sluice"]()
            peaks = {name: peak(call) for name, call in calls.items()}
            times: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(MEMORY_SAMPLES):
                for name, call in calls.items():
                    times[name].append(timed(call)[1])
            fused = peaks["sluice"]
            attention = 5 * x.numel() * x.element_size()
            for name in list(calls)[1:]:
                line = row(
                    "gate_up", "fwd", m, d, h, times["sluice"], times[name], name, device=DEVICE,
                    model=model, extra_bytes=fused, baseline_extra_bytes=peaks[name],
                    layer_ratio=(attention + fused) / (attention + peaks[name]),
                    peak_bytes=fused + (x.numel() + w_gate.numel() + w_up.numel()) * 2,
                )  # fmt: skip
                print(
                    f"{model:16} M {m:6}  fused {fused / 2**20:9.1f} MiB, {name} {peaks[name] / 2**20:9.1f}, "
                    f"h {m * h / 2**19:9.1f}  {line['us']:.0f} us, {name} {line['baseline_us']:.0f}",
                    flush=True,
                )
                yield line
            del x, calls


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("numerics", "memory"))
    parser.add_argument("json", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(STUDY))
    parser.add_argument("--draws", type=int, default=100, help=f"up to {MANY_DRAWS_UP_TO}")
    parser.add_argument("--few-draws", type=int, default=3, help="above")
    parser.add_argument("--models", nargs="+", default=list(LLAMAS), choices=LLAMAS)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    arguments = parser.parse_args()
    if arguments.what == "numerics":
        lines = numerics(arguments.sizes, arguments.draws, arguments.few_draws)
    else:
        lines = memory(arguments.models, arguments.tokens)
    words = [word for word in sys.argv[1:] if word != str(arguments.json)]
    command = " ".join(["python", "bench/numerics.py", *words])
    rows, facts = [], None
    with torch.no_grad():
        for line in lines:
            rows.append(line)
            facts = facts or meta(command)  # clocks of a device at work
            results.save(arguments.json, facts, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
