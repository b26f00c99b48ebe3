# SPDX-License-Identifier: Apache-2.0
"""A case of the command line, random tensors for it, and what fp64 says of the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from sluice import Gate

Run = Callable[[], Any]
Tensors = dict[str, torch.Tensor]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SAMPLES = 16  # tokens of activations, hidden units of weight gradients


@dataclass
class Case:
    text: str
    m: int
    d: int
    h: int
    op: str = ""
    dtype: str = "bf16"
    gate_multiplier: float = 1.0
    recompute: bool = False
    concat: bool = False  # the weights as halves of one tensor, their gradients too
    torch: bool = False  # mlp_train of Sluice by its Torch operators
    fwd: bool = False  # mlp_train's forward alone, with what its backward needs saved
    variant: str | None = None  # of Sluice, forced
    device: str = "cuda"

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def gate(self) -> Gate:
        return Gate("silu", gate_multiplier=self.gate_multiplier)

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(*shape, device=self.device, dtype=torch.float32)
        return values.mul_(scale).to(self.torch_dtype)

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=self.torch_dtype)


@dataclass
class Candidate:
    """What is timed: a run for every copy of the operands."""

    name: str  # "sluice", or the word of the baseline
    runs: list[Run]
    outputs: Callable[[], Tensors]  # of the first run; of those in `exact`
    variant: str = ""
    config: str = ""
    extra_bytes: int | None = None


@dataclass
class Setup:
    flops: float
    bytes: float
    candidates: list[Candidate]  # Sluice first
    exact: Tensors  # fp64, `sampled` of each output
    restore: Run = field(default=lambda: None)  # before each check, where a rival works in place


def parse(text: str, operators: Any, device: str) -> Case | None:
    """None for a case whose words this program does not know."""
    shape, _, rest = text.partition(":")
    m, d, h = (int(v) for v in shape.split("x"))
    case = Case(text, m, d, h, device=device)
    for word in rest.split(":") if rest else []:
        if word in DTYPES:
            case.dtype = word
        elif word in ("recompute", "concat", "torch", "fwd"):
            setattr(case, word, True)
        elif word.startswith("variant="):
            case.variant = word.split("=")[1]
        elif word.startswith("silu(gate_multiplier="):
            case.gate_multiplier = float(word.split("=")[1].rstrip(")"))
        elif word in operators:
            case.op = word
        else:
            return None
    if (case.concat or case.recompute or case.torch or case.fwd) and case.op != "mlp_train":
        return None
    return case if case.op else None


def pass_of(case: Case) -> str:
    if case.op in ("mlp_train", "gate_mul_full"):
        return "fwd" if case.fwd else "full"
    return "bwd" if case.op.endswith("grad") else "fwd"


def samples_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Tokens of [M, ..], hidden units of weight gradients: each needs few rows of fp64."""
    return tensor[:, :SAMPLES] if name == "dw_down" else tensor[:SAMPLES]


def sampled(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return samples_of(name, tensor).double()


def gate64(case: Case, g: torch.Tensor, u: torch.Tensor, dh: torch.Tensor) -> Tensors:
    v = g.double() * case.gate_multiplier
    s = torch.sigmoid(v)
    slope = case.gate_multiplier * (s + v * s * (1 - s))
    return {"h": v * s * u, "dg": dh * u * slope, "du": dh * (v * s)}
