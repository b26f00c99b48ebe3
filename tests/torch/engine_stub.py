# SPDX-License-Identifier: Apache-2.0
"""What the stand-ins for vLLM and SGLang have alike: sizes, and the activations of two halves."""

from torch import Tensor, nn
from torch.nn import functional

D, H = 24, 40


class SiluAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        g, u = x.chunk(2, -1)
        return functional.silu(g) * u


class GeluAndMul(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        g, u = x.chunk(2, -1)
        return functional.gelu(g, approximate=self.approximate) * u
