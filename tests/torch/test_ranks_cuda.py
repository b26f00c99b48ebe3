# SPDX-License-Identifier: Apache-2.0
"""``group=`` of the operators on two GPUs, a process each: Sluice's own all-reduce against fp64 and beside
NCCL's, in graphs, while buffers grow, and compiled. Skipped where there are fewer; ``SLUICE_TEST_RANKS`` is
another number of them."""

import os
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from cases import Weights, worst
from test_cuda import REASON
from test_ranks import share, summed, summed_norm
from torch import Tensor

from sluice import ops, ranks
from sluice.nn import GatedMLP

RANKS = int(os.environ.get("SLUICE_TEST_RANKS", "2"))
REASON = REASON or ("" if torch.cuda.device_count() >= RANKS else f"fewer than {RANKS} GPUs")
# Decode by one launch and by two, tensor cores, cuBLASLt; with four ranks two-shot sums at the end.
TOKENS = (1, 5, 40, 128, 300, 2048)
D, H = 512, 1024


class Case:
    """A block's operands on this rank, and what is right."""

    def __init__(self, rank: int, m: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> None:
        weights = Weights(D, H, dtype, bias=True)
        x, residual = weights.x(m, seed=seed), weights.x(m, seed=seed + 1)
        self.y, self.bound = (t.cuda(rank) for t in summed(x, weights, residual, RANKS))
        self.x, self.residual, *self.mine = (
            t.cuda(rank) for t in (x, residual, *share(weights, rank, RANKS))
        )
        # One allocation: two may lie 2^40 bytes apart once symmetric memory has reserved addresses.
        self.mine[:2] = torch.cat(self.mine[:2]).chunk(2)

    def ours(self) -> Tensor:
        return ops.mlp(self.x, *self.mine, self.residual, group=dist.group.WORLD)

    def by_nccl(self) -> Tensor:
        y = ops.mlp(self.x, *self.mine[:5])
        dist.all_reduce(y)
        return (y.float() + self.mine[5] + self.residual).to(y.dtype)

    def check(self, y: Tensor, what: object) -> None:
        off = worst(y, self.y, self.bound)
        assert off < 1, (what, off)
        every = [torch.empty_like(y) for _ in range(RANKS)]
        dist.all_gather(every, y)
        assert all(torch.equal(y.view(torch.int16), other.view(torch.int16)) for other in every), what


def peers_of(rank: int) -> ranks.Peers:
    return ranks._peers[dist.group.WORLD.group_name, rank]


def captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    # Of this thread alone: NCCL's watches its collectives meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = step()
    return graph, y


def check_values(rank: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for m in TOKENS:
            case = Case(rank, m, dtype)
            case.check(case.ours(), (dtype, m))
            assert peers_of(rank).serves and peers_of(rank).bytes > 0
            off = worst(case.by_nccl(), case.y, case.bound)
            assert off < 1, ("NCCL", dtype, m, off)
            h = ops.gate_up(case.x, *case.mine[:2], *case.mine[3:5])
            y = ops.linear(h, case.mine[2], case.mine[5], case.residual, group=dist.group.WORLD)
            case.check(y, ("linear", dtype, m))
    # 100 calls in a row, none of which waits for the host.
    case = Case(rank, 16)
    results = [case.ours() for _ in range(100)]
    assert all(torch.equal(y, results[0]) for y in results)
    case.check(results[0], "in a row")


def check_norm(rank: int) -> None:
    for m in TOKENS:
        case = Case(rank, m)
        ones = torch.ones(D, dtype=torch.bfloat16, device=case.x.device)
        n, r = ops.norm(case.x, ones, case.residual)
        weights = Weights(D, H, torch.bfloat16, bias=True)
        case.y, case.bound = (t.cuda(rank) for t in summed_norm(n.cpu(), weights, r.cpu(), RANKS))
        y, got = ops.norm_mlp(
            case.x, ones, *case.mine[:3], case.residual, *case.mine[3:], add_sum=True, group=dist.group.WORLD
        )
        case.check(y, ("norm_mlp", m))
        assert torch.equal(got, r)
        # The next block's norm comes with the sum: of the same y, and the same bits on all ranks.
        other, got, y_norm = ops.norm_mlp(
            case.x, ones, *case.mine[:3], case.residual, *case.mine[3:], add_sum=True, group=dist.group.WORLD,
            next_norm=ones, next_eps=1e-5,
        )  # fmt: skip
        assert torch.equal(other, y) and torch.equal(got, r)
        exact = torch.nn.functional.rms_norm(y.double(), (D,), eps=1e-5)
        case.y, case.bound = exact, 2.0**-7 * exact.abs() + 1e-6
        case.check(y_norm, ("next norm", m))


@mock.patch.object(ranks, "_LEAST_BYTES", 0)  # these sums need less
def check_graphs(rank: int) -> None:
    small, other, large = Case(rank, 16), Case(rank, 16, seed=7), Case(rank, 1200)
    refuses_capture(small, "the group's first call")
    small.check(small.ours(), "eager")
    before = peers_of(rank).bytes
    graph, y = captured(small.ours)
    graph.replay()
    small.check(y, "replayed")
    small.x.copy_(other.x)
    small.residual.copy_(other.residual)
    for _ in range(3):
        y.zero_()
        graph.replay()
    other.check(y, "replayed with other tokens")
    refuses_capture(large, "under graph capture")
    large.check(large.ours(), "large")
    assert peers_of(rank).bytes > before
    graph.replay()
    other.check(y, "from the buffer that was outgrown")
    second, y_large = captured(large.ours)
    for _ in range(5):
        y.zero_()
        y_large.zero_()
        graph.replay()
        second.replay()
    other.check(y, "of two graphs")
    large.check(y_large, "of two graphs")


def refuses_capture(case: Case, text: str) -> None:
    try:
        captured(case.ours)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"captured, wanted an error: {text}")


def check_compiled(rank: int) -> None:
    case = Case(rank, 40)
    mlp = GatedMLP(
        D, H // RANKS, bias=True, group=dist.group.WORLD, device=f"cuda:{rank}", dtype=torch.bfloat16
    )
    gate, up, down, b_gate, b_up, b_down = case.mine
    mlp.load_state_dict({
        "gate_proj.weight": gate, "gate_proj.bias": b_gate, "up_proj.weight": up, "up_proj.bias": b_up,
        "down_proj.weight": down, "down_proj.bias": b_down,
    })  # fmt: skip
    case.check(mlp(case.x, case.residual), "module")
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(mlp, fullgraph=True, mode=mode)
        for _ in range(4):
            case.check(compiled(case.x, case.residual).clone(), mode)


CASES = {"values": check_values, "norm": check_norm, "graphs": check_graphs, "compiled": check_compiled}


def work(rank: int, meeting: str, name: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    with torch.no_grad():
        CASES[name](rank)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


@unittest.skipIf(REASON, REASON)
class OverGpus(unittest.TestCase):
    def run_case(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
            with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
                meeting = str(Path(folder, "meeting"))
                torch.multiprocessing.spawn(work, args=(meeting, name), nprocs=RANKS, join=True)

    def test_values(self) -> None:
        self.run_case("values")

    def test_norm(self) -> None:
        self.run_case("norm")

    def test_graphs(self) -> None:
        self.run_case("graphs")

    def test_compiled(self) -> None:
        self.run_case("compiled")


if __name__ == "__main__":
    unittest.main()
