# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor-parallel group choose alike: what one way takes is what it takes on the slowest rank.

A rank that waits for a slower one in an all-reduce gains nothing by its own faster kernel, and sums of one layer
by two kinds of kernels are rounded in two ways. The ranks tell each other their times through the store that
``torch.distributed`` was started with, and not by a collective: a rank that measures nothing, or other
steps, costs the others a wait of ``PATIENCE`` and their agreement, and stops none of them.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=20)
Times = dict[str, list[float]]  # of each way: us at each step; inf where it failed


class Group(Protocol):
    """What vLLM's and SGLang's group coordinators have alike."""

    ranks: list[int]  # of the world
    rank_in_group: int


_count: Counter[str] = Counter()  # of measurements by their names, alike on all ranks


def slowest(group: Group, name: str, steps: list[int], times: Times, log: logging.Logger) -> Times:
    """The times of each way on the slowest rank, or this one's own where a rank tells none of these steps."""
    _count[name] += 1
    store = dist.distributed_c10d._get_default_store()
    keys = [f"sluice/{group.ranks}/{name}/{_count[name]}/{rank}" for rank in range(len(group.ranks))]
    store.set(keys[group.rank_in_group], json.dumps([steps, times]))
    try:
        store.wait(keys, PATIENCE)
    except RuntimeError:  # of Torch's store: not within this time
        log.warning("Sluice: %s: a rank has told no times; this one chooses by its own", name)
        return times
    told = [json.loads(store.get(key)) for key in keys]
    if any(other_steps != steps for other_steps, _ in told):
        log.warning("Sluice: %s: the ranks have timed other token counts; this one chooses by its own", name)
        return times
    return {
        way: [max(other.get(way, [math.inf] * len(steps))[i] for _, other in told) for i in range(len(steps))]
        for way in times
    }


def group_of(get: Callable[[], Group] | None) -> Group | None:
    """The engine's group, or None where there is one rank, or no group yet."""
    if get is None or not dist.is_initialized():
        return None
    try:
        group = get()
    except (AssertionError, AttributeError):
        return None
    return group if len(group.ranks) > 1 else None
