# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct in bf16 on two CPU threads, as transformers runs it and with sluice.patch: a
token of a generation, a prompt of 512 tokens, and what the MLPs take of each.

    python bench/smollm2.py bench/results/cpu/smollm2_torch.json

One process, the two in turns, patched and undone; after a round of each that does not count. Both
compute on Torch's threads. `--max-simd avx2` holds both to AVX2. Needs python/requirements-torch.txt and
python/requirements-model.txt."""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rivals.held import TARGETS, hold
from sluice import results

THREADS = 2
PROMPT, NEW_TOKENS = 32, 64
LONG_PROMPT = 512
D, H, LAYERS = 576, 1536, 30
MODEL = "SmolLM2-135M-Instruct"
# What is timed, as operator, pass and tokens of a row: a token, the MLPs in it, a prompt, those in it.
CASES = {
    "token": ("e2e", "decode", 1),
    "token_mlps": ("mlp", "decode", 1),
    "prompt": ("e2e", "prefill", LONG_PROMPT),
    "prompt_mlps": ("mlp", "prefill", LONG_PROMPT),
}


@contextmanager
def timed(modules: list[Any]) -> Iterator[list[float]]:
    """A list of one number: the seconds spent in the modules' forwards meanwhile."""
    spent = [0.0]
    forwards = [(module, module.forward, "forward" in module.__dict__) for module in modules]

    def timing(forward: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = forward(*arguments, **options)
            spent[0] += time.perf_counter() - begin
            return result
        return call

    for module, forward, _ in forwards:
        module.forward = timing(forward)
    try:
        yield spent
    finally:
        for module, forward, own in forwards:
            if own:
                module.forward = forward
            else:
                del module.forward


def measure(rounds: int) -> dict[str, list[list[float]]]:
    """Microseconds of [Sluice's, eager's] rounds, by what CASES names."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from chat import load

    import sluice

    torch.set_num_threads(THREADS)
    tokenizer, model = load(torch.bfloat16)
    text = Path("/usr/share/common-licenses/GPL-3").read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt").input_ids
    mlps = [layer.mlp for layer in model.model.layers]
    assert len(mlps) == LAYERS

    def generation() -> tuple[float, float]:
        prompt = ids[:, :PROMPT]
        options = {"do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
        with timed(mlps) as first:
            begin = time.perf_counter()
            model.generate(prompt, max_new_tokens=1, **options)
            one = time.perf_counter() - begin
        with timed(mlps) as all_:
            begin = time.perf_counter()
            model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options)
            whole = time.perf_counter() - begin
        steps = NEW_TOKENS - 1
        return (whole - one) / steps * 1e6, (all_[0] - first[0]) / steps * 1e6

    def prefill() -> tuple[float, float]:
        with timed(mlps) as spent:
            begin = time.perf_counter()
            model(ids[:, :LONG_PROMPT], logits_to_keep=1)
            whole = time.perf_counter() - begin
        return whole * 1e6, spent[0] * 1e6

    samples: dict[str, list[list[float]]] = {name: [[], []] for name in CASES}
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for who in (0, 1) if turn % 2 else (1, 0):
                patched = sluice.patch(model, weights_static=True) if who == 0 else None
                times = (*generation(), *prefill())
                if patched is not None:
                    assert len(patched.patched) == LAYERS, patched
                    patched.undo()
                if turn > 0:
                    for name, value in zip(samples, times):
                        samples[name][who].append(value)
    return samples


def rows(samples: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """Rows of the results file."""
    import sluice

    made = []
    for name, (ours, theirs) in samples.items():
        op, pass_, m = CASES[name]
        planned = sluice.plan(m, D, H)
        ordered, base = sorted(ours), statistics.median(theirs)
        us = statistics.median(ordered)
        made.append({
            "op": op, "pass": pass_, "model": MODEL, "m": m, "d": D, "h": H, "dtype": "bf16", "gate": "silu",
            "layout": "separate", "variant": planned.variant, "us": us,
            "us_p10": ordered[len(ordered) // 10], "us_p90": ordered[len(ordered) * 9 // 10],
            "tflops": LAYERS * planned.flops / us * 1e-6,
            "gbps": LAYERS * planned.bytes_moved / us * 1e-3, "roof_fraction": None,
            "baseline": "torch_eager", "baseline_us": base, "ratio": base / us, "extra_bytes": None,
            "peak_bytes": None, "rel_err": None, "config": planned.config,
            "threads": THREADS, "tp": 1,
        })  # fmt: skip
    return made


def meta(command: str, max_simd: str | None) -> dict[str, Any]:
    """Who measured where; no ceilings, which `sluice bench` knows how to measure."""
    import torch
    from torch_gpu import commit_and_date

    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return {
        "device": cpu, "max_simd": max_simd, "driver": None, "cuda": None, "compiler": f"torch {torch.__version__}",
        **commit_and_date(), "command": results.with_variables(command), "read_tbps": None, "copy_tbps": None,
        "gemm_tflops": None, "fma_gflops": None, "clocks": "unknown",
    }  # fmt: skip


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-simd", choices=TARGETS)
    arguments = parser.parse_args()
    hold(arguments.max_simd)
    made = rows(measure(arguments.rounds))
    for r in made:
        print(f"{r['op']:<4} {r['pass']:<8} M={r['m']:<4} {r['us']:10.0f} us  eager "
              f"{r['baseline_us']:10.0f}  {r['ratio']:.3f}x  {r['config']}")  # fmt: skip
    command = f"python bench/smollm2.py --rounds {arguments.rounds}"
    if arguments.max_simd:
        command += f" --max-simd {arguments.max_simd}"
    results.save(arguments.json, meta(command, arguments.max_simd), rows=made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
