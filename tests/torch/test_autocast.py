# SPDX-License-Identifier: Apache-2.0
"""The operators and ``GatedMLP`` under autocast: what eager Torch's products have there."""

import unittest

import torch
from cases import Weights
from test_ops import RAW, Called
from torch import Tensor
from torch.nn.functional import linear, silu

from sluice import ops
from sluice.nn import GatedMLP

LOW = torch.bfloat16


def eager(x: Tensor, w: Weights) -> Tensor:
    h = silu(linear(x, w.w_gate, w.b_gate)) * linear(x, w.w_up, w.b_up)
    return linear(h, w.w_down, w.b_down)


class Autocast(unittest.TestCase):
    def setUp(self) -> None:
        self.w = Weights(24, 40, torch.float32, bias=True)
        self.x, self.residual = self.w.x(5), self.w.x(5, seed=2)
        self.norm = torch.linspace(0.5, 1.5, 24)

    def test_operands_are_cast_and_sums_are_not(self) -> None:
        w, x, r = self.w, self.x, self.residual
        low = [t.to(LOW) for t in w.mlp()]
        h = torch.randn(5, 40, generator=torch.Generator().manual_seed(3))
        n, total = ops.norm(x, self.norm, r)
        with torch.no_grad():
            for given in (x, x.to(LOW)):
                y = ops.mlp(given.to(LOW), *low)
                for got, want in (
                    (lambda: ops.mlp(given, *w.mlp()), y),
                    (lambda: ops.mlp(given, *w.mlp()[:3]), ops.mlp(given.to(LOW), *low[:3])),
                    (lambda: ops.mlp(given, *w.mlp(), r), y + r),
                    (lambda: ops.mlp(given, *low, r.view(1, 5, 24)), y + r),
                    (lambda: ops.gate_up(given, *w.gate_up()), ops.gate_up(given.to(LOW), *low[:2], *low[3:5])),
                    (lambda: ops.linear(h, w.w_down, w.b_down, r),
                     ops.linear(h.to(LOW), low[2], low[5]) + r),
                    (lambda: ops.mlp(given, *w.mlp(), next_norm=self.norm)[1], ops.norm(y, self.norm)[0]),
                    (lambda: ops.norm_mlp(x, self.norm, *w.mlp()[:3], r, add_sum=True)[0],
                     ops.mlp(n.to(LOW), *low[:3]) + total),
                ):  # fmt: skip
                    with torch.autocast("cpu", dtype=LOW):
                        value = got()
                    self.assertEqual(value.dtype, want.dtype)
                    self.assertTrue(torch.equal(value, want))

    def test_gradients_reach_the_parameters_in_their_type(self) -> None:
        for x in (self.x, self.x.to(LOW)):
            leaves = [t.clone().requires_grad_() for t in (x, *self.w.mlp())]
            with torch.autocast("cpu", dtype=LOW), Called() as called:
                y = ops.mlp(*leaves)
            self.assertIn(RAW.mlp_save.default, called.functions)
            y.sum().backward()
            exact = [t.detach().clone().requires_grad_() for t in (self.x, *self.w.mlp())]
            ops.mlp(*exact).sum().backward()
            for leaf, want in zip(leaves, exact):
                self.assertEqual(leaf.grad.dtype, leaf.dtype)
                # As in test_gradients: a rounding to 8 bits of each operand and of g, u, h, dg, du and the result.
                scale = want.grad.abs().max()
                self.assertLess((leaf.grad - want.grad).abs().max(), 8 * 2.0**-8 * scale)

    def test_what_torch_does_not_cast(self) -> None:
        wide = Weights(24, 40, torch.float64)
        want = ops.mlp(wide.x(3), *wide.mlp()[:3])
        with torch.autocast("cpu", dtype=LOW):
            self.assertTrue(torch.equal(ops.mlp(wide.x(3), *wide.mlp()[:3]), want))
            with torch.autocast("cpu", enabled=False):
                self.assertEqual(ops.mlp(self.x, *self.w.mlp()).dtype, torch.float32)

    def test_modules_and_graphs(self) -> None:
        torch.manual_seed(0)
        mlp = GatedMLP(24, 40)
        # Inputs, g, u, h and the result are each rounded to 8 bits; those of a sum of 40 may add up to 4 times one.
        near = {"rtol": 4 * 2.0**-8, "atol": 4 * 2.0**-8}
        compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", dtype=LOW):
            want = mlp._by_parts(mlp.gate_proj, mlp.up_proj, mlp.down_proj, self.x, self.residual)
            for module in (mlp, compiled):
                got = module(self.x, self.residual)
                self.assertEqual(got.dtype, want.dtype)
                torch.testing.assert_close(got, want, **near)
            self.assertEqual(mlp(self.x.to(LOW)).dtype, LOW)
            torch.testing.assert_close(ops.mlp(self.x, *self.w.mlp()), eager(self.x, self.w), **near)


if __name__ == "__main__":
    unittest.main()
