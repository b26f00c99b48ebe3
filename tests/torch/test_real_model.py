# SPDX-License-Identifier: Apache-2.0
"""bench/real_model.py, on little text."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import real_model  # noqa: E402


class RealModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.tokenizer, cls.exact = real_model.load("cpu")

    def test_a_row_of_perplexity_has_both_and_their_distances_to_fp32(self) -> None:
        with mock.patch.object(real_model, "WINDOW", 64), torch.no_grad():
            exact, rounded = real_model.perplexity(self.tokenizer, self.exact, "cpu", 2)
        for row in (exact, rounded):
            self.assertLess(abs(row["perplexity"] / row["baseline_perplexity"] - 1), 0.05)
            self.assertEqual((row["model"], row["draws"]), ("SmolLM2-135M-Instruct", 2))
            self.assertEqual((row["variant"], row["config"]), ("sluice.patch", "auto"))
            work = 2 * 64 * 3 * 576 * 1536 * 30
            self.assertAlmostEqual(row["tflops"] * row["us"] * 1e6 / work, 1)
        self.assertLess(exact["rel_err"], 1e-4)
        self.assertEqual(exact["baseline_rel_err"], 0)
        self.assertLess(rounded["rel_err"], 1.5 * rounded["baseline_rel_err"])
        self.assertGreater(rounded["mean_diff"], 0)

    def test_both_models_train_alike(self) -> None:
        with mock.patch.object(real_model, "TRAINED", 16):
            rows = list(real_model.training(self.tokenizer, self.exact, "cpu", "fp32", 3))
        self.assertEqual([row["step"] for row in rows], [1, 2, 3])
        for row in rows:
            self.assertLess(abs(row["loss"] / row["baseline_loss"] - 1), 1e-3)
        self.assertEqual(len({row["loss"] for row in rows}), 3)


if __name__ == "__main__":
    unittest.main()
