# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks beside other libraries call: Sluice through its C ABI on tensors' memory."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from rivals.case import Case  # noqa: E402
from rivals.native import Operator  # noqa: E402


class OperatorTest(unittest.TestCase):
    def test_a_bound_run_writes_the_operators_result(self) -> None:
        torch.manual_seed(1)
        case = Case("5x64x96:fp32", 5, 64, 96, dtype="fp32", device="cpu")
        x, gate, up, down = (
            case.normal(*s) for s in ((5, 64), (96, 64), (96, 64), (64, 96))
        )  # fmt: skip
        y = torch.full((5, 64), torch.nan)
        run = Operator("mlp", case).bind(x=x, w_gate=gate, w_up=up, w_down=down, y=y)
        wide = [t.double() for t in (x, gate, up, down)]
        wanted = (F.silu(wide[0] @ wide[1].T) * (wide[0] @ wide[2].T)) @ wide[3].T
        for _ in range(2):
            y.fill_(torch.nan)
            run()
            self.assertLess((y - wanted).abs().max().item(), 1e-5 * wanted.abs().max().item())

    def test_row_strides_are_the_operands(self) -> None:
        torch.manual_seed(2)
        case = Case("3x32x48:fp32", 3, 32, 48, dtype="fp32", device="cpu")
        gate, up = case.normal(3, 48), case.normal(3, 48)
        wide = torch.full((3, 64), torch.nan)
        made = Operator("gate_mul", case, {"h": 64 * 4})
        made.bind(g=gate, u=up, h=wide)()
        torch.testing.assert_close(wide[:, :48], F.silu(gate) * up)
        self.assertTrue(wide[:, 48:].isnan().all())

    def test_a_refused_run_raises(self) -> None:
        case = Case("3x32x48:fp32", 3, 32, 48, dtype="fp32", device="cpu")
        run = Operator("gate_mul", case).bind(g=case.normal(3, 48), u=case.normal(3, 48))
        with self.assertRaisesRegex(RuntimeError, "^h: got null"):
            run()


if __name__ == "__main__":
    unittest.main()
