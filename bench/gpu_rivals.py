# SPDX-License-Identifier: Apache-2.0
"""Sluice on a GPU beside Liger, Unsloth, QuACK and torch.compile, in one process, in turn.

    SLUICE_LIBRARY_DIR=build/cuda/lib PYTHONPATH=python/src \\
        python bench/gpu_rivals.py build/cuda CASE... --json bench/results/h200/rivals.json

CASE is MxDxH:OP with OP one of gate_mul, gate_mul_grad, gate_mul_full and mlp_train (forward, then
backward), gate_up, gate_up_grad, and further words: fp16, fp32, recompute, concat (of mlp_train's weights), torch
(mlp_train of Sluice by sluice.ops.mlp, where its Torch operators are built), fwd (mlp_train's forward alone),
silu(gate_multiplier=1.3), variant=NAME (of Sluice, forced). `--file FILE` adds the cases of a list in bench/problems that this program knows. Needs
torch 2.11; of liger-kernel 0.8.5, quack-kernels 0.6.5 and unsloth 2026.10.9 (one module of it) what is
installed is timed.

Sluice is called through its C ABI on the tensors' own memory. Every candidate is checked against fp64
on sampled rows, then captured in a CUDA graph of several runs over rotating buffers; the graphs are
replayed in turn. Ceilings come from `sluice bench`, run before. The file is written anew after each
case. `--check` times nothing: run it first, in several processes at once, to fill the caches of the
rivals' compilers. `--device cpu` is for trying the program out."""

from __future__ import annotations

import argparse
import datetime
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rivals.case import Case, parse
from rivals.elementwise import gate_mul, gate_mul_full, gate_mul_grad
from rivals.products import gate_up, gate_up_grad
from rivals.timing import ROUNDS, check, measure, rows_of
from rivals.training import mlp_train
from sluice import results

OPERATORS = {
    f.__name__: f
    for f in (gate_mul, gate_mul_full, gate_mul_grad, gate_up, gate_up_grad, mlp_train)
}


def ceilings(build: Path, device: str) -> dict[str, Any]:
    command = [str(build / "bin" / "sluice"), "bench", "1x64x64", "--quick", "--json", "-"]
    command += ["--device", "cpu"] if device == "cpu" else []
    out = subprocess.run(command, check=True, capture_output=True)
    return dict(results.parse(out.stdout, "sluice bench").meta)


def read_cases(args: argparse.Namespace) -> list[Case]:
    texts = list(args.cases)
    if args.file:
        lines = Path(args.file).read_text().splitlines()
        texts += [t for line in lines if (t := line.split("#")[0].strip())]
    cases = []
    for text in texts:
        if case := parse(text, OPERATORS, args.device):
            cases.append(case)
        else:
            print("not known here:", text, file=sys.stderr)
    return cases


def show(case: Case, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"{case.text:32s} {row['us']:8.1f} us {row['gbps'] * 1e-3:5.2f} TB/s {row['tflops']:6.1f} TFLOP/s"
            f" {row['baseline']:13s} {row['baseline_us']:8.1f} {row['ratio']:.3f}x"
            f" {row['baseline_config'] or ''}",
            flush=True,
        )  # fmt: skip


def save(path: Path, meta: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    meta["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    results.save(path, meta, rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--file")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="run each candidate once, time nothing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=0.1, help="of sampling, for each candidate")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least, of each candidate")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds; then no further case begins")
    args = parser.parse_intermixed_args()
    started = time.monotonic()
    torch.manual_seed(1)
    meta = {} if args.check else ceilings(args.build, args.device)
    words = [*args.cases, *(["--file", args.file] if args.file else [])]
    command = " ".join(["python", "bench/gpu_rivals.py", "build/cuda", *words])
    meta["command"] = results.with_variables(command)
    rows: list[dict[str, Any]] = []
    for case in read_cases(args):
        if time.monotonic() - started > args.limit:
            print("left out, no time:", case.text, file=sys.stderr)
            continue
        setup = OPERATORS[case.op](case)
        errors = check(case, setup)
        if args.check:
            continue
        rows += (got := rows_of(case, setup, errors, measure(case, setup, args.seconds, args.rounds), meta))
        show(case, got)
        if args.json:
            save(args.json, meta, rows)
        del setup
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
