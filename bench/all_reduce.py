# SPDX-License-Identifier: Apache-2.0
"""The MLP of a layer and its sum over ranks, a process a GPU: Sluice's in one plan, beside Sluice's MLP with
NCCL's all-reduce and with Torch's of symmetric memory (one-shot up to 256 KiB, else two-shot).

    python bench/all_reduce.py bench/results/h200x2/all_reduce.json
    python bench/all_reduce.py all_reduce.json --world 4 --h 7168 --m 1 16 64 256

A CUDA graph holds a run of each of ``--layers`` weights, so that none lies in L2. Times are a layer's, the slowest
rank's, medians of turns that alternate. Before: y has the same bits on all ranks, and is NCCL's but for
rounding. ``samples`` of a row has the time of each form of the sum, forced."""

from __future__ import annotations

import argparse
import math
import socket
import sys
from collections.abc import Callable
from ctypes import byref, pointer, sizeof
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor
from torch_gpu import meta, percentiles

from sluice import capi, results
from sluice.gate import Gate

TURNS = 40
ONE_SHOT_BYTES = 256 << 10
FORMS = ("one_shot_ll", "one_shot", "two_shot")


class Mlp:
    """A plan of mlp, with the sum over ranks or without; ``form``: of the sum, forced."""

    def __init__(
        self, m: int, d: int, h: int, rank: int, world: int, reduces: bool, form: str | None = None
    ) -> None:
        self.lib, self.error, self.plan = capi.library(), capi.CError(), capi.CPlan()
        problem = capi._problem("mlp", m, d, h, "bf16", None, Gate(), {})
        if reduces:
            problem.reduce.kind, problem.reduce.rank, problem.reduce.world = 1, rank, world
        device = capi._device(f"cuda:{rank}")
        options = capi.COptions(struct_size=sizeof(capi.COptions))
        if form:
            options.config = f"all_reduce={form}".encode()
        self.check(self.lib.sluice_plan_init(
            byref(self.plan), byref(problem), byref(device), byref(options), byref(self.error)))  # fmt: skip
        self.workspace_bytes = int(self.lib.sluice_plan_workspace_bytes(byref(self.plan)))
        self.peer_bytes = (int(self.lib.sluice_plan_peer_bytes(byref(self.plan))) + 511) // 512 * 512
        self.variant = self.lib.sluice_plan_variant(byref(self.plan)).decode()
        self.config = self.lib.sluice_plan_config(byref(self.plan)).decode()
        self.buffer: Tensor | None = None
        self.memory = torch.zeros(self.workspace_bytes + 256, dtype=torch.uint8, device="cuda")

    def check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self.error.message.decode())

    def run(self, x: Tensor, weights: list[Tensor], y: Tensor, peers: Any = None) -> None:
        o = capi.COperands(struct_size=sizeof(capi.COperands))
        o.x, o.y = x.data_ptr(), y.data_ptr()
        o.w_gate, o.w_up, o.w_down = (w.data_ptr() for w in weights)
        start = (self.memory.data_ptr() + 255) // 256 * 256
        args = capi.CRunArgs(sizeof(capi.CRunArgs), pointer(o), capi.CWorkspace(start, self.workspace_bytes))
        args.stream = torch.cuda.current_stream().cuda_stream
        if peers is not None:
            args.peers = pointer(peers)
        self.check(self.lib.sluice_run(byref(self.plan), byref(args), byref(self.error)))


def graph_of(step: Callable[[int], None], layers: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for layer in range(layers):
            step(layer)
    stream.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in range(layers):
            step(layer)
    return graph


def time_us(graph: torch.cuda.CUDAGraph, layers: int) -> float:
    """A layer's time on the slowest rank. A first replay brings the ranks together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    graph.replay()
    begin.record()
    graph.replay()
    graph.replay()
    end.record()
    end.synchronize()
    slowest = torch.tensor([begin.elapsed_time(end) * 500 / layers], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def same_bits(y: Tensor, world: int) -> bool:
    all_y = [torch.empty_like(y) for _ in range(world)]
    dist.all_gather(all_y, y)
    return all(torch.equal(y.view(torch.int16), other.view(torch.int16)) for other in all_y)


def peers_of(mlp: Mlp, world: int, group: str) -> capi.CPeers:
    """A buffer of each rank's for a plan."""
    buffer = symmetric.empty(mlp.peer_bytes, dtype=torch.uint8, device="cuda")
    buffer.zero_()
    handle = symmetric.rendezvous(buffer, group)
    torch.cuda.synchronize()
    dist.barrier()
    peers = capi.CPeers(struct_size=sizeof(capi.CPeers), bytes=mlp.peer_bytes, time_limit_us=30_000_000)
    for r in range(world):
        peers.buffers[r] = handle.buffer_ptrs[r]
    mlp.buffer = buffer  # as long as the plan
    return peers


def measure(m: int, a: argparse.Namespace, rank: int, weights: list[list[Tensor]]) -> list[dict[str, Any]]:
    world, group = a.world, dist.group.WORLD.group_name
    x = torch.randn(m, a.d, dtype=torch.bfloat16, device="cuda", generator=torch.Generator("cuda").manual_seed(m))
    summed, plain = (Mlp(m, a.d, a.h, rank, world, reduces) for reduces in (True, False))
    forced: dict[str, Mlp] = {}
    for form in FORMS:
        try:
            forced[form] = Mlp(m, a.d, a.h, rank, world, True, form)
        except RuntimeError:  # not for so many bytes
            continue
    peers = {mlp: peers_of(mlp, world, group) for mlp in (summed, *forced.values())}
    y, y_nccl = torch.empty_like(x), torch.empty_like(x)
    y_symmetric = symmetric.empty(m, a.d, dtype=torch.bfloat16, device="cuda")
    symmetric.rendezvous(y_symmetric, group)
    one = y_symmetric.nbytes <= ONE_SHOT_BYTES

    def summing(mlp: Mlp) -> Callable[[int], None]:
        return lambda layer: mlp.run(x, weights[layer], y, peers[mlp])

    def nccl(layer: int) -> None:
        plain.run(x, weights[layer], y_nccl)
        dist.all_reduce(y_nccl)

    def torchs(layer: int) -> None:
        plain.run(x, weights[layer], y_symmetric)
        if one:
            torch.ops.symm_mem.one_shot_all_reduce(y_symmetric, "sum", group)
        else:
            torch.ops.symm_mem.two_shot_all_reduce_(y_symmetric, "sum", group)

    def alone(layer: int) -> None:
        plain.run(x, weights[layer], y_nccl)

    graphs = [graph_of(step, a.layers) for step in
              (summing(summed), nccl, torchs, alone, *map(summing, forced.values()))]  # fmt: skip
    for graph in (graphs[1], *graphs[4:], graphs[0]):  # NCCL, the forms, the choice
        y.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        if graph is graphs[1]:
            continue
        if not same_bits(y, world):
            raise RuntimeError(f"m {m}: y differs between ranks")
        rel_err = float((y.double() - y_nccl.double()).abs().mean() / y_nccl.double().abs().mean())
        if not rel_err < 0.02:  # of two roundings to bf16 and another order
            raise RuntimeError(f"m {m}: y is {rel_err} from NCCL's")
    samples: list[list[float]] = [[] for _ in graphs]
    for turn in range(TURNS + 3):
        for index in range(len(graphs)):
            index = (index + turn) % len(graphs)
            taken = time_us(graphs[index], a.layers)
            if turn >= 3:
                samples[index].append(taken)
    times = percentiles(samples[0])
    flops = 6.0 * m * a.d * a.h
    common = {
        "op": "mlp", "pass": "fwd", "model": None, "m": m, "d": a.d, "h": a.h, "dtype": "bf16", "gate": "silu",
        "layout": "separate", "reduce": "all_reduce", "variant": summed.variant, "config": summed.config, **times,
        "tflops": flops / times["us"] * 1e-6, "gbps": 6.0 * a.d * a.h / times["us"] * 1e-3,
        "roof_fraction": None, "extra_bytes": summed.workspace_bytes + summed.peer_bytes, "peak_bytes": None,
        "samples": " ".join(f"{summed.variant} {mlp.config} {percentiles(taken)['us']:.4g}"
                            for mlp, taken in zip(forced.values(), samples[4:])),
        "rel_err": rel_err, "threads": 1, "tp": world, "mlp_alone_us": percentiles(samples[3])["us"],
    }  # fmt: skip
    baselines = (("nccl", None, samples[1]), ("symm_mem", "one_shot" if one else "two_shot", samples[2]))
    return [
        {**common, "baseline": name, "baseline_config": form, "baseline_us": percentiles(theirs)["us"],
         "ratio": percentiles(theirs)["us"] / times["us"]}
        for name, form, theirs in baselines
    ]  # fmt: skip


def command_of(file: Path) -> str:
    """Without where the file was written."""
    return " ".join(["python bench/all_reduce.py", *(word for word in sys.argv[1:] if word != str(file))])


def work(rank: int, a: argparse.Namespace, port: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=a.world,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    torch.manual_seed(rank + 1)
    shapes = ((a.h, a.d), (a.h, a.d), (a.d, a.h))
    weights = [
        [torch.randn(s, dtype=torch.bfloat16, device="cuda") * s[1] ** -0.5 for s in shapes]
        for _ in range(a.layers)
    ]
    rows: list[dict[str, Any]] = []
    for m in a.m:
        rows += measure(m, a, rank, weights)
        if rank == 0:
            for row in rows[-2:]:
                print(f"m {m}: {row['us']:.1f} us, {row['baseline']} {row['baseline_us']:.1f}, MLP alone "
                      f"{row['mlp_alone_us']:.1f}, {row['config']}", flush=True)  # fmt: skip
            results.save(a.file, meta(command_of(a.file)), rows=rows)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--d", type=int, default=8192)
    parser.add_argument("--h", type=int, default=14336, help="of a rank")
    parser.add_argument("--m", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--layers", type=int, default=8)
    a = parser.parse_args()
    a.file.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (a, port), nprocs=a.world)


if __name__ == "__main__":
    main()
