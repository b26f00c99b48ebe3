# SPDX-License-Identifier: Apache-2.0
"""vLLM with and without the plug-in: tokens a second, time to first token, the tokens themselves.

    python bench/vllm_decode.py bench/results/h200/vllm_decode.json
    python bench/vllm_decode.py bench/results/h200/vllm_decode_qwen.json --model qwen2.5-7b
    python bench/vllm_decode.py bench/results/h200/vllm_decode_tp2.json --tp 2 --custom-all-reduce --batches 1 4 16 64
    python bench/vllm_decode.py bench/results/h200/vllm_chunk256.json --output 256 --runs 2 --batches 1 16 --chunk 256
    python bench/vllm_decode.py WHOLE.json --join PART.json PART.json

Two vLLMs on one GPU with CUDA graphs and torch.compile (SLUICE_VLLM=off, and auto) take turns, so that a
slow minute hits both. Each has its engine in a process of its own, as vLLM does unless told otherwise: in
the process of its caller the host's work of a step can outlast the GPU's. The model has a known one's
configuration and normal * 0.02 as weights, the same in both: vLLM's own dummy weights are tiny and equal in
every layer. The method: ``engine_turns``.

The file is written anew after every run. On a machine of several GPUs `--batches` shares a model's numbers of
requests out, one program a GPU (CUDA_VISIBLE_DEVICES), and `--join` puts the files together: each number has
both vLLMs and all runs on one GPU.

Needs vLLM 0.23 and this package installed, its entry point included (python -m sluice doctor)."""

from __future__ import annotations

import json
import statistics
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

ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions are sent to the engine's process
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "NCCL_NVLS_ENABLE": "0",  # no multicast between GPUs
}  # fmt: skip


# --- one vLLM


def set_weights(model: Any) -> None:
    """Normal * 0.02 from a seed, norms 1: the same in each process, others on each GPU."""
    import torch
    from vllm.distributed import get_tensor_model_parallel_rank

    torch.manual_seed(7 + get_tensor_model_parallel_rank())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.02)
        else:
            parameter.data.fill_(1)
    torch.cuda.synchronize()


def facts_of(worker: Any) -> dict[str, Any]:
    """In the engine's process: who serves the MLPs, and the memory it took."""
    import torch

    found: dict[str, Any] = {"peak_bytes": torch.cuda.max_memory_allocated()}
    operators = sys.modules.get("sluice.serving.operators")
    if operators is not None:
        found["calls"] = {**operators.calls, "sums": dict(sys.modules["sluice.serving.reduced"].calls)}
        found["choices"] = [str(choice) for choice in operators.choices.values()]
    return found


def profile_begin(worker: Any) -> None:
    """In the engine's process."""
    from torch.profiler import ProfilerActivity, profile

    worker.recorded = profile(activities=[ProfilerActivity.CUDA])
    worker.recorded.__enter__()


def profile_end(worker: Any) -> list[list[Any]]:
    """Of each kernel the name, begin and end, us."""
    import torch

    worker.recorded.__exit__(None, None, None)
    return [
        [event.name, event.time_range.start, event.time_range.end]
        for event in worker.recorded.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


class Engine:
    """What a worker does for its parent."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM

        chunks = [setup.chunk] if 0 < setup.chunk <= 512 else []  # vLLM's own lists end there
        compilation: dict[str, Any] = {"cudagraph_capture_sizes": sorted({*BATCHES, *chunks})}
        if setup.tp > 1:  # it needs FlashInfer's kernels, and keeps Sluice's sums away
            compilation["pass_config"] = {"fuse_allreduce_rms": False}

        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(setup.config()), encoding="utf-8")
            attention = {"attention_backend": setup.attention} if setup.attention else {}
            self.llm = LLM(
                folder, load_format="dummy", skip_tokenizer_init=True, dtype=TYPES[setup.dtype],
                enable_prefix_caching=setup.prefix_cache,
                max_model_len=setup.context, max_num_seqs=max(BATCHES),
                max_num_batched_tokens=setup.chunk or max(2048, setup.prompt), disable_log_stats=True,
                gpu_memory_utilization=0.4, kv_cache_memory_bytes=setup.kv_bytes() // setup.tp,
                tensor_parallel_size=setup.tp, disable_custom_all_reduce=setup.tp > 1 and not setup.custom_all_reduce,
                compilation_config=compilation, **attention,
            )  # fmt: skip
        self.llm.apply_model(set_weights)
        self.start_s = time.perf_counter() - begin

    def generate(self, batch: int, tokens: int, prompt: int, logprobs: int | None = None) -> Any:
        """Seconds, and vLLM's outputs."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=tokens, min_tokens=tokens, ignore_eos=True, temperature=0.0,
            detokenize=False, logprobs=logprobs,
        )  # fmt: skip
        requests = [{"prompt_token_ids": ids} for ids in prompts(batch, prompt)]
        begin = time.perf_counter()
        outputs = self.llm.generate(requests, sampling, use_tqdm=False)
        return time.perf_counter() - begin, outputs

    def seconds(self, batch: int, tokens: int, prompt: int) -> float:
        return self.generate(batch, tokens, prompt)[0]

    def check(self, batch: int) -> list[list[tuple[int, dict[str, float]]]]:
        """Of each sequence and step the token, and the log-probabilities of the best candidates."""
        _, outputs = self.generate(batch, CHECKED, PROMPT, logprobs=CANDIDATES)
        return [
            [
                (token, {str(i): c.logprob for i, c in candidates.items()})
                for token, candidates in zip(one.outputs[0].token_ids, one.outputs[0].logprobs)
            ]
            for one in outputs
        ]

    def kernels(self, batch: int) -> tuple[float, list[tuple[str, int, float]]]:
        """Of a generation the share of time in which no kernel ran (the profiler's own cost included), and of
        its kernels the name, how often it ran a step and its median, us; the longest first."""
        steps = 24
        self.llm.collective_rpc(profile_begin)
        self.generate(batch, steps, PROMPT)
        events = sorted(self.llm.collective_rpc(profile_end)[0], key=lambda event: event[1])
        times: dict[str, list[float]] = {}
        for name, begin, end in events:
            times.setdefault(name, []).append(end - begin)
        found = [(n, round(len(t) / steps), statistics.median(t)) for n, t in times.items()]
        behind = events[len(events) // 4 :]  # the prompts are over
        busy, reached = 0.0, behind[0][1]
        for _, begin, end in behind:
            busy += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return 1 - busy / (reached - behind[0][1]), sorted(found, key=lambda k: -k[1] * k[2])

    def facts(self) -> dict[str, Any]:
        """Who serves the MLPs, and what memory it took."""
        return {"start_s": self.start_s, **self.llm.collective_rpc(facts_of)[0]}


HOST = Host("vLLM", "vllm", __file__, ENVIRONMENT, profiles=True)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        # By its name: engines' processes look up what is sent to them in this module.
        import vllm_decode

        serve(vllm_decode.Engine)
    else:
        sys.exit(main(HOST, __doc__))
