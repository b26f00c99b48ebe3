# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor-parallel group choose alike: a way's time is its time on the slowest rank.

A rank that waits for a slower one in an all-reduce gains nothing by its own faster kernel, and sums of one layer
by two kinds of kernels are rounded in two ways. The ranks tell each other their times through the store that
``torch.distributed`` was started with, and not by a collective: a rank that measures nothing, or other
steps, costs the others a wait of ``PATIENCE`` and their agreement, and stops none of them. The first rank that
has all times, or waits no longer, says for all whether they agree.
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


_count: Counter[str] = Counter()  # of measurements by what was measured, alike on all ranks


def slowest(group: Group, what: str, steps: list[int], times: Times, log: logging.Logger) -> Times:
    """The times of each way on the slowest rank, or this one's own where a rank tells none. ``what`` and ``steps``
    name the measurement."""
    name = f"sluice/{group.ranks}/{what}/{steps}"
    _count[name] += 1
    store = dist.distributed_c10d._get_default_store()
    verdict, *keys = (f"{name}/{_count[name]}/{who}" for who in ("verdict", *range(len(group.ranks))))
    store.set(keys[group.rank_in_group], json.dumps(times))
    try:
        store.wait(keys, PATIENCE)
        mine = "agreed"
    except RuntimeError:  # of Torch's store: not within this time
        mine = "alone"
    if store.compare_set(verdict, "", mine) != b"agreed":
        log.warning("Sluice: %s: a rank has told no times of these token counts; each chooses by its own", what)
        return times
    told = [json.loads(store.get(key)) for key in keys]
    none = [math.inf] * len(steps)
    return {way: [max(us) for us in zip(*(other.get(way, none) for other in told))] for way in times}


def group_of(get: Callable[[], Group | None] | None) -> Group | None:
    """The engine's group, or None where there is one rank, or no group."""
    if get is None or not dist.is_initialized():
        return None
    try:
        group = get()
    except (AssertionError, AttributeError, ImportError):  # not yet, or of another version
        return None
    return group if group is not None and len(group.ranks) > 1 else None
