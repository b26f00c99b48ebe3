# SPDX-License-Identifier: Apache-2.0
"""``group=`` of the operators on CPUs: two processes over gloo against fp64, what is refused, and the
bookkeeping of peer buffers with symmetric memory that is none. On GPUs: test_ranks_cuda.py."""

import contextlib
import copy
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from cases import BITS, STEEPEST, Oracle, Weights, gated, worst
from gloo_ranks import WORLD, run_ranks
from torch import Tensor

from sluice import ops
from sluice.nn import GatedMLP

D, H = 24, 40


def share(weights: Weights, rank: int, world: int = WORLD) -> tuple[Tensor | None, ...]:
    """A rank's operands of ``ops.mlp`` behind x."""
    part = slice(rank * weights.h // world, (rank + 1) * weights.h // world)
    gate, up, down, b_gate, b_up, b_down = weights.mlp()
    b_gate, b_up = (b if b is None else b[part] for b in (b_gate, b_up))
    return gate[part], up[part], down[:, part].contiguous(), b_gate, b_up, b_down


def summed(x: Tensor, weights: Weights, residual: Tensor, world: int = WORLD) -> tuple[Tensor, Tensor]:
    """y in fp64 and its bound: besides what a whole one's may be off, each part and every partial sum of them
    is rounded, and so is what bias and residual are added to."""
    y, bound, _ = _summed(x, weights, residual, world)
    return y, bound


def summed_norm(n: Tensor, weights: Weights, residual: Tensor, world: int = WORLD) -> tuple[Tensor, Tensor]:
    """The same of a norm's result n, which a kernel may round elsewhere (docs/numerics.md): its error, two
    roundings, goes through g and u."""
    y, bound, oracle = _summed(n, weights, residual, world)
    error = 2 * 2.0 ** -BITS[n.dtype] * n.double().abs()
    g, u = (error @ w.double().abs().T for w in (weights.w_gate, weights.w_up))
    act = gated(oracle.g, torch.ones_like(oracle.u)).abs()
    return y, bound + 2 * (STEEPEST * g * oracle.u.abs() + act * u) @ weights.w_down.double().abs().T


def _summed(x: Tensor, weights: Weights, residual: Tensor, world: int) -> tuple[Tensor, Tensor, Oracle]:
    oracle = Oracle(x, weights)
    bias = 0 if weights.b_down is None else weights.b_down.double()
    width = weights.h // world
    parts = [
        oracle.h[:, r * width : (r + 1) * width] @ weights.w_down.double()[:, r * width : (r + 1) * width].T
        for r in range(world)
    ]
    y = oracle.y + residual.double()
    magnitude = world * sum(part.abs() for part in parts) + y.abs() + (oracle.y - bias).abs()
    return y, oracle.y_bound + 2.0 ** -BITS[x.dtype] * magnitude, oracle


def check_all(rank: int) -> None:
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            check_values(rank, dtype)
        check_module(rank)
    check_errors(rank)
    check_choice(rank)


def check_values(rank: int, dtype: torch.dtype) -> None:
    weights, world = Weights(D, H, dtype, bias=True), dist.group.WORLD
    x, residual = weights.x(3), weights.x(3, seed=2)
    y, bound = summed(x, weights, residual)
    mine = share(weights, rank)
    for group in (world, world.group_name):
        assert worst(ops.mlp(x, *mine, residual, group=group), y, bound) < 1, (dtype, group)
    h = ops.gate_up(x, *mine[:2], *mine[3:5])
    for function in (ops.down, ops.linear):
        assert worst(function(h, mine[2], mine[5], residual, group=world), y, bound) < 1, (dtype, function)
    # RMSNorm alone has its own tests: what is summed is mlp of its result.
    ones = torch.ones(D, dtype=dtype)
    n, r = ops.norm(x, ones, residual)
    y, bound = summed_norm(n, weights, r)
    got, got_r = ops.norm_mlp(x, ones, *mine[:3], residual, *mine[3:], add_sum=True, group=world)
    assert torch.equal(got_r, r)
    assert worst(got, y, bound) < 1, dtype
    assert ops.mlp(x[:0], *mine, group=world).shape == (0, D)
    check_next_norm(x, mine, residual, world)


def check_next_norm(x: Tensor, mine: tuple[Tensor | None, ...], residual: Tensor, group: Any) -> None:
    """y is as without it, y_norm is norm's of y; without a group too."""
    weight = 1 + torch.arange(D, dtype=x.dtype) / 8
    more = {"next_norm": weight, "next_eps": 0.5, "next_weight_offset": 0.25}
    norm_mlp = (x, weight, *mine[:3], residual, *mine[3:])
    h = ops.gate_up(x, *mine[:2], *mine[3:5])
    for place in (None, group):
        for function, operands in (
            (ops.mlp, (x, *mine, residual)), (ops.norm_mlp, norm_mlp), (ops.linear, (h, mine[2], mine[5], residual))
        ):  # fmt: skip
            alone = function(*operands, group=place)
            *results, y_norm = function(*operands, group=place, **more)
            wanted = (alone,) if isinstance(alone, Tensor) else alone
            assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True)), (function, place)
            n, _ = ops.norm(results[0], weight, eps=0.5, weight_offset=0.25)
            assert torch.equal(y_norm, n), (function, place)


def check_module(rank: int) -> None:
    weights = Weights(D, H, torch.float32)
    mlp = GatedMLP(D, H // WORLD, group=dist.group.WORLD)
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    mlp.load_state_dict(dict(zip(names, share(weights, rank))))
    x = weights.x(3)
    y, bound = summed(x, weights, torch.zeros(1))
    for module in (mlp, copy.deepcopy(mlp), torch.compile(mlp, fullgraph=True)):
        assert worst(module(x), y, bound) < 1


def check_errors(rank: int) -> None:
    weights = Weights(D, H, torch.float32)
    x, mine = weights.x(3), share(weights, rank)
    for group, leaf, text in (
        (dist.group.WORLD, x.clone().requires_grad_(), "want a gradient, wanted none.*torch.no_grad"),
        (3, x, "group: got int, wanted a torch.distributed.ProcessGroup"),
        ("no such group", x, "group: got 'no such group', wanted the name"),
    ):
        for call in (
            lambda: ops.mlp(leaf, *mine, group=group),
            lambda: ops.down(leaf[:, : H // WORLD], mine[2], group=group),
            lambda: ops.norm_mlp(leaf, torch.ones(D), *mine[:3], group=group),
        ):
            with unittest.TestCase().assertRaisesRegex(ValueError, text):
                call()


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "no gloo")
class OverRanks(unittest.TestCase):
    def test_two_processes(self) -> None:
        run_ranks(check_all)

    def test_the_operators_below_refuse_cpus_and_other_numbers_of_ranks(self) -> None:
        weights = Weights(D, H, torch.bfloat16)
        operands = weights.x(3), *weights.mlp()[:3]
        for peers, text in (
            ([0, 0], "cpu.*has no all_reduce"),
            ([0] * 3, "reduce.world: got 3, wanted 2, 4 or 8"),
            ([0] * 9, "peers: got 9, wanted 2, 4 or 8"),
        ):
            with self.assertRaisesRegex((ValueError, RuntimeError), text):
                torch.ops.sluice._mlp_reduce(*operands, rank=0, peers=peers, peer_bytes=0)

    def test_fakes_have_the_shapes(self) -> None:
        with torch._subclasses.FakeTensorMode():
            x, h = torch.empty(2, 3, D), torch.empty(2, 3, H)
            wide, narrow = torch.empty(H, D), torch.empty(D, H)
            self.assertEqual(ops.mlp(x, wide, wide, narrow, group="any").shape, (2, 3, D))
            self.assertEqual(ops.linear(h, narrow, group="any").shape, (2, 3, D))
            y, r = ops.norm_mlp(x, torch.empty(D), wide, wide, narrow, x, group="any")
            self.assertEqual((y.shape, r.shape), ((2, 3, D), (2, 3, D)))
            more = {"group": "any", "next_norm": torch.empty(D)}
            for results in (
                ops.linear(h, narrow, **more), ops.mlp(x, wide, wide, narrow, **more),
                ops.norm_mlp(x, torch.empty(D), wide, wide, narrow, x, **more),
            ):  # fmt: skip
                self.assertEqual([t.shape for t in results], [(2, 3, D)] * len(results))


def check_choice(rank: int) -> None:
    """Of who sums, for operands that say that they lie on a GPU, by what real ranks tell each other."""
    from sluice import ranks

    place = types.SimpleNamespace(index=0)

    def choice(dtype: torch.dtype, d: int = D, h: int = H, group: Any = dist.group.WORLD) -> tuple | None:
        x = types.SimpleNamespace(dtype=dtype, device=place, is_cuda=True)
        w_down = types.SimpleNamespace(dtype=torch.bfloat16, shape=(d, h))
        return ranks._by_sluice(x, w_down, group, lambda rank, peers, size: (rank, size, 70000))

    machine = Machine()
    machine.gpu = f"GPU {rank}"
    with machine.installed(gather=dist.all_gather_object):
        for dtype, d, h in ((torch.float32, D, H), (torch.float16, D, H), (torch.bfloat16, 20, H)):
            assert choice(dtype, d, h) is None
        assert not ranks._peers
        assert choice(torch.bfloat16) == choice(torch.bfloat16) == (rank, ranks._LEAST_BYTES)
        assert len(ranks._peers) == machine.rendezvous_count == 1
        name = dist.group.WORLD.group_name
        other = dist.new_group(range(WORLD))
        ranks._peers[other.group_name, 0] = ranks._peers[name, 0]  # as of a group that had its name
        assert choice(torch.bfloat16, group=other) == (rank, ranks._LEAST_BYTES)
        assert machine.rendezvous_count == 2
    machine.gpu = "the same"
    ranks._peers.clear()
    with machine.installed(gather=dist.all_gather_object):
        assert choice(torch.bfloat16) is None


class Group:
    """What ``Peers`` asks of a process group of two, of which this is rank 1."""

    group_name = "fake"

    def __init__(self, world: int = 2) -> None:
        self.world = world

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return self.world


class Machine:
    """GPUs and symmetric memory in place of Torch's, and the other ranks' words."""

    def __init__(self) -> None:
        self.capturing, self.gpu = False, "GPU"
        self.fails = ""
        self.rendezvous_count = 0
        self.of_others = lambda mine, rank: (  # a device each, else what this rank says
            (mine[0], f"GPU {rank}", mine[2]) if isinstance(mine, tuple) else mine
        )

    def gather(self, every: list, mine: object, group: Group) -> None:
        every[:] = [mine if r == group.rank() else self.of_others(mine, r) for r in range(len(every))]

    def rendezvous(self, memory: Tensor, name: str) -> types.SimpleNamespace:
        if self.fails:
            raise RuntimeError(self.fails)
        assert name and not memory.any()
        self.rendezvous_count += 1
        return types.SimpleNamespace(buffer_ptrs=[memory.data_ptr() + r for r in range(2)])

    @contextlib.contextmanager
    def installed(self, gather: Callable | None = None) -> Iterator[None]:
        from sluice import ranks

        properties = types.SimpleNamespace(uuid=self.gpu, major=9)
        with (
            mock.patch.multiple(
                torch.cuda, synchronize=lambda: None, device=contextlib.nullcontext,
                is_current_stream_capturing=lambda: self.capturing,
                get_device_properties=lambda _: properties,
            ),
            mock.patch.object(ranks.dist, "all_gather_object", gather or self.gather),
            mock.patch.object(ranks.symmetric, "empty", lambda size, **_: torch.ones(size, dtype=torch.uint8)),
            mock.patch.object(ranks.symmetric, "rendezvous", self.rendezvous),
        ):  # fmt: skip
            yield


@unittest.skipUnless(dist.is_available(), "no torch.distributed")
class Buffers(unittest.TestCase):
    def setUp(self) -> None:
        from sluice import ranks

        self.ranks = ranks
        self.machine, self.least = Machine(), ranks._LEAST_BYTES
        self.groups: list[Group] = []  # a buffer keeps none alive
        self.enterContext(self.machine.installed())

    def peers(self, world: int = 2) -> Any:
        self.groups.append(Group(world))
        return self.ranks.Peers(self.groups[-1], torch.device("cpu"), True)

    def call(self, peers: Any, wanted: int) -> tuple | None:
        """What the operator is given in the end, or None for Torch."""
        return peers.run(lambda rank, buffers, size: ((rank, list(buffers), size), wanted))

    def test_a_buffer_serves_until_a_larger_one_is_wanted(self) -> None:
        peers = self.peers()
        first = self.call(peers, 70000)
        self.assertEqual(first[0][::2], (1, self.least))
        self.assertEqual(first[0][1], [peers.memory[0].data_ptr(), peers.memory[0].data_ptr() + 1])
        self.assertEqual(self.call(peers, self.least), first)
        self.assertEqual(self.machine.rendezvous_count, 1)
        grown = self.call(peers, self.least + 512)
        self.assertEqual(grown[0][2], 2 * self.least)
        self.assertNotEqual(grown[0][1], first[0][1])
        self.assertEqual(self.call(peers, 70000), grown)  # the same on all ranks, whatever it needs
        self.assertEqual([m.numel() for m in peers.memory], [self.least, 2 * self.least])  # graphs have the first

    def test_a_capture_uses_what_there_is_and_refuses_to_grow(self) -> None:
        peers = self.peers()
        before = self.call(peers, 70000)
        self.machine.capturing = True
        self.assertEqual(self.call(peers, 80000), before)
        more = self.least + 512
        text = f"{more} bytes where {self.least} are there under graph capture"
        with self.assertRaisesRegex(ValueError, text):
            self.call(peers, more)
        with self.assertRaisesRegex(ValueError, "the group's first call under graph capture"):
            self.peers()
        self.machine.capturing = False
        self.assertIsNotNone(self.call(peers, more))

    def test_ranks_that_ask_for_different_sums_are_told(self) -> None:
        peers = self.peers()
        self.machine.of_others = lambda mine, _: mine + 512
        with self.assertRaisesRegex(ValueError, r"\[70512, 70000\] bytes, wanted one problem"):
            self.call(peers, 70000)
        self.assertEqual(self.machine.rendezvous_count, 0)

    def test_torch_sums_where_sluice_does_not(self) -> None:
        for world in (1, 3, 6, 16):
            self.assertIsNone(self.call(self.peers(world), 70000), world)
        self.assertIsNone(self.call(self.peers(), self.ranks._MOST_BYTES + 512))
        words = self.machine.of_others
        for other in (("elsewhere", "GPU 0", True), ("", "GPU", True), ("", "GPU 0", False)):
            self.machine.of_others = lambda mine, _, other=other: (other[0] or mine[0], *other[1:])
            self.assertIsNone(self.call(self.peers(), 70000), other)
        self.machine.of_others = words
        self.assertEqual(self.machine.rendezvous_count, 0)

    def test_uneven_shards_take_one_collective(self) -> None:
        device = torch.device("cuda", 0)
        x = types.SimpleNamespace(dtype=torch.bfloat16, is_cuda=True, device=device)
        words = self.machine.of_others
        for h, whole_elsewhere, summed in ((48, True, True), (48, False, False), (44, True, False)):
            self.machine.of_others = lambda mine, rank, whole=whole_elsewhere: (
                (*words(mine, rank)[:2], whole) if isinstance(mine, tuple) else mine
            )
            w_down = types.SimpleNamespace(dtype=torch.bfloat16, shape=(64, h))
            group = Group(2)
            with mock.patch.dict(self.ranks._peers, clear=True):
                for _ in range(2):
                    found = self.ranks._by_sluice(x, w_down, group, lambda *_: ("y", 0))
                    self.assertEqual(found is not None, summed, (h, whole_elsewhere))
        self.machine.of_others = words

    def test_a_rank_without_symmetric_memory_sends_all_to_torch(self) -> None:
        for here, there in (("no peer access", ""), ("", "no peer access")):
            peers = self.peers()
            self.machine.fails = here
            words = self.machine.of_others
            self.machine.of_others = lambda mine, rank, there=there, words=words: (
                    there if isinstance(mine, str) else words(mine, rank)
                )
            with self.assertLogs("sluice", "WARNING") as logs:
                self.assertIsNone(self.call(peers, 70000))
            self.assertIn(f"rank {1 if here else 0}: no peer access", logs.output[0])
            self.assertIsNone(self.call(peers, 70000))
            self.machine.fails, self.machine.of_others = "", words


if __name__ == "__main__":
    unittest.main()
