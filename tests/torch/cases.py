# SPDX-License-Identifier: Apache-2.0
"""What the tests of the operators share: inputs, the formula in eager Torch, and error bounds."""

import torch
from torch import Tensor
from torch.nn import functional

from sluice import Gate

BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
# The largest slope of any activation (gelu_tanh's, 1.13; alpha 1.702 does not raise silu's 1.1).
STEEPEST = 1.13

ACTIVATIONS = {
    "silu": lambda v, alpha: v * torch.sigmoid(alpha * v),
    "gelu_tanh": lambda v, _: functional.gelu(v, approximate="tanh"),
    "gelu_erf": lambda v, _: functional.gelu(v),
    "relu": lambda v, _: functional.relu(v),
    "sigmoid": lambda v, alpha: torch.sigmoid(alpha * v),
    "identity": lambda v, _: v,
}


def gated(g: Tensor, u: Tensor, gate: Gate = Gate()) -> Tensor:
    """The gate in eager Torch, with its parameters as the library has them: in fp32."""
    alpha, limit, up_offset, gate_multiplier, output_multiplier = torch.tensor(
        [gate.alpha, gate.limit, gate.up_offset, gate.gate_multiplier, gate.output_multiplier]
    ).tolist()
    v = (gate_multiplier * g).clamp(max=limit)
    w = u.clamp(-limit, limit) + up_offset
    return output_multiplier * ACTIVATIONS[gate.activation](v, alpha) * w


class Weights:
    """Weights of one MLP; gate and up differ in scale, so that a swap shows. The same on any device."""

    def __init__(
        self, d: int, h: int, dtype: torch.dtype, *, bias: bool = False, seed: int = 0,
        device: str = "cpu",
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, scale: float) -> Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(device, dtype)

        self.d, self.h, self.dtype, self.device = d, h, dtype, device
        self.w_gate = normal(h, d, scale=1.5 / d**0.5)
        self.w_up = normal(h, d, scale=0.7 / d**0.5)
        self.w_down = normal(d, h, scale=1 / h**0.5)
        self.b_gate = normal(h, scale=0.5) if bias else None
        self.b_up = normal(h, scale=0.3) if bias else None
        self.b_down = normal(d, scale=0.4) if bias else None

    def x(self, *leading: int, dtype: torch.dtype | None = None, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn((*leading, self.d), generator=generator)
        return x.to(self.device, dtype or self.dtype)

    def gate_up(self) -> tuple[Tensor | None, ...]:
        return (self.w_gate, self.w_up, self.b_gate, self.b_up)

    def mlp(self) -> tuple[Tensor | None, ...]:
        return (self.w_gate, self.w_up, self.w_down, self.b_gate, self.b_up, self.b_down)


class Oracle:
    """The MLP in fp64 from the same inputs, and how far a result may be off.

    Dot products of length K accumulate in fp32: at most K 2^-24 of the sum of the products'
    magnitudes. What is stored in a type of b bits is rounded by 2^-b. g's error passes through the
    activation with its steepest slope. The factor 2 covers the products of errors.
    """

    def __init__(self, x: Tensor, weights: Weights, gate: Gate = Gate()) -> None:
        x64 = x.double()
        w_gate, w_up, w_down = (w.double() for w in (weights.w_gate, weights.w_up, weights.w_down))
        zero = torch.zeros(1, dtype=torch.float64, device=x.device)
        b_gate, b_up, b_down = (
            zero if b is None else b.double()
            for b in (weights.b_gate, weights.b_up, weights.b_down)
        )
        self.g, self.u = x64 @ w_gate.T + b_gate, x64 @ w_up.T + b_up
        self.h = gated(self.g, self.u, gate)
        self.y = self.h @ w_down.T + b_down
        stored, sum_ = 2.0 ** -BITS[x.dtype], 2.0**-24 if x.dtype != torch.float64 else 2.0**-53
        error_g = (weights.d + 2) * sum_ * (x64.abs() @ w_gate.abs().T + b_gate.abs())
        error_u = (weights.d + 2) * sum_ * (x64.abs() @ w_up.abs().T + b_up.abs())
        self.g_bound, self.u_bound = 2 * (error_g + stored * self.g.abs()), 2 * (
            error_u + stored * self.u.abs()
        )
        slope = STEEPEST * abs(gate.gate_multiplier * gate.output_multiplier)
        w = self.u.clamp(-gate.limit, gate.limit).abs() + abs(gate.up_offset)
        act = gated(self.g, torch.ones_like(self.u) - gate.up_offset, gate).abs()
        # 8: the activation's own evaluation, a few units in the last place of fp32.
        error_h = slope * error_g * w + act * error_u + (stored + 8 * sum_) * self.h.abs()
        self.h_bound = 2 * error_h + 2.0**-120
        magnitude = self.h.abs() @ w_down.abs().T + b_down.abs()
        self.y_bound = 2 * (
            error_h @ w_down.abs().T + (weights.h + 2) * sum_ * magnitude + stored * self.y.abs()
        )


def worst(got: Tensor, expected: Tensor, bound: Tensor) -> float:
    """The largest error as a fraction of its bound; infinity for a NaN or a wrong shape."""
    if got.shape != expected.shape or not torch.isfinite(got).all():
        return float("inf")
    return float(((got.double() - expected).abs() / bound).max())
