# SPDX-License-Identifier: Apache-2.0
"""``gate_mul`` on DTensors: every rank computes its own part, without communication. Shards of any
dimension, even or not, and replicas stay what they are; a tensor placed otherwise than the other one, or
Partial, is redistributed by DTensor. Imported at the first DTensor: this part of Torch takes long to load."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding


def _register(op: Any, results: int, tensors: int) -> None:
    @register_sharding(op)
    def _(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        rest = [None] * (len(arguments) - tensors)
        placements = [Replicate(), *map(Shard, range(arguments[0].ndim))]
        return [([p] * results, [p] * tensors + rest) for p in placements]


_register(torch.ops.sluice.gate_mul.default, 1, 2)
_register(torch.ops.sluice.gate_mul_grad.default, 2, 3)


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors; where one is a DTensor, a plain one is taken to be whole and the same on all ranks, and is
    distributed as the first DTensor. Its gradient comes back whole."""
    first = next(t for t in tensors if isinstance(t, DTensor))
    mesh, placements = first.device_mesh, first.placements

    def distributed(t: Tensor) -> Tensor:
        if isinstance(t, DTensor):
            return t
        whole = DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return whole.redistribute(placements=placements)

    return tuple(distributed(t) for t in tensors)
