# SPDX-License-Identifier: Apache-2.0
"""What went wrong once: memory that is somebody else's, no tokens, strides that are no rows."""

import math
import os
import subprocess
import sys
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from cases import Weights
from test_cuda import REASON, OnGpu
from test_modules import TOKENS, mlps, small_model
from test_ops import RAW, REFUSED, OnDevice
from torch import Tensor

import sluice
import sluice.nn
from sluice import ops, torch_operators


class ZeroTokens(OnDevice):
    def test_zero_tokens_have_weight_gradients_of_zero(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        x, sums = weights.x(0), dict(
            zip(("dw_gate", "dw_up", "dw_down", "db_gate", "db_up", "db_down"), weights.mlp())
        )
        inputs = (x, x, weights.w_gate, weights.w_up, weights.w_down)
        for accumulate in (True, False):
            given = {name: torch.full_like(like, 3.0) for name, like in sums.items()}
            RAW.mlp_grad.out(*inputs, accumulate=accumulate, **given)
            for name, value in given.items():
                self.assertTrue((value == (3.0 if accumulate else 0.0)).all(), (name, accumulate))

    def test_zero_tokens_go_backward(self) -> None:
        for bias in (False, True):
            weights = self.weights(24, 40, torch.float32, bias=bias)
            norm_weight = torch.ones(24, device=self.device)
            x, h = weights.x(0), self.randn(0, 40)
            mlp, gate_up, w_down = weights.mlp(), weights.gate_up(), weights.w_down
            for function, *inputs in (
                (ops.mlp, x, *mlp), (ops.gate_up, x, *gate_up), (ops.gate_mul, h, h),
                (ops.down, h, w_down, weights.b_down),
                (lambda x, n, *w: ops.norm_mlp(x, n, *w[:3], None, *w[3:])[0], x, norm_weight, *mlp),
                (lambda *t: ops.mlp(*t, recompute=True), x, *mlp),
            ):  # fmt: skip
                leaves = [t if t is None else t.clone().requires_grad_() for t in inputs]
                function(*leaves).sum().backward()  # whose gradient is one element, expanded
                for leaf in leaves:
                    self.assertTrue(leaf is None or not leaf.grad.any())


class Strides(OnDevice):
    """What Torch's operators take is taken; what the kernels do not, is copied."""

    dtype = torch.float32

    def randn(self, *shape: int, **options: Any) -> Tensor:
        return super().randn(*shape, dtype=self.dtype, **options)

    def setUp(self) -> None:
        self.mlp = self.weights(24, 40, self.dtype, bias=True)
        self.tensors = dict(
            zip(("w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down"), self.mlp.mlp())
        ) | {"x": self.mlp.x(5), "residual": self.mlp.x(5, seed=2)}  # fmt: skip

    def run_both_ways(self, **others: Tensor) -> list[Tensor]:
        """The result and all gradients, with some tensors in another form."""
        leaves = {n: t.detach().requires_grad_() for n, t in (self.tensors | others).items()}
        y = ops.mlp(**leaves)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), list(leaves.values()))]

    def test_any_strides_give_what_contiguous_ones_give(self) -> None:
        def transposed(t: Tensor) -> Tensor:
            return t.T.contiguous().T if t.dim() == 2 else t

        def sliced(t: Tensor) -> Tensor:
            return torch.stack((t, t), -1)[..., 0]

        def padded(t: Tensor) -> Tensor:
            return torch.cat((t, t), -1)[..., : t.shape[-1]]

        expected = self.run_both_ways()
        for names in (*((name,) for name in self.tensors), ("w_gate", "w_up"), tuple(self.tensors)):
            for form in (transposed, sliced, padded):
                with self.subTest(names=names, form=form.__name__):
                    others = {name: form(self.tensors[name]) for name in names}
                    for got, want in zip(self.run_both_ways(**others), expected):
                        self.assert_same(got, want)

    def test_overlapping_and_transposed_leading_dimensions_are_read_right(self) -> None:
        line = self.randn(24 + 4)
        windows = line.unfold(0, 24, 1)  # each row starts one element after the one before
        turned = self.randn(5, 2, 24).transpose(0, 1)
        for x in (windows, turned, self.randn(24, 5).T):
            expected = ops.gate_up(x.clone(memory_format=torch.contiguous_format), *self.mlp.gate_up())
            self.assert_same(ops.gate_up(x, *self.mlp.gate_up()), expected)
        norm_weight = self.randn(48)[::2]
        got = ops.norm_mlp(turned, norm_weight, *self.mlp.mlp()[:3], turned.contiguous())
        want = ops.norm_mlp(
            turned.contiguous(), norm_weight.contiguous(), *self.mlp.mlp()[:3], turned.contiguous()
        )
        for one, expected in zip(got, want):
            self.assert_same(one, expected)

    def test_written_tensors_must_have_rows(self) -> None:
        x, w = self.tensors["x"], self.mlp.mlp()[:3]
        turned = x.T.contiguous().T
        for out, message in (
            (turned, "^y: expected a contiguous last dimension"),
            (x.new_empty(24 + 4).unfold(0, 24, 1), "^y: its rows overlap"),
            (x.new_empty(24).expand(5, 24), "^y: row_stride"),
        ):
            with self.assertRaisesRegex(REFUSED, message):
                RAW.mlp.out(x, *w, out=out)
        g = self.randn(5, 40)
        with self.assertRaisesRegex(REFUSED, "^du: expected the strides of its partner"):
            RAW.gate_mul_grad.out(g, g, g, dg=g.new_empty(5, 40), du=g.new_empty(5, 80)[:, :40])

    def four_dimensions(self) -> tuple[Tensor, list[Tensor]]:
        """A buffer of 32 rows, and gate and up in it: four rows at a time, at rows 0, 16, 8, 24 and at
        4, 20, 12, 28."""
        buffer = self.randn(32, 24)
        strides = (8 * 24, 16 * 24, 24, 1)
        return buffer, [buffer.as_strided((2, 2, 4, 24), strides, at * 24) for at in (0, 4)]

    def test_four_dimensions_without_one_distance_are_read_right(self) -> None:
        _, pair = self.four_dimensions()
        x = self.tensors["x"]
        flat = [w.reshape(16, 24) for w in pair]
        self.assert_same(ops.gate_up(x, *pair), ops.gate_up(x, *flat))

    def test_four_dimensions_with_one_distance_are_blocks(self) -> None:
        buffer = self.randn(32, 24)
        pair = [buffer.as_strided((2, 2, 4, 24), (16 * 24, 8 * 24, 24, 1), at * 24) for at in (0, 4)]
        x = self.tensors["x"]
        flat = [w.reshape(16, 24) for w in pair]
        self.assert_same(ops.gate_up(x, *pair), ops.gate_up(x, *flat))

    def test_four_dimensions_without_one_distance_are_not_written(self) -> None:
        buffer, pair = self.four_dimensions()
        before = buffer.clone()
        x = self.tensors["x"]
        given = (x, x, *(w.reshape(16, 24) for w in pair), self.randn(24, 16))
        with self.assertRaisesRegex(REFUSED, "^dw_gate: its leading dimensions"):
            RAW.mlp_grad.out(*given, dw_gate=pair[0], dw_up=pair[1])
        self.assertTrue(torch.equal(buffer, before))

    def test_one_weight_may_be_gate_and_up(self) -> None:
        weights = self.weights(256, 512, self.dtype)  # sizes of the tensor-core variants
        w, w_down = weights.w_gate, weights.w_down
        padded = torch.cat((w, w), -1)[:, :256]
        blocks = torch.stack((w.view(32, 16, 256), weights.w_up.view(32, 16, 256)), 1)[:, 0]
        for m in (4, 128):
            x = weights.x(m)
            expected = ops.mlp(x, w, w.clone(), w_down)
            for one in (w, padded, blocks):
                self.assert_same(ops.mlp(x, one, one, w_down), expected)
            for recompute in (False, True):
                leaf, *two = (w.clone().requires_grad_() for _ in range(3))
                ops.mlp(x, leaf, leaf, w_down, recompute=recompute).sum().backward()
                ops.mlp(x, *two, w_down, recompute=recompute).sum().backward()
                self.assert_same(leaf.grad, two[0].grad + two[1].grad)

    def test_one_activation_may_be_gate_and_up(self) -> None:
        g, dh = self.randn(128, 256), self.randn(128, 256)
        self.assert_same(ops.gate_mul(g, g), ops.gate_mul(g, g.clone()))
        dy, w_down = self.randn(128, 64), self.randn(64, 256)
        for name, first in (("gate_mul_grad", (dh,)), ("gate_up_grad", (dy, w_down))):
            got, want = (getattr(RAW, name)(*first, g, u) for u in (g, g.clone()))
            for one, other in zip(got, want):
                self.assert_same(one, other)
        for dg, du in ((g, torch.empty_like(g)), (torch.empty_like(g),) * 2):
            with self.assertRaisesRegex(REFUSED, "^d[gu]: the output overlaps"):
                RAW.gate_mul_grad.out(dh, g, g, dg=dg, du=du)


class Modules(unittest.TestCase):
    def test_a_model_with_transposed_weights_computes_as_before(self) -> None:
        model = small_model()
        for module in mlps(model):
            up = module.up_proj
            up.weight = torch.nn.Parameter(up.weight.detach().T.contiguous().T)
        expected = model(TOKENS).logits
        result = sluice.patch(model)
        reason = "up_proj.weight is a transposed view, which every call would copy"
        self.assertEqual(set(result.left.values()), {reason})
        self.assertTrue(torch.equal(model(TOKENS).logits, expected))

    def test_a_module_with_transposed_weights_and_tokens_is_served(self) -> None:
        torch.manual_seed(0)
        module = sluice.nn.GatedMLP(24, 40)
        x = torch.randn(24, 5).T
        with torch.no_grad():
            expected = module(x.contiguous())
            for linear in (module.gate_proj, module.up_proj, module.down_proj):
                linear.weight = torch.nn.Parameter(linear.weight.T.contiguous().T)
            self.assertTrue(torch.equal(module(x), expected))


class AddNorm(unittest.TestCase):
    def test_add_norm_takes_any_strides(self) -> None:
        from sluice.serving.operators import add_norm

        contiguous = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
        forms = (
            lambda t: t.T.contiguous().T if t.dim() == 2 else t,
            lambda t: torch.stack((t, t), -1)[..., 0],
            lambda t: torch.cat((t, t), -1)[..., :24],
        )
        r = contiguous[0] + contiguous[1]
        expected = torch.nn.functional.rms_norm(r, (24,), contiguous[2], 1e-6), r
        for form in forms:
            for got, want in zip(add_norm(*map(form, contiguous), 1e-6), expected):
                torch.testing.assert_close(got, want)
                self.assertTrue(got.is_contiguous())


class CopyOnWrite(OnDevice):
    def test_copy_on_write_spares_the_source(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        x, dy = weights.x(5), weights.x(5, seed=2)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        gradients = (dy, x, weights.w_gate, weights.w_up, weights.w_down)
        for name, arguments, results in (
            ("gate_up", (x, *weights.gate_up()), {"out": h}),
            ("down", (h, weights.w_down), {"out": x}),
            ("mlp", (x, *weights.mlp()), {"out": x}),
            ("norm_mlp", (x, dy[0], *weights.mlp()[:3], dy), {"out": x, "x_sum": x}),
            ("norm", (x, dy[0], dy), {"out": x, "x_sum": x}),
            ("gate_mul", (g, u), {"out": h}),
            ("gate_mul_grad", (h, g, u), {"dg": h, "du": h}),
            ("gate_up_grad", (dy, weights.w_down, g, u), {"dg": h, "du": h, "h": h}),
            ("mlp_grad", gradients,
             {"dx": x, "dw_gate": weights.w_gate, "dw_up": weights.w_up, "dw_down": weights.w_down}),
        ):  # fmt: skip
            sources = {n: torch.full_like(like, math.pi) for n, like in results.items()}
            clones = {n: torch._lazy_clone(source) for n, source in sources.items()}
            getattr(RAW, name).out(*arguments, **clones)
            for source, clone in zip(sources.values(), clones.values()):
                with self.subTest(name):
                    self.assertTrue((source == math.pi).all())
                    self.assertFalse((clone == math.pi).any())


@unittest.skipIf(REASON, REASON)
class ZeroTokensOnGpu(OnGpu, ZeroTokens):
    pass


@unittest.skipIf(REASON, REASON)
class StridesOnGpu(OnGpu, Strides):
    dtype = torch.bfloat16  # assert_same() knows what adding in another order does to it


@unittest.skipIf(REASON, REASON)
class CopyOnWriteOnGpu(OnGpu, CopyOnWrite):
    pass


class Pools(unittest.TestCase):
    def test_foreign_capture_is_known_by_the_pool_of_its_memory(self) -> None:
        tensor = torch.empty(64, dtype=torch.uint8)
        address = tensor.data_ptr()

        def answer(pool: tuple[int, int], begin: int, size: int) -> bool:
            other = {"segment_pool_id": (7, 0), "address": 4096, "total_size": 4096}
            segment = {"segment_pool_id": pool, "address": begin, "total_size": size}
            with mock.patch("torch.cuda.memory_snapshot", lambda **_: [other, segment]):
                return torch_operators.lies_in_a_pool(tensor)

        self.assertTrue(answer((0, 1), address - 64, 128))
        self.assertFalse(answer((0, 0), address - 64, 128))  # Torch's ordinary memory
        self.assertFalse(answer((0, 1), address - 64, 64))
        self.assertFalse(answer((0, 1), address + 1, 64))
        for backend, owns in (("cudaMallocAsync", True), ("pluggable", False)):
            with mock.patch("torch.cuda.get_allocator_backend", lambda name=backend: name):
                self.assertEqual(torch_operators.lies_in_a_pool(tensor), owns)


@unittest.skipIf(REASON, REASON)
class ForeignCapture(unittest.TestCase):
    """A graph that CUDA's own functions capture, as CuPy or a C++ extension does: Torch's allocator knows
    nothing of it."""

    def captured(self, stream: torch.cuda.Stream, work: Callable[[], Any]) -> tuple[Any, Any]:
        """What the work returned, and a function that replays it."""
        from cuda.bindings import runtime

        def checked(result: tuple[Any, ...]) -> Any:
            error, *values = result
            self.assertEqual(error, runtime.cudaError_t.cudaSuccess)
            return values[0] if values else None

        handle = stream.cuda_stream
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        with torch.cuda.stream(stream):
            checked(runtime.cudaStreamBeginCapture(handle, mode))
            try:
                result = work()
            finally:
                graph = checked(runtime.cudaStreamEndCapture(handle))
        executable = checked(runtime.cudaGraphInstantiate(graph, 0))
        checked(runtime.cudaGraphDestroy(graph))
        self.addCleanup(runtime.cudaGraphExecDestroy, executable)
        return result, lambda: checked(runtime.cudaGraphLaunch(executable, handle))

    def test_foreign_capture_keeps_its_scratch(self) -> None:
        stream = torch.cuda.Stream()
        for m, d, h in ((128, 256, 512), (1024, 256, 2048)):  # of Torch's small blocks and of its large
            weights = Weights(d, h, torch.bfloat16, device="cuda")
            x = weights.x(m)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                ops.mlp(x, *weights.mlp())
            y, replay = self.captured(stream, lambda: ops.mlp(x, *weights.mlp()))
            nbytes = sluice.plan(m, d, h, device="cuda").workspace_bytes
            with torch.cuda.stream(stream):
                others = [torch.full((nbytes,), 7, dtype=torch.uint8, device="cuda")
                          for _ in range(64)]  # fmt: skip
                x.copy_(weights.x(m, seed=3))
                replay()
                expected = ops.mlp(x, *weights.mlp())
                torch.testing.assert_close(y, expected)
            stream.synchronize()
            for other in others:
                self.assertTrue((other == 7).all())

    def test_foreign_capture_refuses_what_wants_a_copy(self) -> None:
        weights = Weights(64, 96, torch.bfloat16, device="cuda")
        x = weights.x(9).T.contiguous().T
        torch.cuda.synchronize()

        def refused() -> None:
            with self.assertRaisesRegex(REFUSED, "^x: its layout wants a copy"):
                ops.mlp(x, *weights.mlp())

        self.captured(torch.cuda.Stream(), refused)

    def test_a_graph_of_torchs_may_copy(self) -> None:
        weights = Weights(64, 96, torch.bfloat16, device="cuda")
        x = weights.x(9).T.contiguous().T
        expected = ops.mlp(x, *weights.mlp())
        self.assertFalse(RAW._lies_in_a_pool(x))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ops.mlp(x, *weights.mlp())
            self.assertTrue(RAW._lies_in_a_pool(y))
        graph.replay()
        self.assertTrue(torch.equal(y, expected))


if __name__ == "__main__":
    unittest.main()
