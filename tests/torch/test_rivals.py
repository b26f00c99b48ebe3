# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks beside other libraries call: Sluice through its C ABI on tensors' memory."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from rivals import training  # noqa: E402
from rivals.case import Case, Setup, parse  # noqa: E402
from rivals.native import Operator  # noqa: E402
from rivals.timing import check, measure, rows_of  # noqa: E402


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


class SiluMul(torch.autograd.Function):
    """In the place of Liger's, which needs a GPU."""

    @staticmethod
    def forward(ctx: Any, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(g, u)
        return F.silu(g) * u

    @staticmethod
    def backward(ctx: Any, dh: torch.Tensor) -> tuple[torch.Tensor, ...]:
        g, u = ctx.saved_tensors
        s = torch.sigmoid(g)
        return dh * u * s * (1 + g * (1 - s)), dh * F.silu(g)


def fused(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """In the place of LigerMLPFunction."""
    return F.linear(SiluMul.apply(x @ a.t(), x @ b.t()), c)


def interleaved(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """In the place of QuACK's mlp_func."""
    return fused(x, w[::2], w[1::2], c)


class TrainingTest(unittest.TestCase):
    RIVALS = {"torch_eager", "torch_compile", "liger", "liger_mlp", "quack"}

    def setup_of(self, words: str, **other: Any) -> tuple[Case, Setup]:
        torch.manual_seed(3)
        case = parse(f"20x64x96:mlp_train:fp32{words}", {"mlp_train"}, "cpu")
        assert case is not None
        places = {
            "liger": lambda: SimpleNamespace(LigerSiLUMulFunction=SiluMul),
            "liger_mlp": lambda: fused,
            "quack_mlp": lambda case: interleaved,
            **other,
        }
        with mock.patch.multiple(training, **places), mock.patch("torch.compile", lambda f: f):
            return case, training.mlp_train(case)

    def test_every_candidate_computes_what_fp64_does(self) -> None:
        for words in ("", ":torch", ":fwd", ":torch:fwd", ":recompute", ":torch:recompute"):
            with self.subTest(words):
                case, setup = self.setup_of(words)
                self.assertEqual({c.name for c in setup.candidates}, {"sluice", *self.RIVALS})
                wanted = {"y"} if case.fwd else {"y", "dx", "dw_gate", "dw_up", "dw_down"}
                self.assertEqual(setup.exact.keys(), wanted)
                check(case, setup)
                for candidate in setup.candidates:
                    self.assertGreaterEqual(candidate.outputs().keys(), wanted, candidate.name)
                    self.assertEqual("dx" in candidate.outputs(), not case.fwd, candidate.name)

    def test_a_wrong_candidate_is_caught(self) -> None:
        for words in (":torch", ":torch:fwd"):
            case, setup = self.setup_of(words, liger_mlp=lambda: lambda *t: fused(*t) * 1.001)
            with self.assertRaisesRegex(RuntimeError, "liger_mlp"):
                check(case, setup)

    def test_rows_say_pass_policy_and_baseline(self) -> None:
        for words, wanted in ((":torch", "full"), (":torch:fwd", "fwd")):
            case, setup = self.setup_of(words)
            samples = measure(case, setup, 0, rounds=1)
            meta = {"read_tbps": None, "gemm_tflops": None}
            rows = rows_of(case, setup, check(case, setup), samples, meta)
            self.assertEqual({row["baseline"] for row in rows}, self.RIVALS)
            for row in rows:
                got = (row["op"], row["pass"], row["policy"], row["variant"])
                self.assertEqual(got, ("mlp_train", wanted, "save", "sluice.ops.mlp"))

    def test_the_list_is_known(self) -> None:
        path = Path(__file__).parents[2] / "bench/problems/training_rivals.txt"
        lines = [t for t in path.read_text().splitlines() if not t.startswith("#")]
        cases = [parse(t, {"mlp_train"}, "cpu") for t in lines]
        self.assertNotIn(None, cases)
        passes = {(c.m, c.d, c.h, c.fwd) for c in cases if c and c.torch and not c.recompute}
        self.assertEqual(len(passes), 4 * 4 * 2)


if __name__ == "__main__":
    unittest.main()
