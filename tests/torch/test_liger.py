# SPDX-License-Identifier: Apache-2.0
"""``sluice.liger`` against eager Torch, as Liger-Kernel 0.8.5 tests its functions (test_swiglu.py and
test_geglu.py: shapes and tolerances are theirs), and ``round_gate`` behind it."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from test_cuda import REASON, OnGpu
from test_ops import REFUSED, OnDevice
from torch import Tensor
from torch.nn import functional

from sluice import Gate, ops
from sluice.liger import LigerGELUMulFunction, LigerSiLUMulFunction


def eager_silu(a: Tensor, b: Tensor, gate: float = 1.0, down: float = 1.0) -> Tensor:
    return functional.silu(a * gate) * b * down


def eager_gelu(a: Tensor, b: Tensor) -> Tensor:
    return functional.gelu(a, approximate="tanh") * b


class Found(unittest.TestCase):
    def test_importing_the_package_is_enough_to_name_the_modules(self) -> None:
        code = "import sluice; sluice.liger.LigerSiLUMulFunction, sluice.nn.GatedMLP, sluice.ops.mlp"
        if importlib.util.find_spec("jax") is not None:
            code += ", sluice.jax.mlp"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


PAIRS = ((LigerSiLUMulFunction.apply, eager_silu), (LigerGELUMulFunction.apply, eager_gelu))


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def every_other(t: Tensor) -> Tensor:
    return torch.stack((t, t), -1)[..., 0]


def padded(t: Tensor) -> Tensor:
    return torch.cat((t, t), -1)[..., : t.shape[-1]]


@contextlib.contextmanager
def mesh_of_one(device: str) -> Iterator[Any]:
    from torch import distributed

    with tempfile.NamedTemporaryFile() as file:
        backend = "nccl" if device == "cuda" else "gloo"
        distributed.init_process_group(backend, f"file://{file.name}", rank=0, world_size=1)
        try:
            yield distributed.device_mesh.init_device_mesh(device, (1,))
        finally:
            distributed.destroy_process_group()


class Liger(OnDevice):
    def outcome(
        self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...], *rest: Any
    ) -> list[Tensor]:
        """The result and the gradients of the inputs, for one gradient of the result."""
        leaves = [t.detach().requires_grad_() for t in inputs]  # with the inputs' strides
        y = function(*leaves, *rest)
        torch.manual_seed(3)
        y.backward(torch.randn_like(y))
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    def check(self, got: list[Tensor], want: list[Tensor], atol: float, rtol: float) -> None:
        for one, other in zip(got, want):
            torch.testing.assert_close(one, other, atol=atol, rtol=rtol)

    def test_functions(self) -> None:
        for size in ((2, 2, 8), (2, 8, 8), (9, 7, 41)):
            for dtype, tolerance in (
                (torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 1e-2),
            ):  # fmt: skip
                torch.manual_seed(0)
                inputs = self.randn(*size, dtype=dtype), self.randn(*size, dtype=dtype)
                for ours, eager in PAIRS:
                    want = self.outcome(eager, inputs)
                    for form in (None, transposed, every_other, padded):
                        with self.subTest(size=size, dtype=dtype, eager=eager, form=form):
                            given = inputs if form is None else tuple(map(form, inputs))
                            self.check(self.outcome(ours, given), want, tolerance, tolerance)
                            merged = torch.cat(inputs, -1).chunk(2, -1)
                            self.check(self.outcome(ours, merged), want, tolerance, tolerance)

    def test_multipliers(self) -> None:
        for size in ((2, 8, 8), (9, 7, 41)):
            for factors in ((0.7, 1.3), (1.5, 0.5), (1.0, 1.0)):
                for dtype, atol, rtol in ((torch.float32, 1e-3, 1e-5), (torch.bfloat16, 1e-1, 1e-2)):
                    torch.manual_seed(0)
                    inputs = self.randn(*size, dtype=dtype), self.randn(*size, dtype=dtype)
                    got = self.outcome(LigerSiLUMulFunction.apply, inputs, *factors)
                    with self.subTest(size=size, dtype=dtype, factors=factors):
                        self.check(got, self.outcome(eager_silu, inputs, *factors), atol, rtol)

    def mlp(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
        def whole(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
            hidden = function(functional.linear(x, gate), functional.linear(x, up))
            return functional.linear(hidden, down)

        return self.outcome(whole, inputs)

    def mlp_inputs(self, dtype: torch.dtype, *size: int) -> tuple[Tensor, ...]:
        """Weights of unit variance, as Liger draws them: sums of thousands that nearly cancel show an h
        that is rounded in another place."""
        rows, tokens, d, h = size
        torch.manual_seed(0)
        x = self.randn(rows, tokens, d, dtype=dtype)
        gate, up, down = (self.randn(*shape, dtype=dtype) for shape in ((d, h), (d, h), (h, d)))
        return x, gate.T, up.T, down.T

    def test_modules(self) -> None:
        """Liger's tolerances hold for every element but, in GEGLU's bf16, one in 2^11: fp32 evaluations of
        act(a) by two formulas may be 2^-20 apart, and of bf16's steps of 2^-8 so few ends lie between."""
        for (ours, eager), size, tolerances in (
            (PAIRS[0], (6, 42, 123, 431), ((torch.float32, 1.0, 1e-5), (torch.bfloat16, 1e4, 1e-2))),
            (PAIRS[1], (9, 41, 341, 4231), ((torch.float32, 1.0, 2e-6), (torch.bfloat16, 1e-2, 1e-2))),
        ):
            for dtype, atol, rtol in tolerances:
                inputs = self.mlp_inputs(dtype, *size)
                exempt = 2.0**-11 if (eager, dtype) == (eager_gelu, torch.bfloat16) else 0
                with self.subTest(eager=eager, dtype=dtype):
                    for got, want in zip(self.mlp(ours, inputs), self.mlp(eager, inputs)):
                        outside = ~torch.isclose(got, want, atol=atol, rtol=rtol)
                        self.assertLessEqual(int(outside.sum()), exempt * got.numel())

    def test_a_gate_that_is_not_rounded_is_told_apart(self) -> None:
        inputs = self.mlp_inputs(torch.bfloat16, 2, 5, 341, 4231)
        want = self.mlp(eager_gelu, inputs)

        def unrounded(a: Tensor, b: Tensor) -> Tensor:
            return ops.gate_mul(a, b, gate=Gate("gelu_tanh"))

        with self.assertRaisesRegex(AssertionError, "not close"):
            self.check(self.mlp(unrounded, inputs), want, 1e-2, 1e-2)

    def test_inputs_stay_and_second_derivatives_are_refused(self) -> None:
        for ours, _ in PAIRS:
            a, b = self.randn(3, 8).requires_grad_(), self.randn(3, 8).requires_grad_()
            before = a.detach().clone(), b.detach().clone()
            y = ours(a, b)
            first = torch.autograd.grad(y.sum(), (a, b), create_graph=True)
            again = torch.autograd.grad(y.sum(), (a, b))
            for one, other in zip((*first, a, b), (*again, *before)):
                self.assertTrue(torch.equal(one, other))
            with self.assertRaisesRegex(RuntimeError, "second derivatives are not defined"):
                first[0].sum().backward()

    def test_compiles_in_one_graph(self) -> None:
        inputs = self.randn(3, 8), self.randn(3, 8)
        for ours, _ in PAIRS:
            torch._dynamo.reset()
            compiled = torch.compile(lambda a, b, f=ours: f(a, b) * 2, fullgraph=True)
            want = self.outcome(lambda a, b, f=ours: f(a, b) * 2, inputs)
            self.check(self.outcome(compiled, inputs), want, 0, 0)

    def test_distributed_tensors(self) -> None:
        from torch.distributed import tensor

        inputs = self.randn(2, 3, 8), self.randn(2, 3, 8)
        with mesh_of_one(self.device) as mesh:
            for ours, _ in PAIRS:
                want = self.outcome(ours, inputs)
                for both in (True, False):
                    leaves = [t.clone().requires_grad_() for t in inputs]
                    placed = [tensor.distribute_tensor(t, mesh, [tensor.Shard(2)]) for t in leaves]
                    y = ours(placed[0], placed[1] if both else 1 * leaves[1])
                    torch.manual_seed(3)
                    dy = torch.randn_like(want[0])
                    y.backward(tensor.distribute_tensor(dy, mesh, [tensor.Shard(2)]))
                    self.assertTrue(torch.equal(y.full_tensor(), want[0]))
                    self.assertTrue(torch.equal(placed[0].grad.full_tensor(), want[1]))
                    second = placed[1].grad.full_tensor() if both else leaves[1].grad
                    self.assertIs(type(second), Tensor)  # of a plain tensor a plain one
                    self.assertTrue(torch.equal(second, want[2]))

    def test_wrong_arguments_name_the_operand(self) -> None:
        a = self.randn(3, 8)
        for ours, _ in PAIRS:
            with self.assertRaisesRegex(REFUSED, r"^u: expected shape \[3, 8\], got \[3, 7\]"):
                ours(a, a[:, :7])


class RoundGate(OnDevice):
    def test_it_rounds_what_eager_stores(self) -> None:
        """Gates whose activation is exact: the same bits as eager's."""
        for dtype in (torch.bfloat16, torch.float16):
            torch.manual_seed(0)
            dh, g, u = (self.randn(7, 40, dtype=dtype) for _ in range(3))
            gate = Gate("identity", gate_multiplier=0.3125)  # whose product is exact in fp32
            value = (0.3125 * g.double()).to(dtype)
            self.assertTrue(torch.equal(ops.gate_mul(g, u, gate=gate, round_gate=True), value * u))
            arguments = (*gate.arguments, True)
            dg, du = torch.ops.sluice.gate_mul_grad(dh, g, u, *arguments)
            self.assertTrue(torch.equal(du, dh * value))
            self.assertTrue(torch.equal(dg, (0.3125 * (dh * u).double()).to(dtype)))
            self.assertFalse(torch.equal(ops.gate_mul(g, u, gate=gate), value * u))

    def test_fp32_is_rounded_already(self) -> None:
        g, u = self.randn(7, 40), self.randn(7, 40)
        self.assertTrue(torch.equal(ops.gate_mul(g, u, round_gate=True), ops.gate_mul(g, u)))


@unittest.skipIf(REASON, REASON)
class LigerOnGpu(OnGpu, Liger):
    pass


@unittest.skipIf(REASON, REASON)
class RoundGateOnGpu(OnGpu, RoundGate):
    pass


if __name__ == "__main__":
    unittest.main()
