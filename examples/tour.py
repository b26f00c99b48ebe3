# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Sluice in ten cells
# Cells for an editor that knows `# %%` (VS Code, PyCharm, Spyder, Jupytext), or one program:
# `python examples/tour.py [FOLDER]` leaves its plots in FOLDER, `out/tour` without one. Needs
# python/requirements.txt and python/requirements-torch.txt.

# %% What is here, and what would run
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch

import sluice
from sluice import Gate, ops

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out/tour")
folder.mkdir(parents=True, exist_ok=True)
device = "cuda" if torch.cuda.is_available() else "cpu"
print(sluice.info())
print(sluice.explain(16, 576, 1536))

# %% One MLP: three weights as Hugging Face keeps them, x [tokens, D]
D, H = 576, 1536  # SmolLM2-135M
torch.manual_seed(0)
w_gate, w_up = (torch.randn(H, D, device=device) * D**-0.5 for _ in range(2))
w_down = torch.randn(D, H, device=device) * H**-0.5
x = torch.randn(16, D, device=device)


def eager(x: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


def fused(x: torch.Tensor) -> torch.Tensor:
    return ops.mlp(x, w_gate, w_up, w_down)


print("largest difference:", float((fused(x) - eager(x)).abs().max()))

# %% The gates, drawn by the library itself: act(g) * 1 over g
g = torch.linspace(-5, 5, 501, device=device)
figure, axes = plt.subplots(figsize=(6, 3.5))
for name in ("silu", "gelu_tanh", "relu", "sigmoid"):
    axes.plot(g.cpu(), ops.gate_mul(g, torch.ones_like(g), gate=Gate(name)).cpu(), label=name)
axes.set(xlabel="g", ylabel="h, with u = 1", title="Gates")
axes.legend()
figure.savefig(folder / "gates.png", dpi=120, bbox_inches="tight")


# %% Time by tokens, the two in turns
def microseconds(function, argument: torch.Tensor) -> float:
    begin = time.perf_counter()
    function(argument)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6


tokens = (1, 4, 16, 64, 256)
medians: dict[str, list[float]] = {"eager": [], "fused": []}
for m in tokens:
    rows = torch.randn(m, D, device=device)
    samples: dict[str, list[float]] = {"eager": [], "fused": []}
    for _ in range(9):
        for name, function in (("eager", eager), ("fused", fused)):
            samples[name].append(microseconds(function, rows))
    for name, values in samples.items():
        medians[name].append(sorted(values)[len(values) // 2])
figure, axes = plt.subplots(figsize=(6, 3.5))
for name, values in medians.items():
    axes.plot(tokens, values, marker="o", label=name)
axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="us", title=f"One MLP on {device}, fp32")
axes.legend()
figure.savefig(folder / "time.png", dpi=120, bbox_inches="tight")

# %% What a training step keeps: x, g and u, or x alone
kept = {}
for recompute in (False, True):
    leaf = x.clone().requires_grad_()
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
        y = ops.mlp(leaf, w_gate, w_up, w_down, recompute=recompute)
    kept["recompute" if recompute else "saved"] = sum(sizes) - 3 * D * H * 4  # without the weights
    y.sum().backward()
figure, axes = plt.subplots(figsize=(4, 3))
axes.bar(list(kept), [size / 1024 for size in kept.values()])
axes.set(ylabel="KiB kept for 16 tokens", title="A training step")
figure.savefig(folder / "memory.png", dpi=120, bbox_inches="tight")
print("kept:", kept)
