# SPDX-License-Identifier: Apache-2.0
"""What vllm_decode.py, sglang_decode.py and hf_generate.py share: two engines of one model, without and with
Sluice, that take turns, and the comparison of their times and outputs.

Each engine has a process of its own (``Worker``), so that a slow minute hits both. A run of every number of
requests, then the next run of each. A step's time is that of generating the output less that of one token,
over the steps between. Ids are compared as far as they agree; where they part, the gap of stock's two best
log-probabilities says how near a tie it was. Up to there both had the same inputs, and their
log-probabilities are compared; how far stock's own move when the same prompt is served alone and not in a
batch is the measure of that."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluice import results

def _config(kind: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int,
            vocabulary: int, epsilon: float, theta: float, **more: Any) -> dict[str, Any]:  # fmt: skip
    """A model's own part of its config.json; ``kind`` is Llama, Qwen2 or Qwen3."""
    return {
        "architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower(), "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": epsilon,
        "rope_theta": theta, "vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2, **more,
    }  # fmt: skip


CONFIGS = {
    "llama-3.1-8b": _config("Llama", 4096, 14336, 32, 32, 8, 128256, 1e-5, 5e5, head_dim=128),
    "llama-3.1-70b": _config("Llama", 8192, 28672, 80, 64, 8, 128256, 1e-5, 5e5, head_dim=128),
    "qwen2.5-7b": _config("Qwen2", 3584, 18944, 28, 28, 4, 152064, 1e-6, 1e6),
    "qwen2.5-32b": _config("Qwen2", 5120, 27648, 64, 40, 8, 152064, 1e-6, 1e6),
    "qwen3-8b": _config("Qwen3", 4096, 12288, 36, 32, 8, 151936, 1e-6, 1e6, head_dim=128),
}
TYPES = {"bf16": "bfloat16", "fp16": "float16"}
BATCHES = (64, 16, 32, 1, 8, 4, 2)  # measured in this order: what is cut off matters least
PROMPT = 32  # of what is checked, and of a generation unless told otherwise
PROMPTS = (2048, 8192)  # for first tokens
PROMPTS_A_RUN = 5  # of first tokens: a run is their median
WARM_UP, FIRSTS = 24, 3  # tokens before a row's first run; runs of one token
STEP_S = 4e-3  # about a step
CHECKED = 48  # tokens whose ids and log-probabilities are compared
CANDIDATES = 20  # log-probabilities of a step: as many as vLLM gives
KV_TOKENS = 98304  # at least: 12 GiB of Llama-3.1-8B's


@dataclass(frozen=True)
class Setup:
    """The engine that a worker starts; the same whatever is asked of it then."""

    model: str  # of CONFIGS
    dtype: str  # of TYPES
    context: int  # tokens of a request at most, prompt and output
    prompt: int  # tokens of a prompt at most
    kv_tokens: int  # said, not profiled: two processes that start together would see each other
    tp: int = 1  # GPUs that share the model
    attention: str | None = None  # the engine's word for a backend
    prefix_cache: bool = False  # SGLang's radix cache
    custom_all_reduce: bool = False  # the engine's own kernels for sums over GPUs, not NCCL's
    chunk: int = 0  # tokens of a prefill step at most; 0: a prompt whole

    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        return {
            "hidden_act": "silu", "max_position_embeddings": max(16384, self.context),
            "torch_dtype": TYPES[self.dtype], "tie_word_embeddings": False, **CONFIGS[self.model],
        }  # fmt: skip

    def kv_bytes(self) -> int:
        """Of kv_tokens, in all GPUs."""
        c = CONFIGS[self.model]
        width = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        return self.kv_tokens * c["num_hidden_layers"] * c["num_key_value_heads"] * width * 2 * 2

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Setup:
        """What serves all that a program's arguments ask for."""
        prompt = max([*PROMPTS, *arguments.prompts, arguments.prompt])
        longest = max(arguments.prompt, PROMPT) + max([*arguments.output, CHECKED])
        return cls(
            arguments.model, arguments.dtype, max(longest, prompt) + 16, prompt,
            max(KV_TOKENS, max(arguments.batches) * (longest + 16)), arguments.tp,
            arguments.attention, arguments.prefix_cache, arguments.custom_all_reduce,
            arguments.chunk,
        )  # fmt: skip


@dataclass(frozen=True)
class Host:
    """An engine that can be measured."""

    name: str  # vLLM
    word: str  # of results files, and in SLUICE_WORD
    program: str  # a file; called with --worker and a setup it serves one engine
    environment: dict[str, str] = field(default_factory=dict)
    profiles: bool = False  # its worker answers ``kernels``


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Ids of `count` prompts that differ from their first token on."""
    return [[(7919 * i + 31 * j) % 32000 + 5 for j in range(tokens)] for i in range(count)]


def serve(engine: Callable[[Setup], Any]) -> None:
    """The worker, of the setup in its arguments: calls methods of what ``engine`` makes; one line of JSON in,
    one out. Whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=answers.close)  # else the engine's process keeps it open
    made = engine(Setup(**json.loads(sys.argv[2])))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(made, name)(*arguments)), file=answers, flush=True)


class Worker:
    """A process with one engine."""

    def __init__(self, host: Host, mode: str, setup: Setup, log: Path) -> None:
        self.cache = tempfile.TemporaryDirectory(prefix=f"{host.word}_cache_", ignore_cleanup_errors=True)
        # What vLLM knows of the classes of models, to start sooner; it compiles anew.
        known = Path(os.environ.get("VLLM_CACHE_ROOT", Path.home() / ".cache" / "vllm"), "modelinfos")
        if known.is_dir():
            shutil.copytree(known, Path(self.cache.name, "modelinfos"))
        environment = {
            **os.environ, **host.environment, f"SLUICE_{host.word.upper()}": mode,
            "VLLM_CACHE_ROOT": self.cache.name,
        }  # fmt: skip
        self.host, self.log = host, log
        command = [sys.executable, host.program, "--worker", json.dumps(asdict(setup))]
        self.process = subprocess.Popen(
            command, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"),
            start_new_session=True,
        )  # fmt: skip

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            raise RuntimeError("\n".join([f"{self.host.name} ended: {self.log}", *tail]))
        return json.loads(line)

    def tell(self, name: str, *arguments: Any) -> None:
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()

    def ask(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.answer()

    def end(self) -> None:
        """Ends it with its engine's process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.cache.cleanup()


def together(workers: list[Worker], name: str, *arguments: Any) -> list[Any]:
    """The answers of all, asked at once."""
    for worker in workers:
        worker.tell(name, *arguments)
    return [worker.answer() for worker in workers]


# --- the comparison


def clocks() -> str:
    """Of the SMs, the power drawn, and why they are no faster (4: power)."""
    from torch_gpu import smi

    return smi("clocks.sm,power.draw,clocks_event_reasons.active") or "unknown"


class Turns:
    """Runs of one kind, in turns: seconds of each worker's."""

    def __init__(self, workers: list[Worker], *arguments: int, look_after: float = 0) -> None:
        self.workers, self.arguments = workers, arguments
        self.look_after = look_after  # so many seconds at the clocks; 0 for not
        self.seconds: list[list[float]] = [[] for _ in workers]
        self.clocks = [""] * len(workers)

    def take(self) -> None:
        """One of each; the order alternates."""
        order = list(range(len(self.workers)))
        for index in order if len(self.seconds[0]) % 2 == 0 else reversed(order):
            self.workers[index].tell("seconds", *self.arguments)
            if self.look_after:
                time.sleep(self.look_after)
                self.clocks[index] = clocks()
            self.seconds[index].append(self.workers[index].answer())


class Generation:
    """Runs of so many requests that generate `output` tokens each."""

    def __init__(self, workers: list[Worker], batch: int, output: int, prompt: int) -> None:
        self.host = workers[0].host
        self.batch, self.output = batch, output
        together(workers, "seconds", batch, WARM_UP, prompt)  # a step may be compiled first
        self.first = Turns(workers, batch, 1, prompt)
        for _ in range(FIRSTS):
            self.first.take()
        self.whole = Turns(workers, batch, output, prompt, look_after=output * STEP_S / 2)

    def row(self, model: str) -> dict[str, Any]:
        """Of a step."""
        times = [
            [(t - statistics.median(first)) / (self.output - 1) * 1e6 for t in whole]
            for whole, first in zip(self.whole.seconds, self.first.seconds)
        ]
        stock, ours = (statistics.mean(t) for t in times)
        return row(
            self.host, model, "decode", self.batch, times, batch=self.batch, output=str(self.output),
            tokens_per_s=self.batch / ours * 1e6, baseline_tokens_per_s=self.batch / stock * 1e6,
            baseline_clocks=self.whole.clocks[0], clocks=self.whole.clocks[1],
        )  # fmt: skip


def prompt_row(
    host: Host, model: str, workers: list[Worker], prompt: int, runs: int
) -> dict[str, Any]:
    Turns(workers, 1, 1, prompt).take()
    turns = Turns(workers, 1, 1, prompt)
    for _ in range(runs * PROMPTS_A_RUN):
        turns.take()
    times = [
        [statistics.median(one[n : n + PROMPTS_A_RUN]) * 1e6 for n in range(0, len(one), PROMPTS_A_RUN)]
        for one in turns.seconds
    ]
    return row(host, model, "prefill", prompt, times, batch=1, ttft_ms=statistics.mean(times[1]) * 1e-3)


def row(
    host: Host, model: str, direction: str, tokens: int, times: list[list[float]], **more: Any
) -> dict[str, Any]:  # fmt: skip
    """A row of the results file from [stock's, Sluice's] microseconds."""
    stock, ours = times
    us, base = statistics.mean(ours), statistics.mean(stock)
    d, h, layers = (
        CONFIGS[model][k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    bytes_, flops = 3 * d * h * 2 * layers, 6.0 * tokens * d * h * layers
    return {
        "op": "e2e", "pass": direction, "model": model, "m": tokens, "d": d, "h": h,
        "dtype": "bf16", "gate": "silu", "layout": "concat", "variant": f"sluice.{host.word}",
        "us": us, "us_p10": min(ours), "us_p90": max(ours), "tflops": flops / us * 1e-6,
        "gbps": bytes_ / us * 1e-3, "roof_fraction": None, "baseline": host.word, "baseline_us": base,
        "ratio": base / us, "extra_bytes": None, "peak_bytes": None, "rel_err": None,
        "config": "auto", "threads": 1, "tp": 1, "runs": len(ours),
        "sd": statistics.stdev(ours) if len(ours) > 1 else None,
        "baseline_sd": statistics.stdev(stock) if len(stock) > 1 else None, **more,
    }  # fmt: skip


def order(r: dict[str, Any]) -> tuple[Any, ...]:
    return r["baseline"], r["model"], r["dtype"], r["pass"], int(r.get("output") or 0), r["m"]


def save(path: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    results.save(path, facts, rows=sorted(rows, key=order))


def join(parts: list[Path], whole: Path) -> None:
    """One file of several of one kind of GPU: the rows of all, all commands, the oldest one's commit and
    fingerprints."""
    files = [results.load(part) for part in parts]
    if len(devices := {file.meta["device"] for file in files}) > 1:
        raise SystemExit(f"files of several devices cannot be joined: {', '.join(sorted(devices))}")
    oldest = min(files, key=lambda file: str(file.meta["date"]))
    commands = "; ".join(dict.fromkeys(str(file.meta["command"]) for file in files))
    dirty = any(file.meta["dirty"] for file in files)
    save(whole, {**oldest.meta, "command": commands, "dirty": dirty}, [r for file in files for r in file.rows])


def compare(title: str, stock: list[Any], ours: list[Any]) -> None:
    """Says how far the generated ids agree, and the log-probabilities as long as they do."""
    for index, (a, b) in enumerate(zip(stock, ours)):
        parted = next((s for s, (x, y) in enumerate(zip(a, b)) if x[0] != y[0]), len(a))
        moved = [
            abs(x[1][token] - y[1][token])
            for x, y in zip(a[: parted + 1], b[: parted + 1])
            for token in x[1].keys() & y[1].keys()
        ]
        text = f"{title} {index}: the same {parted} of {len(a)} tokens"
        if parted < len(a):
            first, second, *_ = sorted(a[parted][1].values(), reverse=True)
            text += f", then stock's two best are {first - second:.4f} apart"
        print(f"{text}; log-probabilities moved by {statistics.fmean(moved):.4f}, at most {max(moved):.4f}")


def told(r: dict[str, Any]) -> dict[str, Any]:
    print(f"{r['pass']:<8} {r['m']:>5}  {r['us']:9.1f} us  {r['baseline']} {r['baseline_us']:9.1f}  "
          f"{r['ratio']:.3f}x  sd {r['sd'] or 0:.1f}, {r['baseline_sd'] or 0:.1f} of {r['runs']}  "
          f"{r.get('clocks', '')} | {r.get('baseline_clocks', '')}", flush=True)  # fmt: skip
    return r


def measure(workers: list[Worker], arguments: argparse.Namespace) -> None:
    """Everything, of workers that are starting; writes the file after every run."""
    from torch_gpu import meta  # Torch is loaded while they start

    host = workers[0].host
    begin, model, tp = time.perf_counter(), arguments.model, arguments.tp
    for worker in workers:
        worker.answer()
    print(f"ready after {time.perf_counter() - begin:.0f} s", flush=True)
    facts = workers[1].ask("facts")
    print(facts.get("calls"), *facts.get("choices", ()), sep="\n", flush=True)
    stock, ours = together(workers, "check", 4)
    compare("ids", stock, ours)
    compare("stock's own, alone and in a batch", workers[0].ask("check", 1), stock)

    firsts = [told(prompt_row(host, model, workers, p, arguments.runs)) for p in arguments.prompts]
    generations = [
        Generation(workers, batch, output, arguments.prompt)
        for output in arguments.output
        for batch in arguments.batches
    ]
    peaks = [worker.ask("facts")["peak_bytes"] for worker in workers]
    if None not in peaks:  # SGLang does not tell
        print(f"peak GiB {[round(peak / 2**30, 2) for peak in peaks]}", flush=True)

    def of_one_gpu(r: dict[str, Any]) -> dict[str, Any]:
        share = {"h": r["h"] // tp, "tflops": r["tflops"] / tp, "gbps": r["gbps"] / tp}
        return {
            **r, **share, "tp": tp, "dtype": arguments.dtype, "peak_bytes": peaks[1],
            "baseline_peak_bytes": peaks[0],
        }  # fmt: skip

    described: dict[str, Any] = {}
    for generation in generations * arguments.runs:
        if time.perf_counter() - begin > arguments.seconds:
            print("out of time", flush=True)
            break
        generation.whole.take()
        rows = [*firsts, *(g.row(model) for g in generations if g.whole.seconds[0])]
        described = described or meta(arguments.command)  # clocks of a GPU at work
        save(arguments.json, described, [of_one_gpu(r) for r in rows])
        told(generation.row(model))
    for batch in getattr(arguments, "kernels", None) or ():
        for worker in workers:
            idle, kernels = worker.ask("kernels", batch)
            print(f"kernels of a step of {batch}, none for {idle:.1%} of its time:")
            for name, count, us in kernels[:14]:
                print(f"  {count:>4} x {us:7.2f} us  {name[:100]}", flush=True)


def command_of(host: Host, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str:
    """The program with the options that decide what is measured, where they are not the default."""
    words = ["python", f"bench/{Path(host.program).name}", "--model", arguments.model]
    for name in ("dtype", "output", "prompt", "runs", "tp", "attention", "prefix_cache", "custom_all_reduce", "chunk"):
        value = getattr(arguments, name)
        if name in ("output", "runs") or value != parser.get_default(name):
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join(words)


def parse(host: Host, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", metavar="PART", help="put files together, run nothing")
    parser.add_argument("--model", choices=CONFIGS, default="llama-3.1-8b")
    parser.add_argument("--dtype", choices=TYPES, default="bf16")
    parser.add_argument("--output", type=int, nargs="+", default=[1024], help="tokens to generate")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens before them")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, choices=BATCHES)
    parser.add_argument("--tp", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--custom-all-reduce", action="store_true", help="the engine's kernels for sums, else NCCL")
    parser.add_argument("--attention", metavar="NAME", help="the engine's word for an attention backend")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a prefill step at most; 0: a prompt whole")
    parser.add_argument("--prefix-cache", action="store_true", help="on, as engines have it by default")
    parser.add_argument("--prompts", type=int, nargs="*", help="lengths for first tokens; a cache would know them")
    if host.profiles:
        parser.add_argument("--kernels", type=int, nargs="*", metavar="BATCH", help="what a step of it runs")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further run after these")
    arguments = parser.parse_args()
    if arguments.prompts is None:
        arguments.prompts = [] if arguments.prefix_cache else PROMPTS
    arguments.command = command_of(host, parser, arguments)
    return arguments


def main(host: Host, description: str) -> int:
    """Returns the exit status."""
    arguments = parse(host, description)
    if arguments.join:
        join(arguments.join, arguments.json)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    setup = Setup.of(arguments)
    workers = [
        Worker(host, mode, setup, arguments.json.with_suffix(f".{mode}.log"))
        for mode in ("off", "auto")
    ]
    try:
        measure(workers, arguments)
    finally:
        for worker in workers:
            worker.end()
    return 0
