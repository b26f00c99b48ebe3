# SPDX-License-Identifier: Apache-2.0
"""The operators on a GPU: what test_ops.py and test_gradients.py ask of them on a CPU, then streams,
devices, graph capture. Skipped without one."""

import os
import unittest
from typing import Any

import test_gradients
import test_ops
import torch
from cases import Oracle, Weights, worst

import sluice
from sluice import Gate, ops

REASON = (
    "no GPU"
    if not torch.cuda.is_available()
    else "this Sluice was built without CUDA" if not sluice.info().variants["cuda"] else ""
)
if REASON and os.environ.get("SLUICE_REQUIRE_GPU", "0") not in ("", "0"):
    raise RuntimeError(f"SLUICE_REQUIRE_GPU is set, but: {REASON}")


class OnGpu:
    """Has the tests of a class of test_ops.py run on the GPU."""

    device = "cuda"
    dtypes = (torch.bfloat16, torch.float16, torch.float32)  # fp64 is for checks on the CPU


@unittest.skipIf(REASON, REASON)
class Values(OnGpu, test_ops.Values):
    pass


@unittest.skipIf(REASON, REASON)
class Norm(OnGpu, test_ops.Norm):
    pass


@unittest.skipIf(REASON, REASON)
class Layouts(OnGpu, test_ops.Layouts):
    pass


@unittest.skipIf(REASON, REASON)
class Outputs(OnGpu, test_ops.Outputs):
    pass


@unittest.skipIf(REASON, REASON)
class Gradients(OnGpu, test_gradients.Gradients):
    # In fp64; the loader passes over what cannot be called.
    test_every_operator_both_ways_with_and_without_biases = None
    test_gate_up_grad_is_the_gradient_through_down = None
    test_a_gradient_has_its_inputs_shape = None


@unittest.skipIf(REASON, REASON)
class Errors(OnGpu, test_ops.Errors):
    pass


@unittest.skipIf(REASON, REASON)
class Tracing(OnGpu, test_ops.Tracing):
    pass


@unittest.skipIf(REASON, REASON)
class Calls(OnGpu, test_ops.Calls):
    test_thread_counts_give_the_same_bits = None
    test_torchs_own_threads_compute = None
    test_a_forked_child_computes_alone = None


def on_gpu(weights: Weights) -> list[torch.Tensor | None]:
    return [t if t is None else t.cuda() for t in weights.mlp()]


@unittest.skipIf(REASON, REASON)
class Cuda(unittest.TestCase):
    def setUp(self) -> None:
        # Sizes of the tensor-core variants, and one that only the portable one takes.
        self.shapes = ((128, 256, 512), (4, 256, 512), (5, 20, 36))

    def test_every_type_is_within_its_bound_of_fp64(self) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for m, d, h in self.shapes:
                weights = Weights(d, h, dtype, bias=True)
                x = weights.x(m)
                oracle = Oracle(x, weights)
                with self.subTest(dtype=dtype, shape=(m, d, h)):
                    y = ops.mlp(x.cuda(), *on_gpu(weights))
                    self.assertEqual(y.device.type, "cuda")
                    self.assertLess(worst(y.cpu(), oracle.y, oracle.y_bound), 1)

    def test_gradients_follow_the_cpus(self) -> None:
        weights = Weights(64, 96, torch.float32, bias=True)
        for recompute in (False, True):
            gradients = []
            for device in ("cpu", "cuda"):
                inputs = [t.detach().to(device, copy=True).requires_grad_()
                          for t in (weights.x(9), *weights.mlp())]  # fmt: skip
                ops.mlp(*inputs, recompute=recompute).sum().backward()
                gradients.append([t.grad.cpu() for t in inputs])
            for got, expected in zip(gradients[1], gradients[0]):
                torch.testing.assert_close(got, expected)

    def test_work_is_ordered_on_the_current_stream(self) -> None:
        weights = Weights(256, 512, torch.bfloat16)
        gpu = on_gpu(weights)
        expected = ops.mlp(weights.x(64).cuda(), *gpu)
        x = torch.zeros(64, 256, dtype=torch.bfloat16, device="cuda")
        fresh = weights.x(64).cuda()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # a run on another stream would read zeros
            x.copy_(fresh)
            y = ops.mlp(x, *gpu)
        stream.synchronize()
        self.assertTrue(torch.equal(y, expected))

    def test_graphs_replay_with_new_inputs_beside_eager_calls(self) -> None:
        for m, d, h in self.shapes:
            weights = Weights(d, h, torch.bfloat16)
            gpu = on_gpu(weights)
            x = weights.x(m).cuda()
            ops.mlp(x, *gpu)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                first = ops.mlp(x, *gpu)
                second = ops.mlp(first, *gpu, gate=Gate("gelu_tanh"))
            for seed in (3, 4, 5):
                x.copy_(weights.x(m, seed=seed).cuda())
                graph.replay()
                expected = ops.mlp(ops.mlp(x, *gpu), *gpu, gate=Gate("gelu_tanh"))
                self.assertTrue(torch.equal(second, expected), (m, d, h, seed))

    def test_compiled_code_replays_graphs(self) -> None:
        """What serving does: one trace for all token counts, a graph for each."""
        weights = Weights(256, 512, torch.bfloat16)
        gpu = on_gpu(weights)

        def block(x: torch.Tensor) -> torch.Tensor:
            return x + ops.mlp(x * 2, *gpu, weights_static=True)

        torch._dynamo.reset()
        compiled = torch.compile(block, fullgraph=True, dynamic=True)
        pool, graphs = torch.cuda.graph_pool_handle(), []  # who shares a pool keeps its graphs
        with torch.no_grad():
            for m in (16, 2, 128):
                x = weights.x(m).cuda()
                compiled(x)
                graph = torch.cuda.CUDAGraph()
                graphs.append(graph)
                with torch.cuda.graph(graph, pool=pool):
                    y = compiled(x)
                for seed in (3, 4):
                    x.copy_(weights.x(m, seed=seed))
                    graph.replay()
                    torch.testing.assert_close(y, block(x))

    def test_reduce_overhead_records_and_replays(self) -> None:
        """Torch's own graphs, which refuse what outlives a call in their memory pool."""
        counters = torch._dynamo.utils.counters
        for m, d, h in ((4, 256, 512), (128, 256, 512)):
            weights = Weights(d, h, torch.bfloat16)
            gpu = on_gpu(weights)
            leaves = [t.detach().clone().requires_grad_() for t in gpu[:3]]

            def served(x: torch.Tensor, gpu: list = gpu) -> torch.Tensor:
                return x + ops.mlp(x * 2, *gpu, weights_static=True)

            def trained(x: torch.Tensor, leaves: list = leaves) -> torch.Tensor:
                return ops.mlp(x * 2, *leaves).float().square().mean()

            torch._dynamo.reset()
            counters.clear()
            compiled, step = (
                torch.compile(f, mode="reduce-overhead", fullgraph=True) for f in (served, trained)
            )
            for seed in range(5):  # warm-up, record, replay
                x = weights.x(m, seed=seed + 1).cuda()
                torch.compiler.cudagraph_mark_step_begin()
                with torch.no_grad():
                    torch.testing.assert_close(compiled(x).clone(), served(x))
                torch.compiler.cudagraph_mark_step_begin()
                got = [g.clone() for g in torch.autograd.grad(step(x), leaves)]
                for one, expected in zip(got, torch.autograd.grad(trained(x), leaves)):
                    scale = float(expected.abs().max())
                    torch.testing.assert_close(one, expected, rtol=2.0**-6, atol=2.0**-6 * scale)
            self.assertEqual(counters["inductor"]["cudagraph_skips"], 0)

    def test_two_graphs_replay_at_once(self) -> None:
        """Captured on one stream, replayed on two: each has a workspace of its own."""
        for m, d, h in ((4, 256, 2048), (48, 512, 2048), (128, 512, 2048)):
            weights = Weights(d, h, torch.bfloat16)
            gpu = on_gpu(weights)
            inputs = [weights.x(m, seed=seed).cuda() for seed in (1, 2)]
            expected = [ops.mlp(x, *gpu) for x in inputs]
            torch.cuda.synchronize()
            graphs, results = [torch.cuda.CUDAGraph() for _ in inputs], []
            for graph, x in zip(graphs, inputs):
                with torch.cuda.graph(graph):
                    for _ in range(20):
                        y = ops.mlp(x, *gpu)
                results.append(y)
            streams = [torch.cuda.Stream() for _ in inputs]
            for _ in range(10):
                for graph, stream in zip(graphs, streams):
                    with torch.cuda.stream(stream):
                        graph.replay()
            torch.cuda.synchronize()
            for got, want in zip(results, expected):
                self.assertTrue(torch.equal(got, want), (m, d, h))

    def test_a_backward_pass_needs_less_memory_than_eagers(self) -> None:
        m, d, h = 2048, 512, 8192  # [M, H] takes 32 MiB, as does cuBLASLt's workspace: Torch's own is kept
        weights = Weights(d, h, torch.bfloat16)

        def peak(function: Any) -> int:
            tensors = (weights.x(m).cuda(), *on_gpu(weights)[:3])
            inputs = [t.detach().clone().requires_grad_() for t in tensors]
            dy = torch.ones_like(inputs[0])
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            function(*inputs).backward(dy)
            return torch.cuda.max_memory_allocated() - before

        def eager(
            x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
        ) -> torch.Tensor:
            return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

        for function in (ops.mlp, eager):
            peak(function)  # workspaces of cuBLAS
        self.assertLess(peak(ops.mlp), peak(eager))

    def test_operands_that_begin_inside_16_bytes_are_copied(self) -> None:
        weights = Weights(256, 512, torch.bfloat16)
        aligned = [t for t in on_gpu(weights) if t is not None]

        def moved(t: torch.Tensor, before: int, after: int) -> torch.Tensor:
            wide = t.new_full((*t.shape[:-1], t.shape[-1] + before + after), float("nan"))
            out = wide[..., before : before + t.shape[-1]]
            return out.copy_(t).requires_grad_()

        for m in (4, 128, 300):
            x = weights.x(m).cuda()
            inputs = [t.clone().requires_grad_() for t in (x, *aligned)]
            y = ops.mlp(*inputs)
            dy = torch.randn_like(y)
            y.backward(dy)
            for before, after in ((1, 0), (0, 3), (4, 4)):
                with self.subTest(m=m, before=before, after=after):
                    odd = [moved(t, before, after) for t in (x, *aligned)]
                    leaves = [t.detach().requires_grad_() for t in odd]
                    got = ops.mlp(*leaves)
                    self.assertTrue(torch.equal(got, y))  # by the same kernels
                    got.backward(dy)
                    for leaf, expected in zip(leaves, inputs):  # by Torch's GEMMs, which differ
                        scale = expected.grad.abs().max().item()
                        torch.testing.assert_close(leaf.grad, expected.grad, rtol=0, atol=scale / 64)

    def test_operands_on_two_devices_are_refused(self) -> None:
        weights = Weights(64, 96, torch.bfloat16)
        w_gate, w_up, w_down, *_ = on_gpu(weights)
        with self.assertRaisesRegex(ValueError, "^w_up: expected a tensor on the device"):
            ops.mlp(weights.x(9).cuda(), w_gate, w_up.cpu(), w_down)


if __name__ == "__main__":
    unittest.main()
