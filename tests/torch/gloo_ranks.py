# SPDX-License-Identifier: Apache-2.0
"""A check in two processes that speak by gloo."""

import atexit
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2


def run_ranks(check: Callable[..., None], *args: Any) -> None:
    """``check(rank, *args)`` in WORLD processes, of which it is an error if one raises."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
            mp.spawn(_rank, (os.path.join(folder, "store"), check, args), nprocs=WORLD)


def _rank(rank: int, file: str, check: Callable[..., None], args: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    check(rank, *args)
    dist.barrier()  # the other rank may still want an answer
    # NOTE: not by the interpreter's end: a thread of gloo that drops its last tensor there asks for
    # a GIL that is gone, and aborts, now and then. What was registered for the end runs all the same.
    atexit._run_exitfuncs()
    os._exit(0)
