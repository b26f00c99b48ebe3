# SPDX-License-Identifier: Apache-2.0
"""Writes a module with Sluice's MLP as an AOTInductor package, which main.cpp runs: ``export.py OUT.pt2``.
The number of tokens stays open; the operators are called by their names, not compiled in."""

import sys

import torch

from sluice.nn import GatedMLP


def main() -> None:
    """The command line."""
    torch.manual_seed(0)
    module = GatedMLP(64, 96).eval()
    tokens = torch.export.Dim("tokens", min=1, max=4096)
    with torch.no_grad():
        program = torch.export.export(module, (torch.ones(3, 64),), dynamic_shapes=({0: tokens},))
        torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
        x = torch.linspace(-1, 1, 5 * 64).reshape(5, 64)
        print(*(f"{value:.9g}" for value in module(x).flatten().tolist()))


if __name__ == "__main__":
    main()
