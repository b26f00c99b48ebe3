# SPDX-License-Identifier: Apache-2.0
"""``python -m sluice.foreign``: PyTorch eager passes, wrong kernels are caught, refusals are skips."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sluice import capi, foreign

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"
WRONG = """
from torch.nn.functional import silu

def gate_mul(problem, t):
    if problem.gate.activation != "silu":
        raise NotImplementedError("silu alone")
    h = silu(t.g) * t.u
    if problem.m == 1:
        raise ValueError("no kernel for one token")
    if problem.m == 2:
        h[-1] *= 1.005
    if problem.m == 3:
        t.g[-1, -1] = 3
    if problem.m == 4:
        raise KeyboardInterrupt
    t.h.copy_(h)
"""


def check(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "sluice.foreign", *map(str, words)]
    # Torch's own threads would take longer to start than these cases to run.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=280
    )


class Foreign(unittest.TestCase):
    def setUp(self) -> None:
        if not (capi.library_folder() / foreign.LIBRARY).is_file():
            self.skipTest(f"{foreign.LIBRARY} was not built")

    def test_torch_eager_passes_unfused(self) -> None:
        done = check(EXAMPLES / "torch_eager.py", "--unfused", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        for op in ("gate_up", "down", "mlp", "gate_mul", "gate_mul_grad"):
            self.assertRegex(done.stdout, rf"(?m)^{op} +[0-9]{{3}} +0 +[0-9]+$")
        self.assertIn("w_gate: blocks of 8 rows are no tensor", done.stdout)
        self.assertIn("w_gate: q8_0 is no type of Torch's", done.stdout)

    def test_torch_eager_rounds_more_often_than_a_fused_kernel(self) -> None:
        case = "64x64x128:gate_mul:bf16"
        words = (EXAMPLES / "torch_eager.py", "--device", "cpu")
        done = check(*words, case)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"repeat with: python -m sluice.foreign {words[0]} --device cpu '64x64x128:gate_mul'", done.stdout)
        self.assertEqual(check(*words, "64x64x128:gate_mul:fp32").returncode, 0)
        self.assertEqual(check(*words, "64x64x128:gate_mul:bf16:round_gate").returncode, 0)

    def test_the_command_of_results_can_be_run(self) -> None:
        done = check(EXAMPLES / "torch_eager.py", "2x8x16:gate_mul:fp32", "--device", "cpu", "--json", "-")
        meta = json.loads(done.stdout[done.stdout.index("{"):])["meta"]
        self.assertEqual(meta["command"], "python -m sluice.foreign torch_eager.py 2x8x16:gate_mul:fp32 --device cpu --json -")

    def test_wrong_kernels_are_caught(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kernels = Path(folder) / "kernels.py"
            kernels.write_text(WRONG, encoding="utf-8")
            for case, code, text in (
                ("5x64x96:gate_mul:fp32", 0, "passed "),
                ("5x64x96:gate_mul:fp32:relu", 3, "skipped .*: silu alone\n"),
                ("5x64x96:mlp", 3, "skipped .*: has no sluice_foreign_mlp\n"),
                ("1x64x96:gate_mul:fp32", 1, "error: ValueError: no kernel for one token\n"),
                ("2x64x96:gate_mul:fp32", 1, "h: [0-9]+ of 192 elements out of bound"),
                ("3x64x96:gate_mul:fp32", 1, "stray write: g: the input was written to"),
            ):
                done = check(kernels, case, "--device", "cpu", "--unfused")
                self.assertEqual(done.returncode, code, f"{case}: {done.stdout}{done.stderr}")
                self.assertRegex(done.stdout, text)
            stopped = check(kernels, "4x64x96:gate_mul", "--device", "cpu")
            self.assertNotEqual(stopped.returncode, 0)
            self.assertIn("KeyboardInterrupt", stopped.stderr)

    def test_wrong_words_are_two(self) -> None:
        for words, text in (
            ((), "python -m sluice.foreign kernels.py"),
            (("none.py",), "none.py: no such file"),
            (("no_such_module",), "No module named 'no_such_module'"),
            (("math",), "math: defines no operator"),
            ((EXAMPLES / "torch_eager.py", "2x8"), "2x8"),
            ((EXAMPLES / "torch_eager.py", "--step"), "--step"),
        ):
            done = check(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
