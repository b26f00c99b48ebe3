# SPDX-License-Identifier: Apache-2.0
"""What ``group=`` of ``sluice.ops`` does: y summed over the ranks of a process group, for inference.

    p(r)   = h(r) @ w_down(r).T          of rank r, rounded to y's type
    y      = p(0) + p(1) + ... + b_down + residual
    y_norm = y / sqrt(mean(y^2) + next_eps) * (next_norm + next_weight_offset)     with next_norm [D]

Between 2, 4 or 8 GPUs of one host that reach each other's memory, in bf16 or fp16 with D and H multiples of 8,
Sluice's own all-reduce sums, behind the GEMM and in its plan: in fp32, in the order of ranks, the same bits on
all of them. Anywhere else (CPUs, other types and numbers of ranks, sums that need more than 256 MiB)
``torch.distributed.all_reduce`` sums what the operator without ``group`` gives, in its own order and
rounding; b_down and residual are then added in fp32, and ``norm`` follows.

The ranks' choice is one: it depends on what they have told each other at the group's first call, and on the
problem: where a rank's H is no multiple of 8 at that call, Torch sums from then on. So does the form of the
collective; GEMMs tuned differently change nothing that ranks exchange.

Peer buffers come from Torch's symmetric memory, one a group and device. The first call of a group, and one
that needs a larger buffer than any before, is collective, waits for the GPU, and is a ``ValueError`` under
graph capture: run the largest problem once before. A buffer that was outgrown stays, for the graphs that
hold it.

As with any collective all ranks make the same calls in the same order. Calls of one group and device follow
each other, replays too: on one stream, or with events between streams. A rank that waits 10 minutes for
another gives NaN from then on. ``ValueError`` also where ranks ask for different sums and where the name is
no group's.
"""

from __future__ import annotations

import functools
import logging
import socket
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor
from torch.distributed import distributed_c10d

_ops = torch.ops.sluice
_WORLDS = (2, 4, 8)
_TYPES = (torch.bfloat16, torch.float16)
_LEAST_BYTES = 16 << 20
_MOST_BYTES = 256 << 20  # outgrown buffers stay; above, the links' bandwidth counts, and Torch's has it
_log = logging.getLogger("sluice")

# An operator of (rank, peers, peer_bytes): its results, and the bytes that it needs of each peer.
Run = Callable[[int, list[int], int], tuple[Any, ...]]


class Peers:
    """A group's buffers on one device, as this rank addresses them."""

    def __init__(self, group: Any, device: torch.device, whole_units: bool) -> None:
        _refuse_capture(device, "the group's first call")
        self.group = weakref.ref(group)
        self.device = device
        self.rank: int = group.rank()
        self.buffers = [0] * group.size()
        self.bytes = 0
        self.memory: list[Tensor] = []  # graphs have the addresses of all
        self.serves = len(self.buffers) in _WORLDS and self._are_neighbours(group, whole_units)

    def run(self, run: Run) -> tuple[Any, ...] | None:
        """The operator's results, or nothing where Torch is to sum."""
        if not self.serves:
            return None
        *results, wanted = run(self.rank, self.buffers, self.bytes)
        if wanted <= self.bytes:
            return tuple(results)
        if wanted > _MOST_BYTES:
            return None
        self._grow(wanted)
        return self.run(run)

    def _are_neighbours(self, group: Any, whole_units: bool) -> bool:
        properties = torch.cuda.get_device_properties(self.device)
        mine = (socket.gethostname(), str(properties.uuid), properties.major >= 8 and whole_units)
        hosts, devices, known = zip(*self._gather(group, mine))
        return len(set(hosts)) == 1 and len(set(devices)) == len(devices) and all(known)

    def _gather(self, group: Any, mine: Any) -> list[Any]:
        """Every rank's; none is behind the call before all have reached it."""
        every: list[Any] = [None] * group.size()
        with torch.cuda.device(self.device):
            dist.all_gather_object(every, mine, group=group)
        return every

    def _grow(self, wanted: int) -> None:
        _refuse_capture(self.device, f"a sum that needs {wanted} bytes where {self.bytes} are there")
        group = self.group()
        asked = self._gather(group, wanted)
        if asked.count(wanted) != len(asked):
            raise ValueError(f"group: ranks ask for buffers of {asked} bytes, wanted one problem on all")
        failure = ""
        try:
            memory, buffers = self._allocate(group, max(_LEAST_BYTES, 1 << (wanted - 1).bit_length()))
        except RuntimeError as error:
            failure = str(error).splitlines()[0]
        failures = [f"rank {rank}: {text}" for rank, text in enumerate(self._gather(group, failure)) if text]
        if failures:
            _log.warning("group: no symmetric memory (%s); torch.distributed sums", "; ".join(failures))
            self.serves = False
            return
        self.memory.append(memory)
        self.buffers, self.bytes = buffers, memory.numel()

    def _allocate(self, group: Any, size: int) -> tuple[Tensor, list[int]]:
        """A zeroed buffer, and where each rank's is."""
        with torch.cuda.device(self.device):
            memory = symmetric.empty(size, dtype=torch.uint8, device=self.device)
            memory.zero_()
            buffers = [int(address) for address in symmetric.rendezvous(memory, group.group_name).buffer_ptrs]
            torch.cuda.synchronize()
        return memory, buffers


_peers: dict[tuple[str, int], Peers] = {}


def _refuse_capture(device: torch.device, what: str) -> None:
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise ValueError(f"group: got {what} under graph capture, wanted one such call before it")


def _group_of(name: str) -> Any:
    try:
        return distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"group: got {name!r}, wanted the name of a process group") from error


def _by_sluice(x: Tensor, w_down: Tensor, group: Any, run: Run) -> tuple[Any, ...] | None:
    """The operator's results, or nothing where Torch is to sum."""
    d, h = w_down.shape
    fits = x.dtype in _TYPES and w_down.dtype == x.dtype and d % 8 == 0
    if not (fits and x.is_cuda):
        return None
    key = (group.group_name, x.device.index)
    peers = _peers.get(key)
    if peers is None or peers.group() is not group:  # a later group may have an earlier one's name
        # With uneven shards of H one rank would wait in another collective than the others: they ask first.
        peers = _peers[key] = Peers(group, x.device, h % 8 == 0)
    return peers.run(run) if h % 8 == 0 else None


def _by_torch(part: Tensor, group: Any, b_down: Tensor | None, residual: Tensor | None) -> Tensor:
    dist.all_reduce(part, group=group)
    if b_down is None and residual is None:
        return part
    y = part.to(torch.promote_types(part.dtype, torch.float32))
    for term in (b_down, residual):
        y = y if term is None else y + term
    return y.to(part.dtype)


@functools.cache
def _defaults(op: Any) -> tuple[Any, ...]:
    return tuple(argument.default_value for argument in op.default._schema.arguments)


def _whole(op: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments but the group: the dispatcher leaves out those that have their default."""
    return arguments + _defaults(op)[len(arguments) :]


def _with_norm(
    y: Tensor, next_norm: Tensor | None = None, next_eps: float = 1e-6, next_weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    if next_norm is None:
        return y, y.new_empty(0)
    return y, _ops.norm.default(y, next_norm, None, next_eps, next_weight_offset)[0]


def down_reduce(*given: Any, group: str, **next_norm: Any) -> tuple[Tensor, Tensor]:
    arguments, ranks = _whole(_ops.down, given), _group_of(group)
    h, w_down, b_down, residual, weights_static = arguments

    def run(rank: int, peers: list[int], peer_bytes: int) -> tuple[Any, ...]:
        return _ops._down_reduce.default(
            *arguments, rank=rank, peers=peers, peer_bytes=peer_bytes, **next_norm
        )

    if results := _by_sluice(h, w_down, ranks, run):
        return results[0], results[1]
    part = _ops.down.default(h, w_down, None, None, weights_static)
    return _with_norm(_by_torch(part, ranks, b_down, residual), **next_norm)


def mlp_reduce(*given: Any, group: str, **next_norm: Any) -> tuple[Tensor, Tensor]:
    arguments, ranks = _whole(_ops.mlp, given), _group_of(group)
    x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual, *rest = arguments

    def run(rank: int, peers: list[int], peer_bytes: int) -> tuple[Any, ...]:
        return _ops._mlp_reduce.default(
            *arguments, rank=rank, peers=peers, peer_bytes=peer_bytes, **next_norm
        )

    if results := _by_sluice(x, w_down, ranks, run):
        return results[0], results[1]
    part = _ops.mlp.default(x, w_gate, w_up, w_down, b_gate, b_up, None, None, *rest)
    return _with_norm(_by_torch(part, ranks, b_down, residual), **next_norm)


def norm_mlp_reduce(*given: Any, group: str, **next_norm: Any) -> tuple[Tensor, Tensor, Tensor]:
    arguments, ranks = _whole(_ops.norm_mlp, given), _group_of(group)
    x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down, *rest = arguments
    eps, weight_offset, add_sum, *rest = rest

    def run(rank: int, peers: list[int], peer_bytes: int) -> tuple[Any, ...]:
        return _ops._norm_mlp_reduce.default(
            *arguments, rank=rank, peers=peers, peer_bytes=peer_bytes, **next_norm
        )

    if results := _by_sluice(x, w_down, ranks, run):
        return results[0], results[1], results[2]
    part, x_sum = _ops.norm_mlp.default(
        x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, None, eps, weight_offset, False, *rest
    )
    r = x if x_residual is None else x_sum
    y, y_norm = _with_norm(_by_torch(part, ranks, b_down, r if add_sum else None), **next_norm)
    return y, x_sum, y_norm
