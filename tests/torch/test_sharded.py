# SPDX-License-Identifier: Apache-2.0
"""Two processes over gloo: ``sluice.patch`` under FSDP2 and under tensor parallelism, served or left to
Torch, and ``gate_mul`` on DTensors; the numbers of one process either way."""

import copy
import unittest
from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist
from gloo_ranks import WORLD, run_ranks
from test_modules import TOKENS, mlps, randomise, small_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sluice
from sluice import ops, patching
from sluice.liger import LigerGELUMulFunction, LigerSiLUMulFunction


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of the loss over TOKENS, whole on every rank; the loss is one of them."""
    loss = model(TOKENS, labels=TOKENS).loss
    loss.backward()
    out = {"loss": loss.detach()}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        out[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return out


def served_calls(run: Callable[[], dict]) -> tuple[dict, int]:
    """What `run` returns, and how often a patched module called Sluice."""
    with mock.patch.object(patching, "_ours", wraps=patching._ours) as ours:
        return run(), ours.call_count


def shard_in_full(model: nn.Module, mesh) -> None:
    """FSDP2 as its users have it: each layer, then the rest."""
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shard_projections(model: nn.Module, mesh) -> None:
    """Megatron's plan: gate and up by columns, down by rows."""
    plan = {
        "gate_proj": ColwiseParallel(),
        "up_proj": ColwiseParallel(),
        "down_proj": RowwiseParallel(),
    }
    for mlp in mlps(model):
        parallelize_module(mlp, mesh, plan)


def _case(_rank: int, name: str) -> None:
    CASES[name](init_device_mesh("cpu", (WORLD,)))


def _same_as_alone(shard: Callable, mesh, *, patch_first: bool, served: bool, **options) -> None:
    model = randomise(small_model("Qwen2MLP")).train()
    expected = gradients(copy.deepcopy(model))
    if patch_first:
        patched = sluice.patch(model, **options)
        shard(model, mesh)
    else:
        shard(model, mesh)
        patched = sluice.patch(model, **options)
    got, calls = served_calls(lambda: gradients(model))
    assert (calls > 0) == served, f"{calls} calls of Sluice; {patched}"
    assert set(got) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")


GATE_MULS = (
    ops.gate_mul,
    LigerGELUMulFunction.apply,
    lambda a, b: LigerSiLUMulFunction.apply(a, b, 1.5, 0.5),
)


def _gate_mul_on_dtensors(mesh) -> None:
    """The result and the gradients are those of whole tensors, and lie where a and b do."""
    for size in ((2, 3, 8), (3, 5, 41)):  # 41 and 3 do not halve
        torch.manual_seed(0)
        whole = [torch.randn(size, requires_grad=True) for _ in range(2)]
        dy = torch.randn(size)
        for function in GATE_MULS:
            y = function(*whole)
            want = [y, *torch.autograd.grad(y, whole, dy)]
            for place, other, result in (
                (Shard(0), Shard(0), Shard(0)), (Shard(1), Shard(1), Shard(1)),
                (Shard(2), Shard(2), Shard(2)), (Replicate(), Replicate(), Replicate()),
                (Shard(2), Replicate(), Shard(2)), (Shard(0), Shard(2), None),
                (Shard(2), None, Shard(2)), (None, Shard(0), Shard(0)),
            ):  # fmt: skip
                given = [
                    t.detach().clone().requires_grad_() if p is None else
                    distribute_tensor(t.detach(), mesh, [p]).requires_grad_()
                    for t, p in zip(whole, (place, other))
                ]  # fmt: skip
                y = function(*given)
                assert result is None or y.placements == (result,), (place, other, y.placements)
                placed = [t for t in given if isinstance(t, DTensor)]
                got = [y, *torch.autograd.grad(y, placed, distribute_tensor(dy, mesh, y.placements))]
                for one, t in zip(got[1:], placed):
                    assert one.shape == t.shape
                    assert result is None or one.placements == y.placements
                expected = [want[0], *(w for w, t in zip(want[1:], given) if isinstance(t, DTensor))]
                for one, value in zip(got, expected):
                    torch.testing.assert_close(one.full_tensor(), value, rtol=0, atol=0)
    # Sums that no rank has yet are made first: act of a part is no part of act.
    part = DTensor.from_local(whole[0].detach() / WORLD, mesh, [Partial()])
    y = ops.gate_mul(part, distribute_tensor(whole[1].detach(), mesh, [Replicate()]))
    torch.testing.assert_close(y.full_tensor(), ops.gate_mul(*whole), rtol=0, atol=0)


CASES = {
    "gate_mul": _gate_mul_on_dtensors,
    # FSDP gathers a layer's weights into plain parameters before its forward.
    "fsdp": lambda mesh: _same_as_alone(shard_in_full, mesh, patch_first=True, served=True),
    "fsdp_recompute": lambda mesh: _same_as_alone(
        shard_in_full, mesh, patch_first=True, served=True, recompute=True
    ),
    # What patch() sees then are shards, so it leaves the modules.
    "fsdp_before_patch": lambda mesh: _same_as_alone(
        shard_in_full, mesh, patch_first=False, served=False
    ),
    # A projection's hooks exchange activations: Sluice would pass them by.
    "tensor_parallel": lambda mesh: _same_as_alone(
        shard_projections, mesh, patch_first=True, served=False
    ),
    "tensor_parallel_before_patch": lambda mesh: _same_as_alone(
        shard_projections, mesh, patch_first=False, served=False
    ),
}


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "no gloo")
class Sharded(unittest.TestCase):
    def run_case(self, case: str) -> None:
        run_ranks(_case, case)

    def test_gate_mul_on_dtensors(self) -> None:
        self.run_case("gate_mul")

    def test_fsdp_is_served(self) -> None:
        self.run_case("fsdp")

    def test_fsdp_is_served_with_recompute(self) -> None:
        self.run_case("fsdp_recompute")

    def test_shards_are_left_to_torch(self) -> None:
        self.run_case("fsdp_before_patch")

    def test_tensor_parallel_projections_are_left_to_torch(self) -> None:
        self.run_case("tensor_parallel")
        self.run_case("tensor_parallel_before_patch")


if __name__ == "__main__":
    unittest.main()
