# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor-parallel group choose alike: a way's time is its time on the slowest rank.

A rank that waits for a slower one in an all-reduce gains nothing by its own faster kernel, and sums of one layer
by two kinds of kernels are rounded in two ways. The ranks tell each other their times through the store that
``torch.distributed`` was started with, and not by a collective: a rank that measures nothing, or other
steps, costs the others a wait of ``PATIENCE`` and their agreement, and stops none of them, unless what is timed is
itself a sum over ranks (``reduced``). The first rank that has all times, or waits no longer, says for all whether
they agree; where they do not, each chooses by its own.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=20)
Times = dict[str, list[float]]  # of each way: us at each step; inf where it failed


class Group(Protocol):
    """What vLLM's and SGLang's group coordinators have alike."""

    ranks: list[int]  # of the world
    rank_in_group: int


_count: Counter[str] = Counter()  # of what was told by its name, alike on all ranks


def told(group: Group, what: str, mine: Any, log: logging.Logger) -> list[Any] | None:
    """What every rank tells of ``what``, as JSON; None, on all ranks, where one tells nothing."""
    name = f"sluice/{group.ranks}/{what}"
    _count[name] += 1
    store = dist.distributed_c10d._get_default_store()
    verdict, *keys = (f"{name}/{_count[name]}/{who}" for who in ("verdict", *range(len(group.ranks))))
    store.set(keys[group.rank_in_group], json.dumps(mine))
    try:
        store.wait(keys, PATIENCE)
        found = "agreed"
    except RuntimeError:  # of Torch's store: not within this time
        found = "alone"
    if store.compare_set(verdict, "", found) != b"agreed":
        log.warning("Sluice: %s: a rank has told nothing of it", what)
        return None
    return [json.loads(store.get(key)) for key in keys]


def slowest(group: Group, what: str, steps: list[int], times: Times, log: logging.Logger) -> Times | None:
    """The times of each way on the slowest rank; None, on all ranks, where one tells none. ``what`` and ``steps``
    name the measurement."""
    every = told(group, f"{what}, tokens {steps}", times, log)
    if every is None:
        return None
    none = [math.inf] * len(steps)
    return {way: [max(us) for us in zip(*(other.get(way, none) for other in every))] for way in times}


def all_say(get: Callable[[], Group | None] | None, what: str, mine: bool, log: logging.Logger) -> bool:
    """Is it true on every rank? One rank alone, or no group, says for itself; where a rank is silent it is not."""
    group = group_of(get)
    if group is None:
        return mine
    return all(told(group, what, mine, log) or [False])


def group_of(get: Callable[[], Group | None] | None) -> Group | None:
    """The engine's group, or None where there is one rank, or no group."""
    if get is None or not dist.is_initialized():
        return None
    try:
        group = get()
    except (AssertionError, AttributeError, ImportError):  # not yet, or of another version
        return None
    return group if group is not None and len(group.ranks) > 1 else None
