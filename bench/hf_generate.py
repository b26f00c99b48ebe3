# SPDX-License-Identifier: Apache-2.0
"""transformers' own ``generate`` with and without ``sluice.patch(model, linears=True)``: time a token, time to
first token, the tokens themselves.

    python bench/hf_generate.py bench/results/h200/generate.json

The method is that of vllm_decode.py (``engine_turns``): two models of the same random weights, each in its own
process, take turns. The cache is static, so that on a GPU transformers compiles a step and records it as a CUDA
graph; on a CPU a step is eager. Needs python/requirements-torch.txt."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from engine_turns import CANDIDATES, CHECKED, PROMPT, TYPES, Host, Setup, main, prompts, serve

WORD = "hf_compiled"
LENGTHS = 512  # caches have multiples of it
COMPILED = 8  # tokens after which a step is compiled and recorded


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread on the core that the other worker's has when it is its turn. A quarter of a step is Python
    that the GPU waits for, and cores were seen to differ by 30 %."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class Engine:
    """What a worker does for its parent."""

    def __init__(self, setup: Setup) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        begin = time.perf_counter()
        config = setup.config()
        config = AutoConfig.for_model(config.pop("model_type"), **config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with self.device:
            self.model = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, TYPES[setup.dtype]), attn_implementation=setup.attention
            ).eval()
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02)
        self.caches: dict[tuple[int, int], Any] = {}
        self.report = "stock"
        if os.environ[f"SLUICE_{WORD.upper()}"] != "off":
            import sluice

            self.report = str(sluice.patch(self.model, linears=True))
        self.start_s = time.perf_counter() - begin

    def generate(self, batch: int, tokens: int, prompt: int, **more: Any) -> tuple[float, Any]:
        """Seconds, and what transformers returns."""
        from transformers import StaticCache

        # A cache for each number of requests and length, kept: for another one a step is compiled anew.
        key = batch, -(-(prompt + tokens) // LENGTHS) * LENGTHS
        if key not in self.caches:
            self.caches[key] = StaticCache(self.model.config, max_cache_len=key[1])
            self.timed(self.caches[key], batch, min(COMPILED, key[1] - prompt), prompt)
        with one_core() if self.device.type == "cuda" else contextlib.nullcontext():
            return self.timed(self.caches[key], batch, tokens, prompt, **more)

    def timed(self, cache: Any, batch: int, tokens: int, prompt: int, **more: Any) -> tuple[float, Any]:
        import torch

        cache.reset()
        ids = torch.tensor(prompts(batch, prompt), device=self.device)
        begin = time.perf_counter()
        found = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
            do_sample=False, past_key_values=cache, eos_token_id=None, pad_token_id=0, **more,
        )  # fmt: skip
        found_ids = found if isinstance(found, torch.Tensor) else found.sequences
        found_ids[:, -1].tolist()  # waits for it
        return time.perf_counter() - begin, found

    def seconds(self, batch: int, tokens: int, prompt: int) -> float:
        return self.generate(batch, tokens, prompt)[0]

    def check(self, batch: int) -> list[list[tuple[int, dict[str, float]]]]:
        """Of each sequence and step the token, and the log-probabilities of the best candidates."""
        import torch

        _, found = self.generate(
            batch, CHECKED, PROMPT, output_logits=True, return_dict_in_generate=True
        )
        logits = torch.stack(found.logits, dim=1).float()
        best = logits.log_softmax(-1).topk(CANDIDATES)
        return [
            [
                (token, {str(i): value for i, value in zip(one, values)})
                for token, one, values in zip(row[PROMPT:], indices, logprobs)
            ]
            for row, indices, logprobs in zip(
                found.sequences.tolist(), best.indices.tolist(), best.values.tolist()
            )
        ]

    def facts(self) -> dict[str, Any]:
        """Seconds to start, memory, and what is patched."""
        import torch

        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None
        return {"start_s": self.start_s, "peak_bytes": peak, "calls": self.report}


HOST = Host("transformers", WORD, __file__)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(Engine)
    else:
        sys.exit(main(HOST, __doc__))
