# SPDX-License-Identifier: Apache-2.0
"""SGLang with and without the plug-in: tokens a second, time to first token, the tokens themselves.

    python bench/sglang_decode.py OUT.json
    python bench/sglang_decode.py OUT.json --model qwen2.5-7b
    python bench/sglang_decode.py OUT.json --prompt 1 --output 1024 4096 16384 --batches 1 4 16 --dtype fp16 \
        --attention flashinfer --prefix-cache

The method is that of vllm_decode.py (``engine_turns``): two SGLangs on one GPU with CUDA graphs
(SLUICE_SGLANG=off, and auto) take turns. The weights are normal * 0.02 from a seed, the same in both: a
plug-in of SGLang's own kind, written for the run, sets them when the model is loaded.

Needs SGLang and this package installed, its entry point included (python -m sluice doctor)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_turns import (
    BATCHES,
    CANDIDATES,
    CHECKED,
    PROMPT,
    TYPES,
    Host,
    Setup,
    main,
    prompts,
    serve,
)

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"


def set_weights(result: Any, runner: Any, *_: Any, **__: Any) -> None:
    """Normal * 0.02 from a seed, norms 1: the same in each process, others on each GPU."""
    import torch

    torch.manual_seed(7 + torch.distributed.get_rank())
    for parameter in runner.model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.02)
        else:
            parameter.data.fill_(1)
    torch.cuda.synchronize()


def load() -> None:
    """The entry point of the plug-in that sets the weights."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(LOAD, set_weights, HookType.AFTER)


def install(folder: Path) -> None:
    """Puts the entry point where the processes that SGLang spawns find it."""
    info = folder / "sluice_bench-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sluice-bench\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsluice_bench = sglang_decode:load\n", "utf-8"
    )
    places = [str(folder), str(Path(__file__).parent)]
    sys.path[:0] = places
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])


class Engine:
    """What a worker does for its parent."""

    def __init__(self, setup: Setup) -> None:
        self.folder = tempfile.TemporaryDirectory()
        install(Path(self.folder.name))
        import sglang

        begin = time.perf_counter()
        Path(self.folder.name, "config.json").write_text(json.dumps(setup.config()), encoding="utf-8")
        self.engine = sglang.Engine(
            model_path=self.folder.name, load_format="dummy", skip_tokenizer_init=True,
            dtype=TYPES[setup.dtype], disable_radix_cache=not setup.prefix_cache,
            attention_backend=setup.attention, context_length=setup.context,
            max_running_requests=max(BATCHES), chunked_prefill_size=setup.chunk or max(2048, setup.prompt),
            max_total_tokens=setup.kv_tokens, mem_fraction_static=0.8, tp_size=setup.tp,
            disable_custom_all_reduce=setup.tp > 1 and not setup.custom_all_reduce,
            log_level="info",  # or the plug-in's lines are left out
        )  # fmt: skip
        self.start_s = time.perf_counter() - begin

    def generate(self, batch: int, tokens: int, prompt: int, **more: Any) -> tuple[float, list[Any]]:
        """Seconds, and SGLang's outputs."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
        begin = time.perf_counter()
        outputs = self.engine.generate(
            input_ids=prompts(batch, prompt), sampling_params=sampling, **more
        )
        return time.perf_counter() - begin, outputs

    def seconds(self, batch: int, tokens: int, prompt: int) -> float:
        return self.generate(batch, tokens, prompt)[0]

    def check(self, batch: int) -> list[list[tuple[int, dict[str, float]]]]:
        """Of each sequence and step the token, and the log-probabilities of the best candidates."""
        _, outputs = self.generate(
            batch, CHECKED, PROMPT, return_logprob=True, top_logprobs_num=CANDIDATES
        )
        return [
            [
                (token, {str(i): logprob for logprob, i, *_ in candidates})
                for token, candidates in zip(
                    one["output_ids"], one["meta_info"]["output_top_logprobs"]
                )
            ]
            for one in outputs
        ]

    def facts(self) -> dict[str, Any]:
        """Seconds to start; who serves is in the log."""
        return {"start_s": self.start_s, "peak_bytes": None}


HOST = Host("SGLang", "sglang", __file__, ENVIRONMENT)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(Engine)
    else:
        sys.exit(main(HOST, __doc__))
