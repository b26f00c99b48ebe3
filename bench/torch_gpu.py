# SPDX-License-Identifier: Apache-2.0
"""The Torch half on a GPU: one layer's MLP of a Hugging Face model, stock against ``sluice.patch``, and what
an eager call costs the host.

    python bench/torch_gpu.py layer bench/results/h200/torch_layer.json
    python bench/torch_gpu.py host  bench/results/h200/torch_host.json
    python bench/torch_gpu.py any_width bench/results/h200/any_width.json

layer: transformers' LlamaMLP of Llama-3.1-8B in bf16 on normal-random weights, forward and forward +
backward. Both modules share the parameters and take turns in one process; times are by events over
groups of PASSES passes, enqueued as a model's layers are, without a wait in between: a pass by itself
also shows how long Python takes to its first kernel. Peak memory is Torch's, operands and gradients
included. The weights of one layer are six times an H200's L2, so that none is found there.

any_width: the same module at widths that are no multiples of 8 elements, in bf16 and fp32, by graphs of
passes over as many layers as twice the L2 holds: the GPU's time alone, weights cold.

host: time of the call itself on tensors so small that the GPU keeps up, in groups of 100 calls with a wait
after each group; against the same MLP by torch.nn.functional. ``us`` is the host's there."""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sluice
from sluice import ops, results, staleness

MODEL, D, H = "llama-3.1-8b", 4096, 14336
SAMPLES = 31
PASSES = 10  # of one sample of a layer
ANY_WIDTHS = ((1024, 2730), (512, 1365))  # EVA-02's large and small
ANY_TOKENS = (1, 16, 257, 1024, 4096)
CALLS = 100  # of one sample of host time: below the depth of a stream's queue


def ask(*words: str) -> str | None:
    """What a program prints, or None where there is no such program."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def smi(query: str) -> str | None:
    """Of the first GPU that this process may use."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return ask("nvidia-smi", "-i", device, f"--query-gpu={query}", "--format=csv,noheader")


def commit_and_date() -> dict[str, Any]:
    """The tree's commit, or what SLUICE_COMMIT says where there is no repository, and the time."""
    status = ask("git", "status", "--porcelain", "--untracked-files=no")
    given = os.environ.get("SLUICE_COMMIT")
    return {
        "commit": given or ask("git", "rev-parse", "HEAD") or "unknown",
        "dirty": bool(status) and not given,
        "fingerprints": staleness.as_text(staleness.fingerprints(Path(__file__).parents[1])),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def meta(command: str) -> dict[str, Any]:
    """Who measured where; no ceilings, which `sluice bench` knows how to measure."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU",
        "driver": smi("driver_version"),
        "cuda": torch.version.cuda,
        "compiler": f"torch {torch.__version__}",
        **commit_and_date(),
        "command": results.with_variables(command),
        "read_tbps": None, "copy_tbps": None, "gemm_tflops": None, "fma_gflops": None,
        "clocks": smi("clocks.sm,clocks.mem") or "unknown",
    }  # fmt: skip


def percentiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "us": statistics.median(ordered),
        "us_p10": ordered[len(ordered) // 10],
        "us_p90": ordered[len(ordered) * 9 // 10],
    }


def row(op: str, direction: str, m: int, d: int, h: int, ours: list[float], theirs: list[float],
        baseline: str, device: str = "cuda", **more: Any) -> dict[str, Any]:  # fmt: skip
    """A row of the results file; `more` overrides."""
    passes = {"fwd": 1, "full": 3}[direction]  # dx and dW cost a forward pass each
    planned = sluice.plan(
        m, d, h, op="gate_up" if op == "gate_up" else "mlp", dtype=more.get("dtype", "bf16"),
        device="cuda:0" if device == "cuda" else device, weights_static=False,
    )  # fmt: skip
    times = percentiles(ours)
    base = statistics.median(theirs)
    flops, moved = passes * planned.flops, passes * planned.bytes_moved
    return {
        "op": op, "pass": direction, "model": None, "m": m, "d": d, "h": h, "dtype": "bf16",
        "gate": "silu", "layout": "separate", "variant": planned.variant, **times,
        "tflops": flops / times["us"] * 1e-6, "gbps": moved / times["us"] * 1e-3,
        "roof_fraction": None, "baseline": baseline, "baseline_us": base,
        "ratio": base / times["us"], "extra_bytes": planned.workspace_bytes, "peak_bytes": None,
        "rel_err": None, "config": planned.config, "threads": 1, "tp": 1, **more,
    }  # fmt: skip


def interleaved(*steps: Callable[[], float]) -> list[list[float]]:
    """SAMPLES values of each, in turns, after three rounds of warm-up."""
    for step in steps * 3:
        step()
    samples: list[list[float]] = [[] for _ in steps]
    for turn in range(SAMPLES):
        for index in range(len(steps)):
            index = (index + turn) % len(steps)
            samples[index].append(steps[index]())
    return samples


def relative_error(module: nn.Module, x: Tensor) -> float:
    """Of a module's y against fp64 from the same weights, on some rows."""
    rows = x[:16]
    with torch.no_grad():
        g, u, down = (w.weight.double() for w in (module.gate_proj, module.up_proj, module.down_proj))
        exact = (functional.silu(rows.double() @ g.T) * (rows.double() @ u.T)) @ down.T
        return float((module(x)[:16].double() - exact).abs().mean() / exact.abs().mean())


def modules(d: int, h: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Patched and stock, the same parameters."""
    from transformers.models.llama import LlamaConfig, modeling_llama

    with torch.device("cuda"):
        stock = modeling_llama.LlamaMLP(LlamaConfig(hidden_size=d, intermediate_size=h)).to(dtype)
    for weight in stock.parameters():
        nn.init.normal_(weight, std=0.02)
    fused = copy.copy(stock)
    report = sluice.patch(fused)
    assert len(report.patched) == 1, report
    return fused, stock


def layer(tokens: list[int]) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    fused, stock = modules(D, H, torch.bfloat16)
    return [measured(m, direction, fused, stock) for m in tokens for direction in ("fwd", "full")]


def measured(m: int, direction: str, fused: nn.Module, stock: nn.Module) -> dict[str, Any]:
    """One row: a pass over m tokens."""
    x = torch.randn(m, D, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn_like(x)

    def step(module: nn.Module) -> None:
        if direction == "fwd":
            with torch.no_grad():
                module(x)
        else:
            leaf = x.detach().requires_grad_()
            module.zero_grad(set_to_none=True)
            module(leaf).backward(dy)

    def timed(module: nn.Module) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(PASSES):
            step(module)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / PASSES

    def peak(module: nn.Module) -> int:
        module.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step(module)
        return torch.cuda.max_memory_allocated()

    error = relative_error(fused, x)
    assert error < 2 * relative_error(stock, x), error
    ours, theirs = interleaved(lambda: timed(fused), lambda: timed(stock))
    most, most_stock = peak(fused), peak(stock)
    operands = 3 * D * H * 2 + 2 * m * D * 2 + (3 * D * H * 2 + m * D * 2) * (direction == "full")
    op = "mlp" if direction == "fwd" else "mlp_train"
    return row(
        op, direction, m, D, H, ours, theirs, "hf_eager", model=MODEL, rel_err=error,
        peak_bytes=most, extra_bytes=max(0, most - operands),
        baseline_extra_bytes=max(0, most_stock - operands),
    )  # fmt: skip


def any_width() -> list[dict[str, Any]]:
    torch.manual_seed(1)
    rows = []
    for (d, h), dtype in itertools.product(ANY_WIDTHS, (torch.bfloat16, torch.float32)):
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        layers = 1 + 2 * l2_bytes // (3 * d * h * dtype.itemsize)
        pairs = [modules(d, h, dtype) for _ in range(layers)]
        for m, direction in itertools.product(ANY_TOKENS, ("fwd", "full")):
            rows.append(of_graphs(pairs, torch.randn(m, d, device="cuda", dtype=dtype), direction))
    return rows


def of_graphs(pairs: list[tuple[nn.Module, nn.Module]], x: Tensor, direction: str) -> dict[str, Any]:
    """One row: a pass of x through each of the layers, in one graph."""
    fused, stock = ([pair[side] for pair in pairs] for side in (0, 1))
    error = relative_error(fused[0], x)
    assert error < 2 * relative_error(stock[0], x) + 1e-6, error
    leaves = [x.detach().requires_grad_(direction == "full") for _ in pairs]
    wanted = [*leaves, *(w for module in stock for w in module.parameters())]

    def run(modules: list[nn.Module]) -> Any:
        if direction == "fwd":
            with torch.no_grad():
                return [module(leaf) for module, leaf in zip(modules, leaves)]
        outputs = [module(leaf) for module, leaf in zip(modules, leaves)]
        return torch.autograd.grad(outputs, wanted, [x] * len(outputs))

    def graph_of(modules: list[nn.Module]) -> Callable[[], float]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run(modules)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = run(modules)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def sample() -> float:
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e3 / len(modules)

        del kept
        return sample

    ours, theirs = interleaved(graph_of(fused), graph_of(stock))
    op = "mlp" if direction == "fwd" else "mlp_train"
    (m, d), h = x.shape, fused[0].gate_proj.weight.shape[0]
    dtype = {torch.bfloat16: "bf16", torch.float32: "fp32"}[x.dtype]
    return row(op, direction, m, d, h, ours, theirs, "hf_eager", dtype=dtype, rel_err=error)


def host() -> list[dict[str, Any]]:
    """Host time of a call: of the operator, its two other forms and the function around it."""
    d, h = 64, 64
    rows = []
    for m in (1, 128):
        x = torch.randn(m, d, device="cuda", dtype=torch.bfloat16)
        gate, up, down = (torch.randn(h, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        y = torch.empty_like(x)
        linear, silu = functional.linear, functional.silu

        def called(function: Callable[[], Any]) -> Callable[[], float]:
            def sample() -> float:
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    function()
                return (time.perf_counter() - begin) / CALLS * 1e6
            return sample

        raw = torch.ops.sluice.mlp
        candidates = {
            "torch.ops.sluice.mlp": lambda: raw.default(x, gate, up, down),
            "torch.ops.sluice.mlp.plain": lambda: raw.plain(x, gate, up, down),
            "torch.ops.sluice.mlp.out": lambda: raw.out(x, gate, up, down, out=y),
            "sluice.ops.mlp": lambda: ops.mlp(x, gate, up, down),
            "torch": lambda: linear(silu(linear(x, gate)) * linear(x, up), down),
        }
        with torch.no_grad():
            *samples, theirs = interleaved(*(called(f) for f in candidates.values()))
        rows += [
            row("mlp", "fwd", m, d, h, ours, theirs, "torch_eager", model=f"host time of {name}")
            for name, ours in zip(candidates, samples)
        ]
    return rows


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("layer", "host", "any_width"))
    parser.add_argument("json", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048])
    arguments = parser.parse_args()
    others = {"host": host, "any_width": any_width}
    rows = layer(arguments.tokens) if arguments.what == "layer" else others[arguments.what]()
    for r in rows:
        print(f"{r['model'] or r['dtype']:<34} {r['pass']:<5} M={r['m']:<5} {r['us']:9.1f} us  {r['baseline']} "
              f"{r['baseline_us']:9.1f}  {r['ratio']:.3f}x  {r['variant']}")  # fmt: skip
        if r["peak_bytes"] is not None:
            ours, theirs = (r[k] / 2**20 for k in ("extra_bytes", "baseline_extra_bytes"))
            print(f"  memory beyond operands {ours:.0f} MiB, {theirs:.0f} MiB")
    words = ["python", "bench/torch_gpu.py", arguments.what]
    if arguments.what == "layer":
        words += ["--tokens", *map(str, arguments.tokens)]
    results.save(arguments.json, meta(" ".join(words)), rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
