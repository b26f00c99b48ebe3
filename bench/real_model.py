# SPDX-License-Identifier: Apache-2.0
"""A real model, SmolLM2-135M-Instruct, with its MLPs computed by Sluice beside transformers' own: perplexity and
logits of English text, and a training run.

    python bench/real_model.py perplexity bench/results/cpu/perplexity.json
    python bench/real_model.py training   bench/results/cpu/training_run.json

perplexity: licences of Debian's base-files in windows of 512 tokens, a row a type. ``mean_diff`` and ``max_diff``
are of the logits, ``rel_diff`` is mean |difference| / mean |eager's|; ``rel_err`` and ``baseline_rel_err`` are of
Sluice's and eager's logits against the model in fp32. A time is that of a window.

training: two copies of the model take the same steps of AdamW on the same windows, in turns; a row a step.

Needs python/requirements-torch.txt and python/requirements-model.txt."""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from smollm2 import D, H, LAYERS, MODEL
from smollm2 import meta as cpu_meta
from torch import Tensor, nn
from torch_gpu import meta, row

import sluice
from sluice import results

LICENCES = Path("/usr/share/common-licenses")  # on every Debian machine
TEXTS = ("GPL-3", "GPL-2", "LGPL-2.1", "GFDL-1.3", "MPL-2.0", "Apache-2.0")
WINDOW = 512  # tokens that are scored together
TRAINED = 256  # tokens of a step
LEARNING_RATE = 1e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(device: str) -> tuple[Any, nn.Module]:
    """The tokenizer, and the model in fp32."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import chat

    return chat.load(torch.float32, device)


def windows(tokenizer: Any, texts: tuple[str, ...], length: int, device: str) -> Tensor:
    """Token ids of the texts, [windows, length]; what is left at the end goes."""
    text = "".join((LICENCES / name).read_text(encoding="utf-8") for name in texts)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    count = len(ids) // length
    return ids[: length * count].reshape(count, length).to(device)


def token_losses(logits: Tensor, window: Tensor) -> Tensor:
    """Of each token of a window but its first."""
    return nn.functional.cross_entropy(logits[:-1].double(), window[1:], reduction="none")


def pair(exact: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Two copies of the model, the first one's MLPs by Sluice."""
    ours, stock = (copy.deepcopy(exact).to(dtype) for _ in range(2))
    done = sluice.patch(ours)
    assert len(done.patched) == LAYERS, done
    return ours, stock


def made_row(direction: str, tokens: int, dtype: str, ours: list[float], stock: list[float], device: str,
             **more: Any) -> dict[str, Any]:  # fmt: skip
    """A row of the results file: microseconds, work of all layers' MLPs."""
    passes = {"fwd": 1, "full": 3}[direction]
    made = row("e2e", direction, tokens, D, H, ours, stock, "torch_eager", device=device, model=MODEL,
               dtype=dtype, variant="sluice.patch", config="auto", extra_bytes=None, **more)  # fmt: skip
    weights = 3 * D * H * LAYERS
    made["tflops"] = passes * 2 * tokens * weights / made["us"] * 1e-6
    made["gbps"] = passes * weights * DTYPES[dtype].itemsize / made["us"] * 1e-3
    return made


def in_turn(step: int, *functions: Callable[[], Any]) -> list[Any]:
    """What each returns; every other step begins with the last."""
    order = list(enumerate(functions))
    done = {index: function() for index, function in (order if step % 2 == 0 else reversed(order))}
    return [done[index] for index, _ in order]


def timed(function: Callable[[], Tensor], device: str) -> tuple[Tensor, float]:
    """The result, and microseconds until it is there."""
    begin = time.perf_counter()
    result = function()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, (time.perf_counter() - begin) * 1e6


def distance(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().sum() / want.abs().sum())


def perplexity(tokenizer: Any, exact: nn.Module, device: str, limit: int) -> Iterator[dict[str, Any]]:
    """A row a type."""
    text = windows(tokenizer, TEXTS, WINDOW, device)[: limit or None]
    for dtype, torch_dtype in DTYPES.items():
        models = pair(exact, torch_dtype)
        times: list[list[float]] = [[], []]
        losses: list[list[Tensor]] = [[], []]
        mean, largest, relative, errors = [], 0.0, [], []
        for step, window in enumerate(text):
            run = [lambda m=m: timed(lambda: m(window[None]).logits[0], device) for m in models]
            done = in_turn(step, *run)
            for index, (logits, us) in enumerate(done):
                times[index].append(us)
                losses[index].append(token_losses(logits, window))
            ours, stock = (logits.float() for logits, _ in done)
            difference = (ours - stock).abs()
            mean.append(float(difference.mean()))
            largest = max(largest, float(difference.max()))
            relative.append(distance(ours, stock))
            want = exact(window[None]).logits[0]
            errors.append((distance(ours, want), distance(stock, want)))
        ours_loss, stock_loss = (float(torch.cat(part).mean()) for part in losses)
        made = made_row(
            "fwd", WINDOW, dtype, *(t[1:] or t for t in times), device, perplexity=math.exp(ours_loss),
            baseline_perplexity=math.exp(stock_loss), draws=len(text),
            mean_diff=sum(mean) / len(mean), max_diff=largest, rel_diff=sum(relative) / len(relative),
            rel_err=sum(e for e, _ in errors) / len(errors),
            baseline_rel_err=sum(e for _, e in errors) / len(errors),
        )  # fmt: skip
        print(f"{dtype}: perplexity {made['perplexity']:.5f}, eager {made['baseline_perplexity']:.5f}; logits "
              f"differ by {made['mean_diff']:.2e}, at most {largest:.2e}; to fp32 {made['rel_err']:.3e}, eager "
              f"{made['baseline_rel_err']:.3e}", flush=True)  # fmt: skip
        yield made


def training(tokenizer: Any, exact: nn.Module, device: str, dtype: str, steps: int) -> Iterator[dict[str, Any]]:
    """A row a step."""
    text = windows(tokenizer, TEXTS, TRAINED, device)
    models = [model.train() for model in pair(exact, DTYPES[dtype])]
    optimisers = [torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE) for model in models]
    # Windows at random: neighbours are of one licence, and would be learnt and forgotten.
    order = torch.randint(len(text), (steps,), generator=torch.Generator().manual_seed(1)).tolist()
    for step, index in enumerate(order):
        window = text[index]

        def advance(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensor:
            loss = token_losses(model(window[None]).logits[0], window).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        run = [lambda m=m, o=o: timed(lambda: advance(m, o), device) for m, o in zip(models, optimisers)]
        (loss, us), (stock_loss, stock_us) = in_turn(step, *run)
        made = made_row(
            "full", TRAINED, dtype, [us], [stock_us], device, step=step + 1, loss=float(loss),
            baseline_loss=float(stock_loss),
        )  # fmt: skip
        if step % 10 == 0 or step + 1 == steps:
            print(f"step {step + 1}: loss {float(loss):.4f}, eager {float(stock_loss):.4f}", flush=True)
        yield made


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("perplexity", "training"))
    parser.add_argument("json", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--windows", type=int, default=0, help="of the perplexity, at most; 0: all")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the training")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    words = [word for word in sys.argv[1:] if word != str(arguments.json)]
    command = " ".join(["python", "bench/real_model.py", *words])
    tokenizer, model = load(arguments.device)
    if arguments.what == "perplexity":
        with torch.no_grad():
            rows = list(perplexity(tokenizer, model, arguments.device, arguments.windows))
    else:
        rows = list(training(tokenizer, model, arguments.device, arguments.dtype, arguments.steps))
    facts = meta(command) if arguments.device == "cuda" else cpu_meta(command, None)
    results.save(arguments.json, facts, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
