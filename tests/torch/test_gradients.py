# SPDX-License-Identifier: Apache-2.0
"""Gradients of the Torch operators: against differences in fp64, what is computed and kept, what is
refused."""

import unittest
from collections.abc import Callable
from unittest import mock

import torch
from cases import gated
from test_ops import RAW, Called, OnDevice
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sluice import Gate, ops, torch_operators
from sluice.liger import LigerGELUMulFunction, LigerSiLUMulFunction


class Gradients(OnDevice):
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
                weights = self.weights(5, 6, torch.float64, bias=bias)
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
        weights = self.weights(5, 6, torch.float64)
        x, dy = weights.x(4), weights.x(4, seed=2)
        h, g, u = RAW.gate_up_save(x, *weights.gate_up())
        dg, du, again = RAW.gate_up_grad(dy, weights.w_down, g, u)
        want = RAW.gate_mul_grad(dy @ weights.w_down, g, u)
        for got, expected in zip((dg, du, again), (*want, h)):
            self.assertLess((got - expected).abs().max(), 2.0**-48 * expected.abs().max())

    def test_bfloat16_follows_fp32_through_a_zero_stride_gradient(self) -> None:
        low, high = self.weights(40, 56, torch.bfloat16), self.weights(40, 56, torch.bfloat16)
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
        weights = self.weights(24, 40, torch.float32, bias=True)
        full = self.leaves(weights.x(5), *weights.mlp())
        ops.mlp(*full).square().sum().backward()
        for index in range(7):
            some = [t.detach() for t in full]
            some[index].requires_grad_()
            ops.mlp(*some).square().sum().backward()
            self.assert_same(some[index].grad, full[index].grad)
            self.assertTrue(all(t.grad is None for i, t in enumerate(some) if i != index))

    def test_one_weights_gradient_is_not_three_weights(self) -> None:
        """On the CPU, where one operator gives all of them."""
        weights = self.weights(24, 40, torch.float32, bias=True)
        for wanted in ((1,), (3,), (1, 3, 6), (2, 4), (1, 2, 3)):
            inputs = [weights.x(5), *weights.mlp()]
            leaves = self.leaves(*(inputs[i] for i in wanted))
            for i, leaf in zip(wanted, leaves):
                inputs[i] = leaf
            y = ops.mlp(*inputs)
            with Called() as called:
                y.backward(weights.x(5, seed=2))
            if self.device == "cpu" and not torch_operators._products_by_torch(y):
                op = RAW.mlp_grad.default if wanted == (1, 2, 3) else RAW.mlp_grad.out
                self.assertIn(op, called.functions)
            whole = self.leaves(*(t.detach() for t in inputs))
            ops.mlp(*whole).backward(weights.x(5, seed=2))
            for i, leaf in zip(wanted, leaves):
                self.assert_same(leaf.grad, whole[i].grad)

    def test_recompute_keeps_no_activation(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        for recompute, expected in ((False, 2), (True, 0)):
            inputs = self.leaves(weights.x(5), *weights.mlp()[:3])
            kept: list[Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: kept.append(t) or t, lambda t: t
            ):
                ops.mlp(*inputs, recompute=recompute)
            self.assertEqual(sum(t.shape == (5, 40) for t in kept), expected)


    def test_second_derivatives_are_refused(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        x, *rest = self.leaves(weights.x(5), *weights.mlp())
        hidden = x @ rest[0].T
        for name, y in (
            ("mlp", ops.mlp(x, *rest)), ("gate_up", ops.gate_up(x, *rest[:2], *rest[3:5])),
            ("down", ops.down(hidden, rest[2])), ("gate_mul", ops.gate_mul(hidden, hidden + 1)),
            ("norm_mlp", ops.norm_mlp(x, x.detach()[0], *rest[:3])[0]),
        ):  # fmt: skip
            for loss in (y.sum(), y.square().sum()):
                plain = torch.autograd.grad(loss, x, retain_graph=True)[0]
                (first,) = torch.autograd.grad(loss, x, create_graph=True)
                with self.subTest(name):
                    self.assert_same(first, plain)  # Torch's norm has two backward passes on a GPU
                    with self.assertRaisesRegex(RuntimeError, "second derivatives are not defined"):
                        first.square().sum().backward()

    def test_a_second_derivative_by_an_input_is_refused_and_no_zero(self) -> None:
        """What asks for the derivative by the inputs alone, where an error on no path to them is not met."""
        weights = self.weights(8, 12, torch.float32, bias=True)
        x, dy = weights.x(3), weights.x(3, seed=2)
        w_gate, w_up, w_down, *biases = weights.mlp()
        functional = torch.autograd.functional
        for name, function in (
            ("mlp", lambda x: ops.mlp(x, *weights.mlp())),
            ("recompute", lambda x: ops.mlp(x, *weights.mlp(), recompute=True)),
            ("residual", lambda x: ops.mlp(x, *weights.mlp(), x)),
            ("gate_up", lambda x: ops.gate_up(x, *weights.gate_up())),
            ("w_gate", lambda w: ops.mlp(x, w, w_up, w_down, *biases)),
            ("linear", lambda w: ops.linear(x, w)),
            ("gate_mul", lambda x: ops.gate_mul(x, x)),
            ("silu_mul", lambda x: LigerSiLUMulFunction.apply(x, x)),
            ("gelu_mul", lambda x: LigerGELUMulFunction.apply(x, x)),
        ):  # fmt: skip
            (at,) = self.leaves(w_gate if name in ("w_gate", "linear") else x)
            for way in ("penalty", "hessian", "vhp", "jvp"):
                with self.subTest(name, way=way):
                    with self.assertRaisesRegex(RuntimeError, "second derivatives are not defined"):
                        if way == "penalty":
                            (first,) = torch.autograd.grad(function(at).sum(), at, create_graph=True)
                            torch.autograd.grad(first.square().sum(), at)
                        elif way == "jvp":  # by a second backward pass, through the incoming gradient
                            functional.jvp(function, at, torch.ones_like(at))
                        else:
                            more = (torch.ones_like(at),) if way == "vhp" else ()
                            getattr(functional, way)(lambda t: function(t).square().sum(), at, *more)
        # The incoming gradient is a residual's own, and stays what it was.
        inputs = self.leaves(x, dy)
        y = ops.down(x.new_zeros(3, 12), w_down, None, inputs[0])
        (first,) = torch.autograd.grad(y, inputs[0], inputs[1] * 2, create_graph=True)
        self.assertTrue(torch.equal(first, dy * 2))

    def test_what_is_saved_is_unpacked_once(self) -> None:
        """A checkpoint's recomputed tensors are handed out once, also where the graph of a gradient is kept."""
        weights = self.weights(8, 12, torch.float32)
        (x,) = self.leaves(weights.x(3))
        for create_graph in (False, True):
            y = checkpoint(lambda x: ops.mlp(x, *weights.mlp()), x, use_reentrant=False)
            (got,) = torch.autograd.grad(y.square().sum(), x, create_graph=create_graph)
            want = torch.autograd.grad(ops.mlp(x, *weights.mlp()).square().sum(), x)[0]
            self.assertTrue(torch.equal(got, want))

    def test_first_derivatives_of_one_input_may_be_kept_in_the_graph(self) -> None:
        """Only x wants a gradient; with 0 tokens too."""
        weights = self.weights(24, 40, torch.float32)
        for tokens in (5, 0):
            (x,) = self.leaves(weights.x(tokens))
            loss = ops.mlp(x, *weights.mlp()[:3]).square().sum()
            plain = torch.autograd.grad(loss, x, retain_graph=True)[0]
            first = torch.autograd.grad(loss, x, create_graph=True)[0]
            self.assertTrue(torch.equal(first, plain))

    def test_a_gradient_has_its_inputs_shape(self) -> None:
        """Also where the rows of an input lie otherwise than those of the result, and a bias is a row."""
        weights = self.weights(8, 12, torch.float64, bias=True)
        x, flat, h = weights.x(2, 3), weights.x(6, seed=2), self.randn(2, 3, 12, dtype=torch.float64)
        w_gate, w_up, w_down, *biases = weights.mlp()
        b_gate, b_up, b_down = (b[None] for b in biases)
        blocks = [w.unflatten(0, (2, -1)) for w in (w_gate, w_up, w_down)]
        self.check(ops.mlp, x, w_gate, w_up, w_down, b_gate, b_up, b_down, flat)
        self.check(lambda *a: ops.mlp(*a, recompute=True), flat, *blocks, b_gate, b_up, b_down, x)
        self.check(ops.gate_up, x, *blocks[:2], b_gate, b_up)
        self.check(ops.down, h, w_down, b_down, flat)
        self.check(ops.down, h, blocks[2])
        self.check(ops.gate_mul, h, h.flip(0).reshape(6, 12))
        self.check(ops.gate_mul, h.reshape(6, 12), h.flip(0))
        self.check(LigerSiLUMulFunction.apply, h, h.flip(0).reshape(6, 12))

    def test_a_narrower_bias_has_a_sum_that_is_rounded_once(self) -> None:
        weights = self.weights(8, 12, torch.float32)
        # In bf16 each is 1 and the sum 480, whose own neighbours are 2 apart.
        ones = torch.full((480, 8), 1.0 + 0.45 * 2.0**-7, device=self.device)
        narrow = [w.bfloat16() for w in weights.mlp()[:3]]
        for function in (
            lambda b: ops.mlp(ones, *narrow, b_down=b),
            lambda b: ops.down(weights.w_gate.new_zeros(480, 12), narrow[2], b),
        ):
            (b,) = self.leaves(torch.zeros(8, dtype=torch.bfloat16, device=self.device))
            function(b).backward(ones)
            self.assertEqual(b.grad.tolist(), [482.0] * 8)

    def test_several_gradients_at_once_are_those_one_by_one(self) -> None:
        weights = self.weights(8, 12, torch.float32)
        dys = torch.stack([weights.x(3, seed=seed) for seed in (2, 3)])
        for recompute in (False, True):
            inputs = self.leaves(weights.x(3), *weights.mlp()[:3])

            def gradients(dy: Tensor, **options: bool) -> tuple[Tensor, ...]:
                return torch.autograd.grad(ops.mlp(*inputs, recompute=recompute), inputs, dy, **options)

            apart = [torch.stack(pair) for pair in zip(*(gradients(dy) for dy in dys))]
            y = ops.mlp(*inputs, recompute=recompute)
            for together in (
                gradients(dys, is_grads_batched=True),
                torch.func.vmap(lambda dy: torch.autograd.grad(y, inputs, dy))(dys),
            ):
                for got, want in zip(together, apart):
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    def test_what_is_saved_may_not_be_overwritten(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        other, leaf, *rest = weights.x(5, seed=2), *self.leaves(weights.x(5), *weights.mlp()[:3])
        for write in (
            lambda x: x.add_(1),
            lambda x: RAW.mlp.out(other, *weights.mlp()[:3], out=x),
            lambda x: RAW.norm_mlp.out(
                other, other[0], *weights.mlp()[:3], other, out=other.clone(), x_sum=x
            ),
        ):
            for function in (ops.mlp, ops.gate_up, RAW.mlp_save, RAW.gate_up_save):
                x = leaf * 1
                result = function(x, *rest[: 3 if "mlp" in str(function) else 2])
                y = result if isinstance(result, Tensor) else result[0]
                write(x.detach())
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    y.sum().backward()


class GradientsByTorchsProducts(Gradients):
    """What GPUs do, on the CPU: dg and du in the place of g and u, the products by Torch."""

    def setUp(self) -> None:
        self.enterContext(mock.patch.object(torch_operators, "_products_by_torch", lambda _: True))

    def test_only_a_graph_that_is_not_kept_gives_up_g_and_u(self) -> None:
        weights = self.weights(24, 40, torch.float32, bias=True)
        for function, keep in ((ops.mlp, True), (ops.mlp, False), (RAW.mlp_save, False)):
            inputs = self.leaves(weights.x(5), *weights.mlp())
            results = function(*inputs)
            y = results if isinstance(results, Tensor) else results[0]
            g, u = (t for t in y.grad_fn.saved_tensors if t is not None and t.shape == (5, 40))
            before = u.clone()
            first = torch.autograd.grad(y.square().sum(), inputs, retain_graph=keep)
            # RAW.mlp_save's caller has g and u in hand.
            given_up = function is ops.mlp and not keep
            self.assertEqual(g.untyped_storage().nbytes() == 0, given_up)
            self.assertEqual(not torch.equal(u, before), given_up)
            if keep:
                for once, again in zip(first, torch.autograd.grad(y.square().sum(), inputs)):
                    self.assert_same(once, again)

    def test_what_hooks_keep_is_not_given_up(self) -> None:
        weights = self.weights(24, 40, torch.float32)
        inputs = self.leaves(weights.x(5), *weights.mlp()[:3])
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = ops.mlp(*inputs)
        before = [t.clone() for t in kept]
        torch.autograd.grad(y.square().sum(), inputs)
        for t, was in zip(kept, before):
            self.assertTrue(torch.equal(t, was))


if __name__ == "__main__":
    unittest.main()
