# SPDX-License-Identifier: Apache-2.0
"""A training loop with sluice.nn.GatedMLP: a small residual network of RMSNorm and gated MLPs learns to
undo a random rotation of its inputs.

    pip install --no-build-isolation .  -r python/requirements-torch.txt
    python examples/train.py [--recompute] [--device cuda] [--steps 60]

Parameters are ordinary Parameters: any optimiser, gradient scaler, checkpoint or torch.compile takes
them. --recompute keeps x alone of each block for the backward pass, and g and u are computed again."""

import argparse
import sys

import torch
from torch import Tensor, nn

from sluice.nn import GatedMLP
from sluice.pipe import end_with_reader


class Block(nn.Module):
    """x + MLP(norm(x)); the residual is added inside the operator."""

    def __init__(self, d: int, h: int, *, recompute: bool) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.mlp = GatedMLP(d, h, recompute=recompute)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x), residual=x)


def main() -> int:
    """Returns the exit status: 0 where the loss has fallen by half."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    d, h, tokens = 64, 192, 256
    model = nn.Sequential(*(Block(d, h, recompute=arguments.recompute) for _ in range(2)))
    model.to(arguments.device)
    rotation = torch.linalg.qr(torch.randn(d, d))[0].to(arguments.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(arguments.steps):
        target = torch.randn(tokens, d, device=arguments.device)
        loss = (model(target @ rotation) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if step % 10 == 0 or step + 1 == arguments.steps:
            print(f"step {step:>3}  loss {losses[-1]:.4f}")
    return 0 if losses[-1] < 0.5 * losses[0] else 1


if __name__ == "__main__":
    end_with_reader()
    sys.exit(main())
