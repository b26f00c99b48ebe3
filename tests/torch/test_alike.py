# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor-parallel group choose alike, by the times of the slowest, and wait for none for ever."""

import datetime
import logging
import unittest
from functools import partial
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from gloo_ranks import WORLD, run_ranks

from sluice.serving import alike, operators

LOG = logging.getLogger("sluice.test")
# us of stock, mixed and sluice on each rank: each has another fastest one.
TIMES = ({"sluice": 5.0, "mixed": 8.0, "stock": 10.0}, {"sluice": 12.0, "mixed": 9.0, "stock": 10.0})


def group_of(rank: int) -> alike.Group:
    return SimpleNamespace(ranks=list(range(WORLD)), rank_in_group=rank)


def measured(rank: int, rows: int, name: str = "an operator") -> operators.Choice:
    way: list[str] = []

    def sampler(run, between, captured):  # type: ignore[no-untyped-def]
        run()
        return lambda us=TIMES[rank][way.pop()]: us

    choice = operators.Choice(name)
    ways = {name: partial(lambda name, m: way.append(name), name) for name in TIMES[rank]}
    with mock.patch.object(operators, "_sampler", sampler):
        choice.measure(torch.zeros(rows, 8), ways)
    return choice


def check_choices(rank: int) -> None:
    operators.configure("auto", LOG, lambda: group_of(rank))
    for _ in range(2):  # a name may be measured again: another type
        choice = measured(rank, 16)
        assert choice.us == {"sluice": [12.0] * 6, "mixed": [9.0] * 6, "stock": [10.0] * 6}, choice.us
        assert {choice.fastest(m) for m in (1, 7, 16)} == {"mixed"}
    operators.configure("auto", LOG)
    assert measured(rank, 16).us["sluice"] == [TIMES[rank]["sluice"]] * 6


def check_quarrels(rank: int) -> None:
    case = unittest.TestCase()
    operators.configure("auto", LOG, lambda: group_of(rank))
    with mock.patch.object(alike, "PATIENCE", datetime.timedelta(seconds=0.5)):
        with case.assertLogs(LOG, "WARNING") as logs:
            choice = measured(rank, 16 + 16 * rank)
        assert "has told nothing of it" in logs.output[0], logs.output
        assert choice.us["sluice"] == [TIMES[rank]["sluice"]] * len(choice.steps)
        # The other one comes when this one waits no longer: it finds all times, and chooses alone too.
        for late in range(WORLD):
            dist.barrier()
            if rank == late:
                with case.assertLogs(LOG, "WARNING") as logs:
                    choice = measured(rank, 16, "late")
                assert "has told nothing of it" in logs.output[0], logs.output
                assert choice.us["sluice"] == [TIMES[rank]["sluice"]] * len(choice.steps)
    dist.barrier()


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "no gloo")
class Alike(unittest.TestCase):
    def test_the_slowest_rank_decides(self) -> None:
        run_ranks(check_choices)

    def test_ranks_that_cannot_agree_choose_alone(self) -> None:
        run_ranks(check_quarrels)

    def test_one_rank_has_no_group(self) -> None:
        self.assertIsNone(alike.group_of(None))
        self.assertIsNone(alike.group_of(lambda: group_of(0)))  # torch.distributed was not started


if __name__ == "__main__":
    unittest.main()
