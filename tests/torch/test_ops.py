# SPDX-License-Identifier: Apache-2.0
"""The Torch operators: values against fp64, gradients, layouts, errors, tracing."""

import math
import threading
import unittest
from collections.abc import Callable
from typing import Any

import torch
from cases import ACTIVATIONS, Oracle, Weights, gated, worst
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from sluice import Gate, ops

RAW = torch.ops.sluice
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Later versions make every error of an operator behind the stable ABI a RuntimeError.
REFUSED = ValueError if torch.__version__.startswith("2.11.") else (ValueError, RuntimeError)
GATES = [
    *(Gate(name) for name in ACTIVATIONS),
    Gate.clamped_swiglu(),
    Gate("sigmoid", alpha=0.5, gate_multiplier=1.25, output_multiplier=0.75, up_offset=-0.5),
]


class Values(unittest.TestCase):
    def test_every_type_and_gate_is_within_its_bound_of_fp64(self) -> None:
        for dtype in DTYPES:
            for gate in GATES:
                weights = Weights(40, 56, dtype, bias=True)
                x = weights.x(2, 5)
                oracle = Oracle(x, weights, gate)
                h = ops.gate_up(x, *weights.gate_up(), gate=gate)
                y = ops.mlp(x, *weights.mlp(), gate=gate)
                with self.subTest(dtype=dtype, gate=gate):
                    self.assertEqual((h.dtype, y.dtype), (dtype, dtype))
                    self.assertLess(worst(h, oracle.h, oracle.h_bound), 1)
                    self.assertLess(worst(y, oracle.y, oracle.y_bound), 1)

    def test_the_bound_catches_a_swap_of_gate_and_up(self) -> None:
        weights = Weights(40, 56, torch.bfloat16)
        x = weights.x(7)
        oracle = Oracle(x, weights)
        swapped = ops.gate_up(x, weights.w_up, weights.w_gate)
        self.assertGreater(worst(swapped, oracle.h, oracle.h_bound), 1)

    def test_down_adds_bias_and_residual(self) -> None:
        weights = Weights(24, 40, torch.float32, bias=True)
        h, residual = torch.randn(3, 40), torch.randn(3, 24)
        expected = h.double() @ weights.w_down.double().T + weights.b_down.double() + residual
        y = ops.down(h, weights.w_down, weights.b_down, residual)
        bound = 44 * 2.0**-24 * (h.abs().double() @ weights.w_down.abs().double().T + 4)
        self.assertLess(worst(y, expected, bound), 1)

    def test_saved_g_and_u_are_the_pre_activations(self) -> None:
        weights = Weights(40, 56, torch.bfloat16, bias=True)
        x = weights.x(6)
        oracle = Oracle(x, weights)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        self.assertLess(worst(g, oracle.g, oracle.g_bound), 1)
        self.assertLess(worst(u, oracle.u, oracle.u_bound), 1)
        self.assertTrue(torch.equal(h, ops.gate_up(x, *weights.gate_up())))
        y, g2, u2 = RAW.mlp_save(x, *weights.mlp())
        self.assertTrue(torch.equal(g, g2) and torch.equal(u, u2))
        self.assertTrue(torch.equal(y, ops.mlp(x, *weights.mlp())))

    def test_weights_may_be_narrower_than_x(self) -> None:
        weights = Weights(40, 56, torch.bfloat16)
        x = weights.x(6, dtype=torch.float32)
        oracle = Oracle(x, weights)
        y = ops.mlp(x, *weights.mlp())
        self.assertEqual(y.dtype, torch.float32)
        self.assertLess(worst(y, oracle.y, oracle.y_bound), 1)

    def test_no_tokens_and_one_token_without_leading_dimensions(self) -> None:
        weights = Weights(24, 40, torch.float32)
        self.assertEqual(ops.mlp(weights.x(0), *weights.mlp()).shape, (0, 24))
        x = weights.x()
        self.assertTrue(torch.equal(ops.mlp(x, *weights.mlp()), ops.mlp(x[None], *weights.mlp())[0]))


class Layouts(unittest.TestCase):
    """The weights as models ship them: the same bits from every layout."""

    def setUp(self) -> None:
        self.weights = Weights(48, 64, torch.bfloat16)
        self.x = self.weights.x(5)
        self.expected = ops.gate_up(self.x, self.weights.w_gate, self.weights.w_up)

    def check(self, w_gate: Tensor, w_up: Tensor) -> None:
        self.assertFalse(w_gate.is_contiguous() and w_gate.storage_offset() == 0 and w_gate.dim() == 3)
        self.assertTrue(torch.equal(ops.gate_up(self.x, w_gate, w_up), self.expected))

    def test_halves_of_one_buffer(self) -> None:
        merged = torch.cat([self.weights.w_gate, self.weights.w_up])
        self.check(merged[:64], merged[64:])

    def test_rows_by_turns_in_either_order(self) -> None:
        rows = torch.stack([self.weights.w_gate, self.weights.w_up], 1).flatten(0, 1)
        self.check(rows[0::2], rows[1::2])
        rows = torch.stack([self.weights.w_up, self.weights.w_gate], 1).flatten(0, 1)
        self.check(rows[1::2], rows[0::2])

    def test_blocks_by_turns(self) -> None:
        pair = (self.weights.w_gate.view(8, 8, 48), self.weights.w_up.view(8, 8, 48))
        blocks = torch.stack(pair, 1)
        self.check(blocks[:, 0], blocks[:, 1])
        grown = [b.detach().requires_grad_() for b in (blocks[:, 0], blocks[:, 1])]
        ops.gate_up(self.x, *grown).sum().backward()
        flat = [w.clone().requires_grad_() for w in (self.weights.w_gate, self.weights.w_up)]
        ops.gate_up(self.x, *flat).sum().backward()
        for block, whole in zip(grown, flat):
            self.assertTrue(torch.equal(block.grad.flatten(0, 1), whole.grad))

    def test_padded_and_broadcast_tokens_and_odd_addresses(self) -> None:
        padded = torch.empty(5, 64, dtype=torch.bfloat16)[:, :48].copy_(self.x)
        self.assertTrue(torch.equal(ops.gate_up(padded, *self.weights.gate_up()), self.expected))
        shifted = torch.empty(5 * 48 + 1, dtype=torch.bfloat16)[1:].view(5, 48).copy_(self.x)
        self.assertTrue(torch.equal(ops.gate_up(shifted, *self.weights.gate_up()), self.expected))
        row = self.x[:1].expand(5, 48)
        self.assertTrue(
            torch.equal(ops.gate_up(row, *self.weights.gate_up()), self.expected[:1].expand(5, 64))
        )

    def test_gate_mul_of_one_merged_activation(self) -> None:
        merged = torch.randn(3, 4, 128)
        h = ops.gate_mul(merged[..., :64], merged[..., 64:])
        expected = gated(merged[..., :64].double(), merged[..., 64:].double())
        self.assertLess(worst(h, expected, 10 * 2.0**-24 * expected.abs() + 2.0**-120), 1)


class Outputs(unittest.TestCase):
    """The .out forms write where they are told, and nothing else."""

    def test_they_equal_the_functions(self) -> None:
        weights = Weights(24, 40, torch.bfloat16, bias=True)
        x, dy = weights.x(5), weights.x(5, seed=2)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        dh = torch.randn(5, 40).bfloat16()
        for name, arguments, results in (
            ("gate_up", (x, *weights.gate_up()), ("out",)),
            ("down", (h, weights.w_down, weights.b_down), ("out",)),
            ("mlp", (x, *weights.mlp()), ("out",)),
            ("gate_mul", (g, u), ("out",)),
            ("gate_mul_grad", (dh, g, u), ("dg", "du")),
            ("gate_up_grad", (dy, weights.w_down, g, u), ("dg", "du", "h")),
            ("mlp_grad", (dy, x, weights.w_gate, weights.w_up, weights.w_down, g, u),
             ("dx", "dw_gate", "dw_up", "dw_down")),
        ):  # fmt: skip
            expected = getattr(RAW, name)(*arguments)
            expected = expected if isinstance(expected, (tuple, list)) else (expected,)
            padded = [torch.full((*t.shape[:-1], t.shape[-1] + 8), math.nan, dtype=t.dtype)
                      for t in expected[: len(results)]]  # fmt: skip
            views = [p[..., : t.shape[-1]] for p, t in zip(padded, expected)]
            with self.subTest(name):
                done = getattr(RAW, name).out(*arguments, **dict(zip(results, views)))
                self.assertIsNone(done)
                for view, pad, want in zip(views, padded, expected):
                    self.assertTrue(torch.equal(view, want))
                    self.assertTrue(torch.isnan(pad[..., want.shape[-1] :]).all())

    def test_a_residual_may_be_added_in_place(self) -> None:
        weights = Weights(24, 40, torch.bfloat16)
        x, y = weights.x(5), weights.x(5, seed=2)
        expected = ops.mlp(x, *weights.mlp(), residual=y)
        RAW.mlp.out(x, *weights.mlp(), y, out=y)
        self.assertTrue(torch.equal(y, expected))

    def test_weight_gradients_accumulate_in_fp32(self) -> None:
        weights = Weights(24, 40, torch.bfloat16)
        x, dy = weights.x(5), weights.x(5, seed=2)
        sums = {f"dw_{n}": torch.zeros(w.shape) for n, w in zip(("gate", "up", "down"), weights.mlp())}
        arguments = (dy, x, weights.w_gate, weights.w_up, weights.w_down)
        RAW.mlp_grad.out(*arguments, **sums)
        once = {name: value.clone() for name, value in sums.items()}
        RAW.mlp_grad.out(*arguments, accumulate=True, **sums)
        for name, value in sums.items():
            self.assertTrue(torch.equal(value, 2 * once[name]), name)


class Gradients(unittest.TestCase):
    """Analytic gradients against differences, in fp64 on the reference variant."""

    # The clamp has kinks where differences mean nothing: a limit no input comes near, and relu's
    # kink at 0 is hit with probability 0.
    GATES = (
        Gate("silu", alpha=1.3, limit=50.0, up_offset=1.0),
        Gate("gelu_erf", gate_multiplier=1.2, output_multiplier=0.5),
        Gate("relu"),
    )

    def leaves(self, *tensors: Tensor | None) -> list[Tensor | None]:
        return [t if t is None else t.detach().clone().requires_grad_() for t in tensors]

    def check(self, function: Callable[..., Tensor], *tensors: Tensor | None) -> None:
        self.assertTrue(torch.autograd.gradcheck(function, self.leaves(*tensors)))

    def test_every_operator_both_ways_with_and_without_biases(self) -> None:
        for gate in self.GATES:
            for bias in (False, True):
                weights = Weights(5, 6, torch.float64, bias=bias)
                x, residual = weights.x(2, 2), weights.x(2, 2, seed=2)
                for recompute in (False, True):
                    with self.subTest(gate=gate, bias=bias, recompute=recompute):
                        options = {"gate": gate, "recompute": recompute}
                        self.check(
                            lambda *a: ops.gate_up(*a, **options), x, *weights.gate_up()
                        )
                        self.check(
                            lambda *a: ops.mlp(*a, **options), x, *weights.mlp(), residual
                        )
                h = torch.randn(3, 6, dtype=torch.float64)
                self.check(ops.down, h, weights.w_down, weights.b_down, weights.x(3))
                self.check(lambda g, u: ops.gate_mul(g, u, gate=gate), h, h.flip(0))

    def test_gate_up_grad_is_the_gradient_through_down(self) -> None:
        weights = Weights(5, 6, torch.float64)
        x, dy = weights.x(4), weights.x(4, seed=2)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        dg, du, again = RAW.gate_up_grad(dy, weights.w_down, g, u)
        want = RAW.gate_mul_grad(dy @ weights.w_down, g, u)
        for got, expected in zip((dg, du, again), (*want, h)):
            self.assertLess((got - expected).abs().max(), 2.0**-48 * expected.abs().max())

    def test_bfloat16_follows_fp32_through_a_zero_stride_gradient(self) -> None:
        low, high = Weights(40, 56, torch.bfloat16), Weights(40, 56, torch.bfloat16)
        inputs = self.leaves(low.x(9), *low.mlp()[:3])
        ops.mlp(*inputs).sum().backward()
        exact = self.leaves(*(t.double() for t in (high.x(9), *high.mlp()[:3])))
        (gated(exact[0] @ exact[1].T, exact[0] @ exact[2].T) @ exact[3].T).sum().backward()
        for got, expected in zip(inputs, exact):
            self.assertEqual(got.grad.dtype, torch.bfloat16)
            # g, u, h, dg, du and the result are each rounded to 8 bits; the sums are of random signs.
            scale = expected.grad.abs().max()
            self.assertLess((got.grad - expected.grad).abs().max(), 6 * 2.0**-8 * scale)

    def test_only_what_is_asked_for_is_computed(self) -> None:
        weights = Weights(24, 40, torch.float32, bias=True)
        full = self.leaves(weights.x(5), *weights.mlp())
        ops.mlp(*full).square().sum().backward()
        for index in range(7):
            some = [t.detach() for t in full]
            some[index].requires_grad_()
            ops.mlp(*some).square().sum().backward()
            self.assertTrue(torch.equal(some[index].grad, full[index].grad))
            self.assertTrue(all(t.grad is None for i, t in enumerate(some) if i != index))

    def test_recompute_keeps_no_activation(self) -> None:
        weights = Weights(24, 40, torch.float32)
        for recompute, expected in ((False, 2), (True, 0)):
            inputs = self.leaves(weights.x(5), *weights.mlp()[:3])
            kept: list[Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: kept.append(t) or t, lambda t: t
            ):
                ops.mlp(*inputs, recompute=recompute)
            self.assertEqual(sum(t.shape == (5, 40) for t in kept), expected)


class Errors(unittest.TestCase):
    def test_each_names_its_operand(self) -> None:
        weights = Weights(24, 40, torch.float32, bias=True)
        x, (w_gate, w_up, w_down, b_gate, b_up, b_down) = weights.x(5), weights.mlp()
        for wrong, message in (
            (lambda: ops.mlp(x, w_gate, w_up[:-1], w_down), r"^w_up: expected shape \[40, 24\]"),
            (lambda: ops.mlp(x[:, 1:], w_gate, w_up, w_down), r"^w_gate: expected shape \[40, 23\]"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down.T), "^w_down: expected a contiguous last"),
            (lambda: ops.mlp(x, w_gate, w_up.half(), w_down), "^w_up: expected fp32, got fp16"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, b_gate), "^b_up: got null"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, b_gate[1:], b_up), "^b_gate: expected shape"),
            (lambda: ops.mlp(x, w_gate, w_up, w_down, residual=x[1:]), "^residual: expected shape"),
            (lambda: ops.mlp(x.int(), w_gate, w_up, w_down), "^x: expected bfloat16, float16"),
            (lambda: ops.mlp(x[0, 0], w_gate, w_up, w_down), "^x: expected at least one dimension"),
            (lambda: ops.gate_up(x, w_gate, torch.cat([w_up, w_up], 1)[:, :24]), "^w_up: .*strides"),
            (lambda: ops.gate_up(x.T, w_gate, w_up), "^x: expected a contiguous last dimension"),
            (lambda: ops.gate_up(x.view(5, 2, 12).transpose(0, 1), w_gate, w_up), "^x: its leading"),
            (lambda: ops.gate_mul(x, x[:3]), r"^u: expected shape \[5, 24\], got \[3, 24\]"),
            (lambda: RAW.gate_mul(x, x, 99), "^gate.activation: got 99"),
            (lambda: RAW.gate_mul(x, x, -1), "^activation: got -1"),
            (lambda: RAW.gate_mul(x, x, 0, 1.0, -2.0), "^gate.limit: got -2"),
            (lambda: RAW.mlp.out(x, w_gate, w_up, w_down, out=x), "^y: the output overlaps x"),
            (lambda: RAW.mlp.out(x, w_gate, w_up, w_down, out=x[:2].clone()), "^y: expected shape"),
        ):  # fmt: skip
            with self.assertRaisesRegex(REFUSED, message):
                wrong()

    def test_other_devices_have_no_kernel(self) -> None:
        weights = Weights(24, 40, torch.float32)
        inputs = [t.to("meta") for t in (weights.x(5), *weights.mlp()[:3])]
        self.assertEqual(ops.mlp(*inputs).device.type, "meta")  # the fake


def _everything() -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """One call of every overload, for opcheck."""
    weights = Weights(24, 40, torch.float32, bias=True)
    x, dy, dh = weights.x(2, 3), weights.x(2, 3, seed=2), torch.randn(2, 3, 40)
    h, g, u = (t.detach() for t in RAW.gate_up_save(x, *weights.gate_up()))
    leaves = [t.clone().requires_grad_() for t in weights.mlp()]
    w_gate, w_up, w_down, b_gate, b_up, b_down = leaves
    gate = Gate.clamped_swiglu().arguments
    live = x.clone().requires_grad_()
    grads = (dy, x, weights.w_gate, weights.w_up, weights.w_down)
    wide, narrow = torch.empty_like(h), torch.empty_like(x)
    plain = weights.mlp()
    return [
        (RAW.gate_up.default, (live, w_gate, w_up, b_gate, b_up, *gate), {}),
        (RAW.gate_up.out, (x, *plain[:2], *plain[3:5]), {"out": wide}),
        (RAW.gate_up_save.default, (live, w_gate, w_up), {}),
        (RAW.down.default, (h.clone().requires_grad_(), w_down, b_down, dy), {}),
        (RAW.down.out, (h, weights.w_down), {"out": narrow}),
        (RAW.mlp.default, (live, w_gate, w_up, w_down, b_gate, b_up, b_down, dy, *gate, True), {}),
        (RAW.mlp.out, (x, *plain), {"out": narrow}),
        (RAW.mlp_save.default, (live, w_gate, w_up, w_down), {}),
        (RAW.gate_mul.default, (g.clone().requires_grad_(), u), {}),
        (RAW.gate_mul.out, (g, u), {"out": wide}),
        (RAW.gate_mul_grad.default, (dh, g, u), {}),
        (RAW.gate_mul_grad.out, (dh, g, u), {"dg": wide, "du": torch.empty_like(wide)}),
        (RAW.gate_up_grad.default, (dy, weights.w_down, g, u), {}),
        (RAW.gate_up_grad.out, (dy, weights.w_down, g, u),
         {"dg": wide, "du": torch.empty_like(wide), "h": torch.empty_like(wide)}),
        (RAW.mlp_grad.default, (*grads, g, u), {"need_bias_down": True}),
        (RAW.mlp_grad.default, (*grads, None, None, *plain[3:5]), {"need_bias_gate_up": True}),
        (RAW.mlp_grad.default, grads, {"need_x": False}),
        (RAW.mlp_grad.out, grads, {"dx": narrow, "dw_down": torch.empty(24, 40)}),
    ]  # fmt: skip


class Tracing(unittest.TestCase):
    def test_opcheck_is_clean_for_every_overload(self) -> None:
        seen = set()
        for overload, arguments, keywords in _everything():
            with self.subTest(str(overload)):
                results = torch.library.opcheck(overload, arguments, keywords)
                self.assertEqual(set(results.values()), {"SUCCESS"})
                seen.add(str(overload))
        expected = {
            f"sluice.{name}.{overload}"
            for name in ops.OPERATORS
            for overload in getattr(RAW, name).overloads()
        }
        self.assertEqual(seen, expected)

    def test_compiles_in_one_graph_for_every_token_count_forward_and_backward(self) -> None:
        weights = Weights(24, 40, torch.float32, bias=True)
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
        weights = Weights(24, 40, torch.float32)

        def into(x: Tensor) -> Tensor:
            y = torch.empty_like(x)
            RAW.mlp.out(x, *weights.mlp(), out=y)
            return y + 1

        torch._dynamo.reset()
        x = weights.x(5)
        self.assertTrue(torch.equal(torch.compile(into, fullgraph=True)(x), into(x)))


class Calls(unittest.TestCase):
    def test_thread_counts_give_the_same_bits(self) -> None:
        weights = Weights(256, 512, torch.bfloat16)
        x = weights.x(33)
        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        several = ops.mlp(x, *weights.mlp())
        torch.set_num_threads(1)
        self.assertTrue(torch.equal(ops.mlp(x, *weights.mlp()), several))

    def test_host_threads_may_call_at_once(self) -> None:
        weights = Weights(64, 96, torch.bfloat16)
        xs = [weights.x(m + 1, seed=m) for m in range(16)]
        expected = [ops.mlp(x, *weights.mlp()) for x in xs]
        wrong: list[int] = []

        def work() -> None:
            for _ in range(20):
                for m, x in enumerate(xs):
                    if not torch.equal(ops.mlp(x, *weights.mlp()), expected[m]):
                        wrong.append(m)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_workspace_beyond_what_is_kept_serves_too(self) -> None:
        weights = Weights(16, 8192, torch.float32)
        x = weights.x(2100)  # h alone is 66 MiB
        self.assertGreater(2100 * 8192 * 4, 64 << 20)
        rows = torch.cat([ops.mlp(part, *weights.mlp()) for part in x.split(700)])
        torch.testing.assert_close(ops.mlp(x, *weights.mlp()), rows)


if __name__ == "__main__":
    unittest.main()
