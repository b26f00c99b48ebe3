# SPDX-License-Identifier: Apache-2.0
"""gate_up and gate_up_grad beside QuACK's GEMMs with the gate in their epilogue; gate_up beside two
GEMMs and Unsloth's or Liger's kernel, and torch.compile, too."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from rivals.case import Candidate, Case, Run, Setup, Tensors, gate64, sampled
from rivals.elementwise import liger, unsloth, unsloth_gate
from rivals.native import Operator


def quack() -> Any:
    """QuACK's GEMMs, and the configurations that its autotuner tries on Hopper for gated epilogues; None
    where it is not installed."""
    try:
        from quack import gemm_config, gemm_interface
    except ImportError as error:
        print("quack-kernels:", error, file=sys.stderr)
        return None
    configs = [c for c in gemm_config.get_all_configs("gated") if c.device_capacity == 9]
    return gemm_interface, configs


def words_of(config: Any) -> str:
    kind = "pp" if config.pingpong else "co"
    return f"{kind}{config.tile_m}x{config.tile_n} cluster {config.cluster_m}x{config.cluster_n}"


def runs_here(run: Run, name: str) -> bool:
    try:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:  # a rival's configuration that does not compile is not a rival
        print(name, "left out:", repr(error)[:200], file=sys.stderr)
        return False
    return True


@torch.compile(dynamic=True)
def compiled_gate_up(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ w_gate.t()) * (x @ w_up.t())


def two_gemms(
    case: Case, x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, out: torch.Tensor
) -> list[Candidate]:
    """torch.mm of gate and of up, then a kernel of others: Unsloth's, also over g, and Liger's row walk.
    `extra_bytes` are g and u, less h where it takes g's place."""
    g, u = torch.empty_like(out), torch.empty_like(out)
    size = g.numel() * g.element_size()

    def gemms() -> None:
        torch.mm(x, w_gate.t(), out=g)
        torch.mm(x, w_up.t(), out=u)

    candidates = []
    if kernels := unsloth():
        for name, h, extra in (("torch_mm+unsloth", out, 2 * size), ("torch_mm+unsloth_in_place", g, size)):

            def run(h: torch.Tensor = h) -> None:
                gemms()
                unsloth_gate(kernels, g, u, h)

            candidates.append(Candidate(name, [run], lambda h=h: {"h": h}, extra_bytes=extra))
    if swiglu := liger():
        block, warps = swiglu.calculate_settings(case.h)

        def rows() -> None:
            gemms()
            swiglu._swiglu_forward_kernel[(case.m,)](
                g, u, out, case.h, 1.0, n_cols=case.h, BLOCK_SIZE=block, num_warps=warps
            )

        candidates.append(Candidate("torch_mm+liger", [rows], lambda: {"h": out}, extra_bytes=2 * size))
    outputs: Tensors = {}

    def compiled() -> None:
        outputs["h"] = compiled_gate_up(x, w_gate, w_up)

    candidates.append(Candidate("torch_compile", [compiled], lambda: outputs))
    return [c for c in candidates if runs_here(c.runs[0], c.name)]


def gate_up(case: Case) -> Setup:
    """QuACK takes the weights as [gate; up] and with their rows in turn; the best of all counts."""
    m, d, h = case.m, case.d, case.h
    x = case.normal(m, d)
    w_gate, w_up = (case.normal(h, d, scale=d**-0.5) for _ in range(2))
    out, theirs = case.empty(m, h), case.empty(m, h)
    own = Operator("gate_up", case)
    candidates = [own.candidate([own.bind(x=x, w_gate=w_gate, w_up=w_up, h=out)], {"h": out})]
    candidates += two_gemms(case, x, w_gate, w_up, theirs)
    if found := quack():
        gemms, configs = found
        stacked = torch.cat([w_gate, w_up])
        in_turn = torch.stack([w_gate, w_up], dim=1).reshape(2 * h, d)
        for config in configs:
            for weights, concat, layout in ((stacked, ("B",), "concat"), (in_turn, None, "interleaved1")):

                def run(config: Any = config, weights: torch.Tensor = weights, concat: Any = concat) -> None:
                    gemms.gemm_gated(
                        x, weights.t(), activation="swiglu", postact_out=theirs, store_preact=False,
                        config=config, concat_layout=concat,
                    )  # fmt: skip

                name = f"{words_of(config)} {layout}"
                if runs_here(run, "quack " + name):
                    candidates.append(Candidate("quack", [run], lambda: {"h": theirs}, config=name))
    x64 = sampled("x", x)
    g64, u64 = x64 @ w_gate.double().t(), x64 @ w_up.double().t()
    exact = {"h": gate64(case, g64, u64, g64)["h"]}
    return Setup(4.0 * m * d * h, 2.0 * (m * d + 2 * h * d + m * h), candidates, exact)


def gate_up_grad(case: Case) -> Setup:
    """QuACK takes g and u, and gives dg and du, with their columns in turn."""
    m, d, h = case.m, case.d, case.h
    dy, w_down = case.normal(m, d), case.normal(d, h, scale=d**-0.5)
    g, u, dg, du, hidden = (case.normal(m, h) for _ in range(5))
    own = Operator("gate_up_grad", case)
    candidates = [
        own.candidate(
            [own.bind(dy=dy, w_down=w_down, g=g, u=u, dg=dg, du=du, h=hidden)],
            {"dg": dg, "du": du, "h": hidden},
        )
    ]
    dh = case.empty(m, h)
    candidates.append(Candidate("cublaslt_gemm", [lambda: torch.mm(dy, w_down, out=dh)], dict))
    if found := quack():
        gemms, configs = found
        pre = torch.stack([g, u], dim=2).reshape(m, 2 * h)
        d_pre, post = torch.empty_like(pre), torch.empty_like(hidden)
        outputs = {"dg": d_pre[:, ::2], "du": d_pre[:, 1::2], "h": post}
        for config, dynamic in itertools.product(configs, (False, True)):

            def run(config: Any = config, dynamic: bool = dynamic) -> None:
                gemms.gemm_dgated(
                    dy, w_down, pre, activation="swiglu", dx_out=d_pre, postact_out=post,
                    config=config, dynamic_scheduler=dynamic,
                )  # fmt: skip

            name = words_of(config) + (" dynamic" if dynamic else "")
            if runs_here(run, "quack " + name):
                candidates.append(Candidate("quack", [run], lambda: outputs, config=name))
    exact = gate64(case, sampled("g", g), sampled("u", u), sampled("dy", dy) @ w_down.double())
    return Setup(2.0 * m * d * h, 2.0 * (m * d + d * h + 5 * m * h), candidates, exact)
