# SPDX-License-Identifier: Apache-2.0
"""The plug-ins' sums over ranks on two GPUs: by ladder and by force, called and replayed. Skipped where there are fewer."""

import logging
import tempfile
import types
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from test_cuda import REASON
from torch import Tensor
from torch.nn import functional

from sluice.serving import operators, reduced

RANKS = 2
REASON = REASON or ("" if torch.cuda.device_count() >= RANKS else "one GPU")
D, H, K = 1024, 1536, 512  # of a rank
REPLAYS = 300


def sum_over_ranks(x: Tensor) -> Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y


class Layer:
    """Weights of this rank and inputs of all, the operators on them and their formulas."""

    def __init__(self, rank: int, word: str) -> None:
        def made(*shape: int, scale: float = 0.02) -> Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale

        torch.manual_seed(rank)
        self.gate_up, self.down, self.output, self.heads = made(2 * H, D), made(D, H), made(D, K), made(700, K)
        torch.manual_seed(7)
        self.x, self.residual, self.norm = made(700, D, scale=1), made(700, D, scale=1), made(D, scale=1)
        self.word = word

    def run(self, m: int) -> tuple[Tensor, ...]:
        ops, heads = torch.ops.sluice_serving, self.heads[:m]
        n, r = ops.linear_reduce_norm(heads, self.output, self.residual[:m], self.norm, 1e-5, self.word)
        y = ops.mlp_reduce(self.x[:m], self.gate_up, self.down, 0, self.word)
        return y, ops.linear_reduce(heads, self.output, self.word), r, n

    def expected(self, m: int) -> tuple[Tensor, ...]:
        g, u = (self.x[:m] @ self.gate_up.T).float().chunk(2, 1)
        y = sum_over_ranks((functional.silu(g) * u).bfloat16() @ self.down.T)
        z = sum_over_ranks(self.heads[:m] @ self.output.T)
        r = z + self.residual[:m]
        return y, z, r, functional.rms_norm(r.float(), (D,), self.norm.float(), 1e-5)

    def check(self, m: int, got: tuple[Tensor, ...]) -> None:
        for name, mine, wanted in zip("yzrn", got, self.expected(m)):
            worst = (mine.float() - wanted.float()).abs().max() / wanted.float().abs().max()
            assert worst < 8 * 2.0**-8, (m, name, worst)


def check(rank: int, meeting: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank)
    )
    group = types.SimpleNamespace(ranks=list(range(RANKS)), rank_in_group=rank)
    operators.load()
    reduced.configure(sum_over_ranks)
    layer = Layer(rank, reduced.use_group("tp:0", dist.group.WORLD))
    for mode in ("auto", "force"):
        operators.configure(mode, logging.getLogger("sluice.test"), lambda: group)
        for m in (700, 1, 3, 16, 64, 100, 300, 512):  # the most first, as engines do
            layer.check(m, layer.run(m))
        stream = torch.cuda.Stream()
        for m in (1, 16, 64):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                layer.run(m)
                graph.capture_begin()
                results = layer.run(m)
                graph.capture_end()
            torch.cuda.synchronize()
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
            layer.check(m, results)
    assert reduced.calls["sluice"] > 0
    dist.destroy_process_group()


@unittest.skipIf(REASON, REASON)
class SumsOnTwoGpus(unittest.TestCase):
    def test_every_mode_called_and_replayed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(check, (str(Path(folder, "meeting")),), nprocs=RANKS)


if __name__ == "__main__":
    unittest.main()
