# SPDX-License-Identifier: Apache-2.0
"""bench/numerics.py on a CPU: its statistics, and the study's figure by them."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import numerics


class Numerics(unittest.TestCase):
    def test_differences_are_their_formulas(self) -> None:
        reference = torch.tensor([[3.0, -4.0], [0.0, 12.0]])
        h = reference + torch.tensor([[0.5, 0.0], [-1.0, 2.0]])
        largest, mean, relative, norm = numerics.difference(h, reference)
        self.assertEqual(largest, 2.0)
        self.assertAlmostEqual(mean, 3.5 / 4)
        self.assertAlmostEqual(relative, 3.5 / 19)
        self.assertAlmostEqual(norm, (5.25 / 169) ** 0.5)

    @unittest.skipIf(numerics.DEVICE != "cpu", "a bench there")
    def test_the_studys_relative_difference_is_the_ratio_of_norms(self) -> None:
        line = numerics.square(1024, 2)
        self.assertAlmostEqual(line["norm_diff"] / line["study_rel_diff"], 1, delta=0.01)
        self.assertAlmostEqual(line["mean_diff"] / 8.08e-8, 1, delta=0.02)


if __name__ == "__main__":
    unittest.main()
