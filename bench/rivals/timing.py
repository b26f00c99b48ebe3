# SPDX-License-Identifier: Apache-2.0
"""Checks every candidate against fp64, then times all of them in turn."""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import Any

import torch
from rivals.case import Candidate, Case, Run, Setup, pass_of, sampled, samples_of

ROUNDS = 15  # at least: a power-limited GPU spreads single runs by several per cent
WARM_UP_ROUNDS = 2
FINALISTS = 2  # of a rival's configurations, after a short screening
SCREENING_ROUNDS = 2  # and one to warm up


def check(case: Case, setup: Setup) -> dict[int, float]:
    """Each candidate's worst output, as mean |got - fp64| over mean |fp64|. Above the type's epsilon
    that is no rounding (g, u, h and dh are rounded once each). Outputs are poisoned first."""
    errors = {}
    for i, candidate in enumerate(setup.candidates):
        for name, tensor in candidate.outputs().items():
            samples_of(name, tensor).fill_(math.nan)
        setup.restore()
        candidate.runs[0]()
        got = candidate.outputs()
        errors[i] = 0.0
        for name in setup.exact.keys() & got.keys():
            want = setup.exact[name]
            error = float((sampled(name, got[name]) - want).abs().mean() / want.abs().mean())
            limit = max(torch.finfo(case.torch_dtype).eps, 64 * torch.finfo(torch.float32).eps)
            if not error < limit:
                raise RuntimeError(f"{case.text}: {candidate.name} {candidate.config}: {name}: error {error}")
            errors[i] = max(errors[i], error)
    setup.restore()
    return errors


def captured(candidate: Candidate, runs: int) -> Run:
    """`runs` runs over the copies in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in candidate.runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(runs):
            candidate.runs[i % len(candidate.runs)]()
    return graph.replay


def microseconds(replay: Run, cuda: bool) -> float:
    if not cuda:
        begin = time.perf_counter()
        replay()
        return (time.perf_counter() - begin) * 1e6
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3


def screened(candidates: list[Candidate], replays: dict[int, Run], cuda: bool) -> dict[int, Run]:
    """The replays without those of a rival's configurations that a few turns show to be slower than
    its best ones."""
    best: dict[int, float] = {}
    for turn in range(1 + SCREENING_ROUNDS):
        for i, replay in replays.items():
            us = microseconds(replay, cuda)
            best[i] = min(us, best.get(i, us)) if turn else us
    ranks: dict[int, int] = {}
    for i in sorted(best, key=best.__getitem__):
        ranks[i] = sum(candidates[j].name == candidates[i].name for j in ranks)
    return {i: replay for i, replay in replays.items() if ranks[i] < FINALISTS}


def measure(
    case: Case, setup: Setup, seconds: float, rounds: int = ROUNDS
) -> dict[int, list[float]]:
    """Microseconds a run, for each candidate, in turn, the order rotated every round. Of a shape
    without rotated copies a pass is long enough for its weights to leave the cache."""
    if cuda := case.device == "cuda":
        torch.cuda.empty_cache()  # nothing is given back during a capture
    floor = max(setup.bytes / 4e12, setup.flops / 7e14)
    copies = max(len(c.runs) for c in setup.candidates)
    runs = max(copies, min(64, math.ceil(1e-3 / floor))) if cuda else copies
    replays: dict[int, Run] = {}
    for i, candidate in enumerate(setup.candidates):
        if not cuda:
            replays[i] = lambda c=candidate: [c.runs[j % len(c.runs)]() for j in range(runs)]
            continue
        try:
            replays[i] = captured(candidate, runs)
        except Exception as error:
            if i == 0:
                raise
            print(candidate.name, candidate.config, "cannot be captured:", repr(error)[:200], file=sys.stderr)
    names = [setup.candidates[i].name for i in replays]
    if any(names.count(name) > FINALISTS for name in names):
        replays = screened(setup.candidates, replays, cuda)
    samples: dict[int, list[float]] = {i: [] for i in replays}
    order, spent, turn = list(replays), 0.0, -WARM_UP_ROUNDS
    while turn < rounds or spent < seconds * 1e6 * len(order):
        for k in range(len(order)):
            i = order[(k + turn) % len(order)]
            us = microseconds(replays[i], cuda)
            spent += us
            if turn >= 0:
                samples[i].append(us / runs)
        turn += 1
    return samples


def rows_of(
    case: Case, setup: Setup, errors: dict[int, float], samples: dict[int, list[float]], meta: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row for each rival, of its best configuration."""
    medians = {i: statistics.median(v) for i, v in samples.items()}
    own, us, ordered = setup.candidates[0], medians[0], sorted(samples[0])
    floors = [
        amount / meta[ceiling] * 1e-6
        for amount, ceiling in ((setup.bytes, "read_tbps"), (setup.flops, "gemm_tflops"))
        if meta[ceiling]
    ]
    best: dict[str, int] = {}
    for i in list(medians)[1:]:
        name = setup.candidates[i].name
        if name not in best or medians[i] < medians[best[name]]:
            best[name] = i
    rows = []
    for name, i in best.items():
        rival = setup.candidates[i]
        rows.append({
            "op": case.op.removesuffix("_full"),
            "pass": pass_of(case),
            "model": None, "m": case.m, "d": case.d, "h": case.h, "dtype": case.dtype,
            "gate": "silu" if case.gate_multiplier == 1 else f"silu(gate_multiplier={case.gate_multiplier})",
            "layout": "concat" if case.concat else "separate", "variant": own.variant, "config": own.config, "us": us,
            "us_p10": ordered[len(ordered) // 10], "us_p90": ordered[len(ordered) * 9 // 10],
            "tflops": setup.flops / us * 1e-6, "gbps": setup.bytes / us * 1e-3,
            "roof_fraction": max(floors) / us if floors else None, "baseline": name,
            "baseline_us": medians[i], "ratio": medians[i] / us, "extra_bytes": own.extra_bytes,
            "peak_bytes": None, "baseline_extra_bytes": rival.extra_bytes,
            "baseline_config": rival.config or None, "rel_err": errors[0],
            "baseline_rel_err": errors[i] if rival.outputs() else None, "threads": 1, "tp": 1,
        })  # fmt: skip
        if case.op == "mlp_train":
            rows[-1]["policy"] = "recompute" if case.recompute else "save"
    return rows
