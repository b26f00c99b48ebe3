# SPDX-License-Identifier: Apache-2.0
"""``norm`` and ``linear`` beside the same in float64."""

from __future__ import annotations

import math
import unittest

import torch
from sluice import ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def expected_norm(r: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    wide = r.double()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return wide * scale * (weight.double() + offset)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(got: torch.Tensor, wanted: torch.Tensor, terms: int, size: torch.Tensor) -> bool:
    """Within the last rounding to the result's type, and float32 sums of so many terms whose magnitudes add
    up to ``size``."""
    unit = torch.finfo(torch.float32 if got.dtype != torch.float64 else torch.float64).eps
    bound = torch.finfo(got.dtype).eps * wanted.abs() + (terms + 8) * unit * size
    return bool((got.double() - wanted).abs().le(bound).all())


class NormTest(unittest.TestCase):
    def test_values_and_sum(self) -> None:
        for dtype in DTYPES:
            generator = seeded(1)
            x = torch.randn(3, 5, 64, generator=generator).to(dtype)
            residual = torch.randn(3, 5, 64, generator=generator).to(dtype)
            weight = torch.randn(64, generator=generator).to(dtype)
            for add in (None, residual):
                n, r = ops.norm(x, weight, add, eps=1e-5, weight_offset=1.0)
                total = x if add is None else x + add
                self.assertTrue(torch.equal(r, total))
                expected = expected_norm(total, weight, 1e-5, 1.0)
                self.assertTrue(close(n, expected, 64, expected.abs()), dtype)

    def test_gradients(self) -> None:
        x = torch.randn(4, 32, dtype=torch.float64, generator=seeded(2), requires_grad=True)
        weight = torch.randn(32, dtype=torch.float64, generator=seeded(3), requires_grad=True)
        residual = torch.randn(4, 32, dtype=torch.float64, generator=seeded(4), requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(lambda *a: ops.norm(*a)[0], (x, weight, residual)))

    def test_refuses_a_weight_of_another_width(self) -> None:
        with self.assertRaises((ValueError, RuntimeError)):
            ops.norm(torch.randn(2, 16), torch.randn(8))


    def test_training_takes_what_evaluation_takes(self) -> None:
        types = (torch.float32, torch.bfloat16)
        shapes = ((32, 16), (32, 16), (16, 32))
        for x_type in types:
            for n_type in types:
                for w_type in types:
                    x = torch.randn(3, 16).to(x_type)
                    mlp = [torch.randn(shape).to(w_type) for shape in shapes]
                    taken = []
                    for wants in (False, True):
                        weight = torch.ones(16, dtype=n_type, requires_grad=wants)
                        ops.norm(x, weight)
                        try:
                            taken.append(bool(ops.norm_mlp(x, weight, *mlp)))
                        except ValueError as error:
                            self.assertIn("norm_weight: expected", str(error))
                            taken.append(False)
                    self.assertEqual(taken[0], taken[1], (x_type, n_type, w_type))
        x = torch.randn(4, 16)
        for wants in (False, True):
            weight = torch.ones(16, requires_grad=wants)
            for options in (
                {"x_residual": torch.randn(16)}, {"x_residual": x.bfloat16()}, {"eps": -1.0}, {"eps": 0.0},
                {"eps": 2.0**-150}, {"eps": 2.0**128 - 2.0**103}, {"eps": math.inf}, {"eps": math.nan},
                {"weight_offset": math.inf}, {"weight_offset": -1e39},
            ):  # fmt: skip
                with self.subTest(wants=wants, **options), self.assertRaises(ValueError):
                    ops.norm(x, weight, **options)
            for eps in (1.1 * 2.0**-150, 3e38):
                ops.norm(x, weight, eps=eps)
            for wrong in (x.int(), x.to(torch.complex64), torch.tensor(1.0)):
                message = "^x: expected (bfloat16, float16|at least one dim)"
                with self.subTest(wants=wants, wrong=wrong), self.assertRaisesRegex(ValueError, message):
                    ops.norm(wrong, weight if wrong.dim() else weight[0])


class LinearTest(unittest.TestCase):
    def test_is_a_linear_layer(self) -> None:
        layer = torch.nn.Linear(48, 40, dtype=torch.float64)
        x = torch.randn(2, 7, 48, dtype=torch.float64, generator=seeded(5))
        residual = torch.randn(2, 7, 40, dtype=torch.float64, generator=seeded(6))
        got = ops.linear(x, layer.weight, layer.bias, residual)
        size = x.abs() @ layer.weight.abs().T + layer.bias.abs() + residual.abs()
        self.assertTrue(close(got.detach(), (layer(x) + residual).detach(), 48, size.detach()))

    def test_gradients(self) -> None:
        x = torch.randn(3, 24, dtype=torch.float64, generator=seeded(7), requires_grad=True)
        weight = torch.randn(16, 24, dtype=torch.float64, generator=seeded(8), requires_grad=True)
        bias = torch.randn(16, dtype=torch.float64, generator=seeded(9), requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(ops.linear, (x, weight, bias)))
