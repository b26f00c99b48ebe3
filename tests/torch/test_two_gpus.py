# SPDX-License-Identifier: Apache-2.0
"""Two GPUs of one machine: calls on the one that is not current, both at once, and an MLP cut in two,
a process a GPU, whose halves Torch adds. Skipped where there are fewer.

Cut as every tensor-parallel engine does it: each rank has half the rows of w_gate and w_up and half the
columns of w_down, so that gate and products stay a rank's own and y is the sum over the ranks."""

import tempfile
import threading
import unittest
from pathlib import Path

import torch
import torch.distributed
from cases import Oracle, Weights, worst
from test_cuda import REASON
from torch import Tensor

from sluice import ops
from sluice.nn import GatedMLP

RANKS = 2
REASON = REASON or ("" if torch.cuda.device_count() >= RANKS else "one GPU")
# Decode by one launch and by two, tensor cores, tensor cores and cuBLASLt.
SHAPES = ((1, 256, 512), (40, 256, 512), (128, 256, 512), (300, 256, 512), (5, 20, 36))


def on(device: int, *tensors: Tensor | None) -> list[Tensor | None]:
    return [t if t is None else t.to(f"cuda:{device}") for t in tensors]


@unittest.skipIf(REASON, REASON)
class TwoGpus(unittest.TestCase):
    def test_the_one_that_is_not_current(self) -> None:
        for m, d, h in SHAPES:
            weights = Weights(d, h, torch.bfloat16, bias=True)
            results = []
            for device in range(RANKS):
                with torch.cuda.device(1 - device):
                    inputs = on(device, weights.x(m), *weights.mlp())
                    y = ops.mlp(*inputs)
                    self.assertEqual(y.device.index, device)
                    self.assertEqual(torch.cuda.current_device(), 1 - device)
                    leaves = [t.detach().requires_grad_() for t in inputs]
                    gradients = torch.autograd.grad(ops.mlp(*leaves).float().sum(), leaves)
                    results.append([t.cpu() for t in (y, *gradients)])
            for first, second in zip(*results):
                self.assertTrue(torch.equal(first, second), (m, d, h))

    def test_both_at_once_from_a_thread_each(self) -> None:
        for m, d, h in SHAPES:
            weights = Weights(d, h, torch.bfloat16)
            operands = [on(device, weights.x(m), *weights.mlp()) for device in range(RANKS)]
            expected = [ops.mlp(*each) for each in operands]
            wrong: list[int] = []

            def run(device: int, operands: list = operands, expected: list = expected) -> None:
                for _ in range(50):
                    y = ops.mlp(*operands[device])
                if not torch.equal(y, expected[device]):
                    wrong.append(device)

            threads = [threading.Thread(target=run, args=(device,)) for device in range(RANKS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [], (m, d, h))

    def test_an_mlp_cut_in_two_is_within_the_whole_ones_bound(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                sharded_mlp, args=(str(Path(folder, "meeting")),), nprocs=RANKS, join=True
            )


class Copied(torch.autograd.Function):
    """x for each rank; its gradient is the sum of theirs."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: object, dx: Tensor) -> Tensor:
        dx = dx.contiguous()
        torch.distributed.all_reduce(dx)
        return dx


def shard(weights: Weights, rank: int) -> GatedMLP:
    """The module of one rank."""
    mlp = GatedMLP(weights.d, weights.h // RANKS, device=f"cuda:{rank}", dtype=weights.dtype)
    mine = slice(rank * mlp.gate_proj.out_features, (rank + 1) * mlp.gate_proj.out_features)
    mlp.load_state_dict({
        "gate_proj.weight": weights.w_gate[mine], "up_proj.weight": weights.w_up[mine],
        "down_proj.weight": weights.w_down[:, mine],
    })  # fmt: skip
    return mlp


def sharded_mlp(rank: int, meeting: str) -> None:
    """One rank's process: forward, captured and replayed, and backward."""
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    for m, d, h in ((4, 256, 1024), (40, 256, 1024), (300, 256, 1024)):
        check_shard(rank, m, Weights(d, h, torch.bfloat16))
    torch.distributed.destroy_process_group()


def check_shard(rank: int, m: int, weights: Weights) -> None:
    mlp, x = shard(weights, rank), weights.x(m)
    oracle = Oracle(x, weights)
    # Besides what the whole one's y may be off: each rank's half is rounded, and so is their sum.
    halves = [
        oracle.h[:, part] @ weights.w_down.double()[:, part].T
        for part in (slice(0, weights.h // RANKS), slice(weights.h // RANKS, None))
    ]
    bound = oracle.y_bound + 2.0**-8 * (sum(half.abs() for half in halves) + oracle.y.abs())
    x = x.cuda(rank)

    def step() -> Tensor:
        y = mlp(x)
        torch.distributed.all_reduce(y)
        return y

    with torch.no_grad():
        y = step()
        assert worst(y.cpu(), oracle.y, bound) < 1, "eager"
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: NCCL's watches its collectives meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = step()
        for _ in range(3):
            captured.zero_()
            graph.replay()
            assert torch.equal(captured, y), "replayed"
        torch.cuda.synchronize()

    # Gradients of sum(y * dy): each rank's weights are its own rows of the whole one's.
    dy = weights.x(m, seed=2)
    whole = [t.double().requires_grad_() for t in (x.cpu(), *weights.mlp()[:3])]
    g, u = (whole[0] @ w.T for w in whole[1:3])
    exact = torch.autograd.grad((torch.nn.functional.silu(g) * u) @ whole[3].T, whole, dy.double())
    leaf = x.detach().requires_grad_()
    mlp(Copied.apply(leaf)).backward(dy.cuda(rank))
    mine = slice(rank * weights.h // RANKS, (rank + 1) * weights.h // RANKS)
    pairs = (
        ("dx", leaf.grad, exact[0]),
        ("dw_gate", mlp.gate_proj.weight.grad, exact[1][mine]),
        ("dw_up", mlp.up_proj.weight.grad, exact[2][mine]),
        ("dw_down", mlp.down_proj.weight.grad, exact[3][:, mine]),
    )
    for name, got, want in pairs:
        # Four roundings to bf16 on the way (g or u, dg or du, each half of dx, their sum), against
        # the mean over all elements, whose own errors are less.
        off = float((got.cpu().double() - want).abs().mean() / want.abs().mean())
        assert off < 4 * 2.0**-8, (name, off)


if __name__ == "__main__":
    unittest.main()
