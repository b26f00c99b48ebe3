# SPDX-License-Identifier: Apache-2.0
"""The Torch operators: values against fp64, layouts, errors, tracing; gradients: test_gradients.py."""

import contextlib
import math
import os
import signal
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from cases import ACTIVATIONS, BITS, STEEPEST, Oracle, Weights, gated, worst
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from sluice import Gate, ops, torch_operators

RAW = torch.ops.sluice
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Later versions make every error of an operator behind the stable ABI a RuntimeError.
REFUSED = (ValueError,) if torch.__version__.startswith("2.11.") else (ValueError, RuntimeError)
GATES = [
    *(Gate(name) for name in ACTIVATIONS),
    Gate.clamped_swiglu(),
    Gate("sigmoid", alpha=0.5, gate_multiplier=1.25, output_multiplier=0.75, up_offset=-0.5),
]


class Called(TorchDispatchMode):
    """The operators that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


class OnDevice(unittest.TestCase):
    """What the classes below share; test_cuda.py runs some of them again with another device."""

    device = "cpu"
    dtypes = DTYPES

    def weights(self, d: int, h: int, dtype: torch.dtype, **options: Any) -> Weights:
        return Weights(d, h, dtype, device=self.device, **options)

    def randn(self, *shape: int, **options: Any) -> Tensor:
        return torch.randn(shape, device=self.device, **options)

    def assert_same(self, got: Tensor, expected: Tensor) -> None:
        """One computation asked for in two ways: the same bits on the CPU. On a GPU strides and what
        is to be stored choose the variant, and variants add in different orders: g, h and the result
        may each be rounded to a neighbour, of the size of the largest element at most."""
        if self.device == "cpu":
            self.assertTrue(torch.equal(got, expected))
        else:
            ulp = 2.0 ** (1 - BITS[expected.dtype])
            largest = float(expected.detach().abs().max())
            torch.testing.assert_close(got, expected, rtol=ulp, atol=3 * ulp * largest)


class Values(OnDevice):
    def test_every_type_and_gate_is_within_its_bound_of_fp64(self) -> None:
        for dtype in self.dtypes:
            for gate in GATES:
                weights = self.weights(40, 56, dtype, bias=True)
                x = weights.x(2, 5)
                oracle = Oracle(x, weights, gate)
                h = ops.gate_up(x, *weights.gate_up(), gate=gate)
                y = ops.mlp(x, *weights.mlp(), gate=gate)
                with self.subTest(dtype=dtype, gate=gate):
                    self.assertEqual((h.dtype, y.dtype), (dtype, dtype))
                    self.assertLess(worst(h, oracle.h, oracle.h_bound), 1)
                    self.assertLess(worst(y, oracle.y, oracle.y_bound), 1)

    def test_the_bound_catches_a_swap_of_gate_and_up(self) -> None:
        weights = self.weights(40, 56, torch.bfloat16)
        x = weights.x(7)
        oracle = Oracle(x, weights)
        swapped = ops.gate_up(x, weights.w_up, weights.w_gate)
        self.assertGreater(worst(swapped, oracle.h, oracle.h_bound), 1)

    def test_down_adds_bias_and_residual(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        h, residual = self.randn(3, 40), self.randn(3, 24)
        expected = h.double() @ weights.w_down.double().T + weights.b_down.double() + residual
        y = ops.down(h, weights.w_down, weights.b_down, residual)
        bound = 44 * 2.0**-24 * (h.abs().double() @ weights.w_down.abs().double().T + 4)
        self.assertLess(worst(y, expected, bound), 1)

    def test_saved_g_and_u_are_the_pre_activations(self) -> None:
        weights = self.weights(40, 56, torch.bfloat16, bias=True)
        x = weights.x(6)
        oracle = Oracle(x, weights)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        self.assertLess(worst(g, oracle.g, oracle.g_bound), 1)
        self.assertLess(worst(u, oracle.u, oracle.u_bound), 1)
        self.assert_same(h, ops.gate_up(x, *weights.gate_up()))
        y, g2, u2 = RAW.mlp_save(x, *weights.mlp())
        for got, expected in ((g2, g), (u2, u), (y, ops.mlp(x, *weights.mlp()))):
            self.assert_same(got, expected)

    def test_weights_may_be_narrower_than_x(self) -> None:
        weights = self.weights(40, 56, torch.bfloat16)
        x = weights.x(6, dtype=torch.float32)
        oracle = Oracle(x, weights)
        y = ops.mlp(x, *weights.mlp())
        self.assertEqual(y.dtype, torch.float32)
        self.assertLess(worst(y, oracle.y, oracle.y_bound), 1)

    def test_the_weights_alone_take_the_overload_without_other_arguments(self) -> None:
        weights = self.weights(40, 56, torch.bfloat16, bias=True)
        x, (w_gate, w_up, w_down, b_gate, b_up, b_down) = weights.x(5), weights.mlp()
        inputs = (x, w_gate, w_up, w_down)
        self.assert_same(RAW.mlp.plain(*inputs), RAW.mlp.default(*inputs))
        for options, overload in (
            ({}, RAW.mlp.plain), ({"gate": Gate("silu")}, RAW.mlp.plain),
            ({"b_gate": b_gate}, RAW.mlp.default), ({"b_up": b_up}, RAW.mlp.default),  # refused there
            ({"b_down": b_down}, RAW.mlp.default),
            ({"residual": x}, RAW.mlp.default), ({"weights_static": True}, RAW.mlp.default),
            *(({"gate": gate}, RAW.mlp.default) for gate in GATES[1:]),
        ):  # fmt: skip
            with Called() as seen, contextlib.suppress(*REFUSED):
                ops.mlp(*inputs, **options)
            self.assertEqual(seen.functions, [overload], options)

    def test_no_tokens_and_one_token_without_leading_dimensions(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        self.assertEqual(ops.mlp(weights.x(0), *weights.mlp()).shape, (0, 24))
        x = weights.x()
        self.assertTrue(torch.equal(ops.mlp(x, *weights.mlp()), ops.mlp(x[None], *weights.mlp())[0]))


class Norm(OnDevice):
    """norm_mlp against its parts in fp64."""

    def check(
        self, m: int, dtype: torch.dtype, *, add: bool, add_sum: bool, d: int = 64
    ) -> None:  # fmt: skip
        weights = self.weights(d, 96, dtype, bias=True)
        x, residual = weights.x(m), weights.x(m, seed=2) if add else None
        norm_weight = self.randn(d).to(dtype)
        eps = 2.0**-10  # exact in fp32, as the library takes it
        options = {"eps": eps, "weight_offset": 0.75, "add_sum": add_sum}
        y, r = ops.norm_mlp(
            x, norm_weight, weights.w_gate, weights.w_up, weights.w_down, residual,
            weights.b_gate, weights.b_up, weights.b_down, **options,
        )  # fmt: skip
        self.assertTrue(torch.equal(r, x + residual if add else x))
        wide = r.double()
        n = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        n = (n * (norm_weight.double() + 0.75)).to(dtype)
        oracle = Oracle(n, weights)
        expected = oracle.y + wide if add_sum else oracle.y
        # n may have been rounded to its neighbour: an error of 2^(1 - bits) of it in x's place.
        ulp = 2.0 ** (1 - BITS[dtype])
        moved = n.double().abs() * ulp
        g, u = (moved @ w.double().abs().T for w in (weights.w_gate, weights.w_up))
        error_h = STEEPEST * (g * oracle.u.abs() + u * oracle.g.abs() + 2 * g * u)
        bound = oracle.y_bound + error_h @ weights.w_down.double().abs().T + ulp * expected.abs()
        self.assertLess(worst(y, expected, bound), 1)

    def test_every_type_with_and_without_sums_is_within_its_bound(self) -> None:
        for dtype in self.dtypes:
            for add in (False, True):
                for add_sum in (False, True):
                    for m in (1, 7, 130):
                        with self.subTest(dtype=dtype, add=add, add_sum=add_sum, m=m):
                            self.check(m, dtype, add=add, add_sum=add_sum)

    def test_rows_wider_than_a_cta_of_the_norm_keeps(self) -> None:
        for dtype in self.dtypes:
            for add in (False, True):
                with self.subTest(dtype=dtype, add=add):
                    self.check(3, dtype, add=add, add_sum=add, d=9000)  # keeps 8192

    def test_gradients_are_those_of_its_parts(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        inputs = (weights.x(5), self.randn(24), *weights.mlp()[:3], weights.x(5, seed=2))
        leaves = [t.clone().requires_grad_() for t in inputs]
        plain, _ = ops.norm_mlp(*inputs, add_sum=True)
        y, r = ops.norm_mlp(*leaves, add_sum=True)
        torch.testing.assert_close(y, plain)
        (y.square().sum() + r.sum()).backward()
        same = [t.clone().requires_grad_() for t in inputs]
        x, weight, w_gate, w_up, w_down, residual = same
        r = x + residual
        n = torch.nn.functional.rms_norm(r, (24,), weight, 1e-6)
        y = gated(n @ w_gate.T, n @ w_up.T) @ w_down.T + r
        (y.square().sum() + r.sum()).backward()
        for got, expected in zip(leaves, same):
            # Two orders of five sums behind each other of at most 40 products, by fp32's roundings.
            bound = 5 * 40 * 2.0**-24 * float(expected.grad.abs().max())
            self.assertLess((got.grad - expected.grad).abs().max(), bound)


class Layouts(OnDevice):
    """The weights as models ship them: the same bits from every layout."""

    def setUp(self) -> None:
        self.mlp = self.weights(48, 64, torch.bfloat16)
        self.x = self.mlp.x(5)
        self.expected = ops.gate_up(self.x, self.mlp.w_gate, self.mlp.w_up)

    def check(self, w_gate: Tensor, w_up: Tensor) -> None:
        self.assertFalse(w_gate.is_contiguous() and w_gate.storage_offset() == 0 and w_gate.dim() == 3)
        self.assert_same(ops.gate_up(self.x, w_gate, w_up), self.expected)

    def test_halves_of_one_buffer(self) -> None:
        merged = torch.cat([self.mlp.w_gate, self.mlp.w_up])
        self.check(merged[:64], merged[64:])

    def test_rows_by_turns_in_either_order(self) -> None:
        rows = torch.stack([self.mlp.w_gate, self.mlp.w_up], 1).flatten(0, 1)
        self.check(rows[0::2], rows[1::2])
        rows = torch.stack([self.mlp.w_up, self.mlp.w_gate], 1).flatten(0, 1)
        self.check(rows[1::2], rows[0::2])

    def test_blocks_by_turns(self) -> None:
        pair = (self.mlp.w_gate.view(8, 8, 48), self.mlp.w_up.view(8, 8, 48))
        blocks = torch.stack(pair, 1)
        self.check(blocks[:, 0], blocks[:, 1])
        grown = [b.detach().requires_grad_() for b in (blocks[:, 0], blocks[:, 1])]
        ops.gate_up(self.x, *grown).sum().backward()
        flat = [w.clone().requires_grad_() for w in (self.mlp.w_gate, self.mlp.w_up)]
        ops.gate_up(self.x, *flat).sum().backward()
        for block, whole in zip(grown, flat):
            self.assert_same(block.grad.flatten(0, 1), whole.grad)

    def test_packed_in_every_block_and_order(self) -> None:
        gate, up = self.mlp.w_gate, self.mlp.w_up
        for block in (1, 2, 8, 16, 32, 64):
            for order in ("gate_up", "up_gate"):
                with self.subTest(block=block, order=order):
                    packed = ops.pack_gate_up(gate, up, block, order)
                    views = ops.unpack_gate_up(packed, block, order)
                    for view, whole in zip(views, (gate, up)):
                        self.assertEqual(
                            view.untyped_storage().data_ptr(), packed.untyped_storage().data_ptr()
                        )
                        self.assertTrue(torch.equal(view.reshape(whole.shape), whole))
                        self.assertEqual(view.dim(), 2 if block in (1, 64) else 3)
                    self.check(*views)
                    y = ops.mlp(self.x, *views, self.mlp.w_down)
                    self.assert_same(y, ops.mlp(self.x, gate, up, self.mlp.w_down))
                    # The planted error: the order swapped.
                    swapped = ops.unpack_gate_up(packed, block, order)[::-1]
                    self.assertFalse(torch.equal(ops.gate_up(self.x, *swapped), self.expected))

    def test_packed_rows_are_the_index_formula(self) -> None:
        for hidden, block, shape in ((6, 3, (5,)), (15, 5, ()), (7, 1, (2, 3)), (12, 12, (1,))):
            gate, up = self.randn(hidden, *shape), self.randn(hidden, *shape)
            for order in ("gate_up", "up_gate"):
                packed = ops.pack_gate_up(gate, up, block, order)
                for row in range(2 * hidden):
                    slot, within = divmod(row, block)
                    source = gate if (slot % 2 == 0) == (order == "gate_up") else up
                    self.assertTrue(torch.equal(packed[row], source[slot // 2 * block + within]))

    def test_packing_is_differentiable_and_takes_strides(self) -> None:
        gate = self.randn(8, 6)[:, :3].requires_grad_()
        up = self.randn(3, 8).t().requires_grad_()
        packed = ops.pack_gate_up(gate, up, 4, "up_gate")
        again = [view.flatten(0, 1) for view in ops.unpack_gate_up(packed, 4, "up_gate")]
        self.assertTrue(torch.equal(again[0], gate) and torch.equal(again[1], up))
        (again[0] * 2 + again[1] * 3).sum().backward()
        self.assertTrue(bool((gate.grad == 2).all() and (up.grad == 3).all()))

    def test_packing_refuses_by_name(self) -> None:
        w = self.randn(12, 4)
        for call, message in (
            (lambda: ops.pack_gate_up(w, w[:6], 2), r"up: got \[6, 4\] .*wanted .*\[12, 4\]"),
            (lambda: ops.pack_gate_up(w, w.half(), 2), "up: got .*float16, wanted"),
            (lambda: ops.pack_gate_up(w, w, 5), "block: got 5, wanted a divisor of H = 12"),
            (lambda: ops.pack_gate_up(w, w, 0), "block: got 0"),
            (lambda: ops.pack_gate_up(w, w, 2, "gate"), "order: got 'gate', wanted one of gate_up"),
            (lambda: ops.unpack_gate_up(w[:5], 1), r"w: got \[5, 4\], wanted 2H rows"),
            (lambda: ops.unpack_gate_up(w, 4), "block: got 4, wanted a divisor of H = 6"),
            (lambda: ops.unpack_gate_up(w, 2, "up"), "order: got 'up'"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                call()

    def test_padded_and_broadcast_tokens_and_odd_addresses(self) -> None:
        padded = self.x.new_empty(5, 64)[:, :48].copy_(self.x)
        self.assert_same(ops.gate_up(padded, *self.mlp.gate_up()), self.expected)
        shifted = self.x.new_empty(5 * 48 + 1)[1:].view(5, 48).copy_(self.x)
        self.assert_same(ops.gate_up(shifted, *self.mlp.gate_up()), self.expected)
        row = self.x[:1].expand(5, 48)
        self.assert_same(ops.gate_up(row, *self.mlp.gate_up()), self.expected[:1].expand(5, 64))

    def test_gate_mul_of_one_merged_activation(self) -> None:
        merged = self.randn(3, 4, 128)
        h = ops.gate_mul(merged[..., :64], merged[..., 64:])
        expected = gated(merged[..., :64].double(), merged[..., 64:].double())
        self.assertLess(worst(h, expected, 10 * 2.0**-24 * expected.abs() + 2.0**-120), 1)


class Outputs(OnDevice):
    """The .out forms write where they are told, and nothing else."""

    def test_they_equal_the_functions(self) -> None:
        weights = self.weights(24, 40, torch.bfloat16, bias=True)
        x, dy = weights.x(5), weights.x(5, seed=2)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        dh = self.randn(5, 40, dtype=torch.bfloat16)
        for name, arguments, results in (
            ("gate_up", (x, *weights.gate_up()), ("out",)),
            ("down", (h, weights.w_down, weights.b_down), ("out",)),
            ("mlp", (x, *weights.mlp()), ("out",)),
            ("norm_mlp", (x, dy[0], *weights.mlp()[:3], dy), ("out", "x_sum")),
            ("norm", (x, dy[0], dy), ("out", "x_sum")),
            ("gate_mul", (g, u), ("out",)),
            ("gate_mul_grad", (dh, g, u), ("dg", "du")),
            ("gate_up_grad", (dy, weights.w_down, g, u), ("dg", "du", "h")),
            ("mlp_grad", (dy, x, weights.w_gate, weights.w_up, weights.w_down, g, u),
             ("dx", "dw_gate", "dw_up", "dw_down")),
        ):  # fmt: skip
            expected = getattr(RAW, name)(*arguments)
            expected = expected if isinstance(expected, (tuple, list)) else (expected,)
            padded = [t.new_full((*t.shape[:-1], t.shape[-1] + 8), math.nan)
                      for t in expected[: len(results)]]  # fmt: skip
            views = [p[..., : t.shape[-1]] for p, t in zip(padded, expected)]
            with self.subTest(name):
                done = getattr(RAW, name).out(*arguments, **dict(zip(results, views)))
                self.assertIsNone(done)
                for view, pad, want in zip(views, padded, expected):
                    self.assert_same(view, want)
                    self.assertTrue(torch.isnan(pad[..., want.shape[-1] :]).all())

    def test_a_residual_may_be_added_in_place(self) -> None:
        weights = self.weights(24, 40, torch.bfloat16)
        x, y = weights.x(5), weights.x(5, seed=2)
        expected = ops.mlp(x, *weights.mlp(), residual=y)
        RAW.mlp.out(x, *weights.mlp(), y, out=y)
        self.assert_same(y, expected)

    def test_weight_gradients_accumulate_in_fp32(self) -> None:
        weights = self.weights(24, 40, torch.bfloat16)
        x, dy = weights.x(5), weights.x(5, seed=2)
        names = ("dw_gate", "dw_up", "dw_down")
        sums = {name: w.new_zeros(w.shape, dtype=torch.float32)
                for name, w in zip(names, weights.mlp())}  # fmt: skip
        arguments = (dy, x, weights.w_gate, weights.w_up, weights.w_down)
        RAW.mlp_grad.out(*arguments, **sums)
        once = {name: value.clone() for name, value in sums.items()}
        RAW.mlp_grad.out(*arguments, accumulate=True, **sums)
        for name, value in sums.items():
            self.assert_same(value, 2 * once[name])

    def test_each_weight_gradient_may_be_the_only_one_in_fp32(self) -> None:
        weights = self.weights(24, 40, torch.bfloat16)
        arguments = (weights.x(5, seed=2), weights.x(5), *weights.mlp()[:3])
        names = ("dw_gate", "dw_up", "dw_down")
        wide = {name: w.new_zeros(w.shape, dtype=torch.float32) for name, w in zip(names, weights.mlp())}
        RAW.mlp_grad.out(*arguments, **wide)
        for name, want in wide.items():
            got = torch.zeros_like(want)
            RAW.mlp_grad.out(*arguments, **{name: got})
            self.assert_same(got, want)

    def test_gradients_are_not_lost_in_them(self) -> None:
        """As those of Torch: what wants a gradient is refused where gradients are recorded."""
        weights = self.weights(24, 40, torch.float32)
        x, mlp = weights.x(5), weights.mlp()[:3]
        live = (x * 1).requires_grad_()
        h = self.randn(5, 40)
        calls = {
            "x": lambda: RAW.mlp.out(live, *mlp, out=x.clone()),
            "weight": lambda: RAW.down.out(h, mlp[2] + live[0, 0], out=x.clone()),
            "residual": lambda: RAW.mlp.out(x, *mlp, residual=live, out=x.clone()),
            "out": lambda: RAW.mlp.out(x, *mlp, out=live * 3),
            "leaf": lambda: RAW.mlp.out(x, *mlp, out=live),
            "x_sum": lambda: RAW.norm.out(x, x[0], x, out=x.clone(), x_sum=live * 1),
            "du": lambda: RAW.gate_mul_grad.out(x, x, x, dg=x.clone(), du=live * 1),
        }
        for name, call in calls.items():
            with self.subTest(name):
                with self.assertRaisesRegex(RuntimeError, "but one of the arguments requires grad"):
                    call()
                with torch.no_grad():
                    call()


class Errors(OnDevice):
    def test_each_names_its_operand(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        x, (w_gate, w_up, w_down, b_gate, b_up, b_down) = weights.x(5), weights.mlp()
        for wrong, message in (
            (lambda: ops.mlp(x, w_gate, w_up[:-1], w_down), r"^w_up: expected shape \[40, 24\]"),
            (lambda: ops.mlp(x[:, 1:], w_gate, w_up, w_down), r"^w_gate: expected shape \[40, 23\]"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down.T), r"^w_down: expected shape \[24, 40\]"),
            (lambda: ops.mlp(x, w_gate, w_up.half(), w_down), "^w_up: expected fp32, got fp16"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, b_gate), "^b_up: got none, wanted both biases"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, b_gate[1:], b_up), "^b_gate: expected shape"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, residual=x[1:]), "^residual: expected shape"),
            (lambda: ops.norm_mlp(x, x[0, 1:], w_gate, w_up, w_down), "^norm_weight: expected shape"),
            (lambda: ops.norm_mlp(x, x[0], w_gate, w_up, w_down, x[1:]), "^x_residual: expected sh"),
            (lambda: ops.norm_mlp(x, x[0], w_gate, w_up, w_down, eps=0.0), "^norm.eps: got 0"),
            (lambda: ops.mlp(x.int(), w_gate, w_up, w_down), "^x: expected bfloat16, float16"),
            (lambda: ops.mlp(x, w_gate, None, w_down), "^w_up: got none"),
            (lambda: ops.gate_up(x, w_gate, w_up, gate=Gate(limit=-math.inf)), "^gate.limit: got -inf"),
            (lambda: ops.mlp(x[0, 0], w_gate, w_up, w_down), "^x: expected at least one dimension"),
            (lambda: ops.mlp(x.view([1] * 98 + [5, 24]), w_gate, w_up, w_down),
             "^x: expected at most 64 dimensions, got 100"),
            (lambda: ops.gate_mul(x, x[:3]), r"^u: expected shape \[5, 24\], got \[3, 24\]"),
            (lambda: RAW.gate_mul(x, x, 99), "^gate.activation: got 99"),
            (lambda: RAW.gate_mul(x, x, -1), "^activation: got -1"),
            (lambda: RAW.gate_mul(x, x, 0, 1.0, -2.0), "^gate.limit: got -2"),
            (lambda: RAW.mlp.out(x, w_gate, w_up, w_down, out=x), "^y: the output overlaps x"),
            (lambda: RAW.norm.out(x, x[0], out=x.clone(), x_sum=x.clone()), "^x_sum: got one without x_res"),
            (lambda: RAW.norm_mlp.out(x, x[0], w_gate, w_up, w_down, out=x.clone(), x_sum=x.clone()),
             "^x_sum: got one without x_residual"),
            (lambda: RAW.mlp.out(x, w_gate, w_up, w_down, out=x[:2].clone()), "^y: expected shape"),
        ):  # fmt: skip
            with self.assertRaisesRegex(REFUSED, message):
                wrong()

    def test_other_devices_have_no_kernel(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        inputs = [t.to("meta") for t in (weights.x(5), *weights.mlp()[:3])]
        self.assertEqual(ops.mlp(*inputs).device.type, "meta")  # the fake


def everything(device: str) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """One call of every overload, for opcheck."""
    weights = Weights(24, 40, torch.float32, bias=True, device=device)
    x, dy, dh = weights.x(2, 3), weights.x(2, 3, seed=2), torch.randn(2, 3, 40, device=device)
    h, g, u = (t.detach() for t in RAW.gate_up_save(x, *weights.gate_up()))
    leaves = [t.clone().requires_grad_() for t in weights.mlp()]
    w_gate, w_up, w_down, b_gate, b_up, b_down = leaves
    gate = Gate.clamped_swiglu().arguments
    live = x.clone().requires_grad_()
    grads = (dy, x, weights.w_gate, weights.w_up, weights.w_down)
    wide, narrow = torch.empty_like(h), torch.empty_like(x)
    plain, norm_weight = weights.mlp(), torch.ones(24, device=device)
    return [
        (RAW.gate_up.default, (x, *plain[:2], *plain[3:5], *gate), {}),
        (RAW.gate_up.out, (x, *plain[:2], *plain[3:5]), {"out": wide}),
        (RAW.gate_up_save.default, (live, w_gate, w_up, b_gate, b_up, *gate), {}),
        (RAW.gate_up_save.default, (live, w_gate, w_up), {"recompute": True}),
        (RAW.down.default, (h.clone().requires_grad_(), w_down, b_down, dy), {}),
        (RAW.down.out, (h, weights.w_down), {"out": narrow}),
        (RAW.mlp.default, (x, *plain, dy, *gate, True), {}),
        (RAW.mlp.plain, (x, *plain[:3]), {}),
        (RAW.mlp.out, (x, *plain), {"out": narrow}),
        (RAW.mlp_save.default, (live, w_gate, w_up, w_down, b_gate, b_up, b_down, dy, *gate), {}),
        (RAW.mlp_save.default, (live, w_gate, w_up, w_down), {"recompute": True}),
        (RAW.norm_mlp.default, (x, norm_weight, *plain[:3]), {}),
        (RAW.norm_mlp.default, (x, norm_weight, *plain[:3], dy, *plain[3:], 1e-5, 1.0, True), {}),
        (RAW.norm_mlp.out, (x, norm_weight, *plain[:3], dy),
         {"out": narrow, "x_sum": torch.empty_like(x)}),
        (RAW.norm.default, (x, norm_weight), {}),
        (RAW.norm.default, (x, norm_weight, dy, 1e-5, 1.0), {}),
        (RAW.norm.out, (x, norm_weight, dy), {"out": narrow, "x_sum": torch.empty_like(x)}),
        (RAW.gate_mul.default, (g.clone().requires_grad_(), u), {}),
        (RAW.gate_mul.default, (g.clone().requires_grad_(), u, *gate, True), {}),
        (RAW.gate_mul.out, (g, u), {"out": wide}),
        (RAW.gate_mul_grad.default, (dh, g, u), {}),
        (RAW.gate_mul_grad.default, (dh, g, u, *gate, True), {}),
        (RAW.gate_mul_grad.out, (dh, g, u), {"dg": wide, "du": torch.empty_like(wide)}),
        (RAW.gate_up_grad.default, (dy, weights.w_down, g, u), {}),
        (RAW.gate_up_grad.out, (dy, weights.w_down, g, u),
         {"dg": wide, "du": torch.empty_like(wide), "h": torch.empty_like(wide)}),
        (RAW.mlp_grad.default, (*grads, g, u), {"need_bias_down": True}),
        (RAW.mlp_grad.default, (*grads, None, None, *plain[3:5]), {"need_bias_gate_up": True}),
        (RAW.mlp_grad.default, grads, {"need_x": False}),
        (RAW.mlp_grad.out, grads, {"dx": narrow, "dw_down": torch.empty(24, 40, device=device)}),
    ]  # fmt: skip


class Tracing(OnDevice):
    def test_opcheck_is_clean_for_every_overload(self) -> None:
        seen = set()
        for overload, arguments, keywords in everything(self.device):
            with self.subTest(str(overload)):
                results = torch.library.opcheck(overload, arguments, keywords)
                self.assertEqual(set(results.values()), {"SUCCESS"})
                seen.add(str(overload))
        expected = {
            f"sluice.{name}.{overload}"
            for name in torch_operators.OPERATORS
            for overload in getattr(RAW, name).overloads()
        }
        self.assertEqual(seen, expected)

    def test_compiles_in_one_graph_for_every_token_count_forward_and_backward(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        leaves = [t.requires_grad_() for t in weights.mlp()]
        counter = CompileCounterWithBackend("inductor")

        def block(x: Tensor) -> Tensor:
            return x + ops.mlp(x * 2, *leaves, gate=Gate("gelu_tanh")).relu()

        def outcome(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
            for leaf in leaves:
                leaf.grad = None
            y = function(x)
            y.square().sum().backward()
            return (y.detach(), *(leaf.grad for leaf in leaves))

        torch._dynamo.reset()
        compiled = torch.compile(block, fullgraph=True, backend=counter)
        for m in (4, 9, 17, 3):
            x = weights.x(m)
            torch._dynamo.mark_dynamic(x, 0)  # an error where the trace fixes the token count
            for got, expected in zip(outcome(compiled, x), outcome(block, x)):
                torch.testing.assert_close(got, expected)
        self.assertEqual(counter.frame_count, 1)

    def test_an_out_variant_may_stand_in_a_graph(self) -> None:
        weights = self.weights(24, 40, torch.float32)

        def into(x: Tensor) -> Tensor:
            y = torch.empty_like(x)
            RAW.mlp.out(x, *weights.mlp(), out=y)
            return y + 1

        torch._dynamo.reset()
        x = weights.x(5)
        self.assert_same(torch.compile(into, fullgraph=True)(x), into(x))


class Calls(OnDevice):
    def test_thread_counts_give_the_same_bits(self) -> None:
        weights = self.weights(256, 512, torch.bfloat16)
        x = weights.x(33)
        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        several = ops.mlp(x, *weights.mlp())
        torch.set_num_threads(1)
        self.assertTrue(torch.equal(ops.mlp(x, *weights.mlp()), several))

    def test_torchs_own_threads_compute(self) -> None:
        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        torch.set_num_threads(before + 1)  # more than an earlier call can have started
        torch.zeros(1 << 20).exp_()  # starts Torch's
        threads = os.listdir("/proc/self/task")
        weights = self.weights(256, 512, torch.bfloat16)
        for m in (1, 33):
            ops.mlp(weights.x(m), *weights.mlp())
        self.assertLessEqual(set(os.listdir("/proc/self/task")), set(threads))

    def test_a_forked_child_computes_alone(self) -> None:
        seconds_until_hung = 60
        weights = self.weights(256, 512, torch.bfloat16)
        x = weights.x(33)
        expected = ops.mlp(x, *weights.mlp())
        child = os.fork()
        if child == 0:
            signal.alarm(seconds_until_hung)
            # Equality of tensors would be computed by threads that are gone.
            same = ops.mlp(x, *weights.mlp()).view(torch.int16).tolist()
            os._exit(0 if same == expected.view(torch.int16).tolist() else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_host_threads_may_call_at_once(self) -> None:
        weights = self.weights(64, 96, torch.bfloat16)
        xs = [weights.x(m + 1, seed=m) for m in range(16)]
        expected = [ops.mlp(x, *weights.mlp()) for x in xs]

        def wrong() -> list[int]:
            return [
                m for _ in range(20) for m, x in enumerate(xs)
                if not torch.equal(ops.mlp(x, *weights.mlp()), expected[m])
            ]  # fmt: skip

        with ThreadPoolExecutor(4) as pool:
            for found in [pool.submit(wrong) for _ in range(4)]:
                self.assertEqual(found.result(), [])

    def test_a_workspace_beyond_what_is_kept_serves_too(self) -> None:
        weights = self.weights(16, 8192, torch.float32)
        x = weights.x(2100)  # h alone is 66 MiB
        self.assertGreater(2100 * 8192 * 4, 32 << 20)
        rows = torch.cat([ops.mlp(part, *weights.mlp()) for part in x.split(700)])
        torch.testing.assert_close(ops.mlp(x, *weights.mlp()), rows)


if __name__ == "__main__":
    unittest.main()
