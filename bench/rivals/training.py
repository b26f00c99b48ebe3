# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of the whole MLP, or its forward alone with what a backward needs saved, beside
Liger's, QuACK's and torch.compile's autograd functions and eager PyTorch."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Callable

import torch
from rivals.case import SAMPLES, Candidate, Case, Setup, Tensors, gate64
from rivals.elementwise import liger
from rivals.native import Operator
from rivals.products import quack, runs_here
from torch.utils.checkpoint import checkpoint

AUTOTUNER_RUNS = 5  # timed, for each configuration of QuACK


def own_candidate(case: Case, inputs: Tensors, dy: torch.Tensor) -> Candidate:
    """`extra_bytes` is all that is allocated beyond x, dy and the weights: outputs, gradients, what
    is saved, the workspace."""
    weights = {n: t for n, t in inputs.items() if n != "x"}
    grads = {"d" + n: torch.empty_like(t) for n, t in inputs.items()}
    if case.concat:
        grads["dw_gate"], grads["dw_up"] = case.empty(2 * case.h, case.d).chunk(2)
    y = torch.empty_like(dy)
    g_u = case.empty(case.m, 2 * case.h)  # g, then u in each row; later dg and du
    g, u = g_u.chunk(2, dim=1)
    halves = {name: g_u.stride(0) * g_u.element_size() for name in ("g_u", "dg_du")}
    saved = {} if case.recompute else {"g": g, "u": u}
    forward = Operator("mlp", case, halves, save_g_u=not case.recompute)
    backward = Operator(
        "mlp_grad", case, halves, recompute=case.recompute, save_dg_du=True, weights_static=False
    )
    steps = (
        forward.bind(y=y, **saved, **inputs),
        backward.bind(x=inputs["x"], dy=dy, dg=g, du=u, **saved, **weights, **grads),
    )
    size = sum(t.numel() * t.element_size() for t in (y, g_u, *grads.values()))
    size += max(forward.workspace_bytes, backward.workspace_bytes)
    variant, config = backward.variant, forward.config + " " + backward.config
    outputs = {"y": y} if case.fwd else {"y": y, **grads}
    if case.fwd:
        steps, variant, config = steps[:1], forward.variant, forward.config
        size = sum(t.numel() * t.element_size() for t in (y, g_u)) + forward.workspace_bytes
    return Candidate(
        "sluice", [lambda: [step() for step in steps]], lambda: outputs, variant, config, size
    )


def torch_candidate(case: Case, inputs: Tensors, dy: torch.Tensor) -> Candidate:
    """As a PyTorch program calls it: needs the Torch operators, and its memory is the allocator's as the
    rivals' is."""
    from sluice import ops, plan

    made = autograd_candidate(
        "sluice", "", lambda *t: ops.mlp(*t, recompute=case.recompute), inputs, dy, case.fwd
    )
    if made is None:
        raise RuntimeError("sluice.ops.mlp does not run here")
    device = "cuda:0" if case.device == "cuda" else "cpu"
    # Of the fused step of the pass.
    saved = {"op": "gate_up", "save_g_u": not case.recompute} if case.fwd else {"op": "gate_up_grad"}
    fused = plan(case.m, case.d, case.h, dtype=case.dtype, device=device, **saved)
    made.variant, made.config = "sluice.ops.mlp", fused.config
    return made


def autograd_candidate(
    name: str,
    config: str,
    mlp: Callable[..., torch.Tensor],
    inputs: Tensors,
    dy: torch.Tensor,
    forward_alone: bool = False,
) -> Candidate | None:
    """`extra_bytes` is the allocator's peak beyond what was there before."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in inputs.items()}
    results: Tensors = {}

    def run() -> None:
        results.clear()
        y = mlp(*leaves.values())
        if forward_alone:
            results["y"] = y.detach()
            return
        grads = torch.autograd.grad(y, list(leaves.values()), dy)
        results.update({"y": y.detach(), **{"d" + n: t for n, t in zip(leaves, grads)}})

    if not runs_here(run, name):
        return None
    peak = None
    if dy.is_cuda:
        results.clear()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before

    def outputs() -> Tensors:
        if "dw_gate_up" not in results:
            return results
        return {**results, "dw_gate": results["dw_gate_up"][::2], "dw_up": results["dw_gate_up"][1::2]}

    return Candidate(name, [run], outputs, config=config, extra_bytes=peak)


def quack_mlp(case: Case) -> Callable[..., torch.Tensor] | None:
    """QuACK's MLP, each of its products with the configuration that QuACK's autotuner finds, by a sample
    of a few runs: its own takes a second for each of some 250."""
    if not quack():
        return None
    from quack import autotuner
    from quack.mlp import mlp_func

    def sample(
        fn: Any, args: list[tuple], keywords: list[dict], extra_kwargs: dict, quantiles: tuple
    ) -> list[float]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(AUTOTUNER_RUNS + 2):
            if i == 2:
                start.record()
            fn(*args[i % len(args)], **keywords[i % len(args)], **extra_kwargs)
        stop.record()
        stop.synchronize()
        return [start.elapsed_time(stop) / AUTOTUNER_RUNS] * len(quantiles)

    autotuner._bench_cuda_graph_l2_rotate = sample
    return lambda x, w, w_down: mlp_func(x, w, w_down, "swiglu", recompute=case.recompute)


def exact_of(case: Case, inputs: Tensors, dy: torch.Tensor) -> Tensors:
    """Of some tokens y and dx; of some hidden units the weights' gradients, sums over all tokens."""
    x, w_gate, w_up, w_down = (t.double() for t in inputs.values())
    dy = dy.double()
    tokens = gate64(
        case, x[:SAMPLES] @ w_gate.t(), x[:SAMPLES] @ w_up.t(), dy[:SAMPLES] @ w_down
    )
    units = gate64(case, x @ w_gate[:SAMPLES].t(), x @ w_up[:SAMPLES].t(), dy @ w_down[:, :SAMPLES])
    return {
        "y": tokens["h"] @ w_down.t(),
        "dx": tokens["dg"] @ w_gate + tokens["du"] @ w_up,
        "dw_gate": units["dg"].t() @ x,
        "dw_up": units["du"].t() @ x,
        "dw_down": dy.t() @ units["h"],
    }


def liger_mlp() -> Callable[..., torch.Tensor] | None:
    """What Liger's module LigerMLP calls: gate_up fused in Triton, g and u saved. Its tensor descriptors
    need a GPU of compute capability 9.0."""
    try:
        from liger_kernel.ops.mlp import LigerMLPFunction
    except ImportError as error:
        print("liger-kernel:", error, file=sys.stderr)
        return None
    return lambda x, *weights: LigerMLPFunction.apply(x[None], *weights).squeeze(0)  # a batch of one


def eager(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return linear(torch.nn.functional.silu(linear(x, a)) * linear(x, b), c)


def mlp_train(case: Case) -> Setup:
    m, d, h = case.m, case.d, case.h
    dy = case.normal(m, d)
    gate_up = case.normal(2 * h, d, scale=d**-0.5)
    w_gate, w_up = gate_up.chunk(2)
    inputs = {
        "x": case.normal(m, d),
        "w_gate": w_gate if case.concat else w_gate.clone(),
        "w_up": w_up if case.concat else w_up.clone(),
        "w_down": case.normal(d, h, scale=h**-0.5),
    }
    linear = torch.nn.functional.linear
    mlps: dict[str, Callable[..., torch.Tensor]] = {"torch_eager": eager}
    torch.compiler.reset()  # of many shapes it would keep one program, or none after the eighth
    mlps["torch_compile"] = torch.compile(eager)
    if fused := liger_mlp():
        mlps["liger_mlp"] = fused
    if swiglu := liger():
        gate = swiglu.LigerSiLUMulFunction.apply
        mlps["liger"] = lambda x, a, b, c: linear(gate(linear(x, a), linear(x, b)), c)
    rivals: list[Candidate | None] = []
    for name, mlp in mlps.items():
        if case.recompute:  # neither recomputes by itself
            mlp = partial(checkpoint, mlp, use_reentrant=False, preserve_rng_state=False)
        rivals.append(
            autograd_candidate(
                name, "checkpoint" if case.recompute else "", mlp, inputs, dy, case.fwd
            )
        )
    if mlp := quack_mlp(case):
        merged = torch.stack([inputs["w_gate"], inputs["w_up"]], dim=1).reshape(2 * h, d)
        theirs = {"x": inputs["x"], "w_gate_up": merged, "w_down": inputs["w_down"]}
        rivals.append(autograd_candidate("quack", "autotuned", mlp, theirs, dy, case.fwd))
    own = torch_candidate if case.torch else own_candidate
    candidates = [own(case, inputs, dy), *(r for r in rivals if r is not None)]
    exact = exact_of(case, inputs, dy)
    if case.fwd:
        saved = 0 if case.recompute else 2 * m * h
        size = 2.0 * (3 * d * h + 2 * m * d + saved)
        return Setup(6.0 * m * d * h, size, candidates, {"y": exact["y"]})
    flops = (22.0 if case.recompute else 18.0) * m * d * h
    return Setup(flops, 2.0 * (6 * d * h + 4 * m * d), candidates, exact)
