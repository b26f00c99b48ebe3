# SPDX-License-Identifier: Apache-2.0
"""What bench/ is made of beyond measuring: the CPU engine's bars, and processes held to a SIMD target."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sluice import results

BENCH = Path(__file__).parents[2] / "bench"
META = {"device": "a CPU", "date": "2026-01-02T03:04:05Z", "read_tbps": 0.05, "fma_gflops": 280.0}
BAR = {"m": 4, "d": 576, "h": 1536, "dtype": "bf16", "read_share": 0.8, "fma_share": 0.36}
RIVAL = {"m": 4, "d": 576, "h": 1536, "dtype": "bf16", "baseline": "torch_eager", "ratio": 3.5}


class Bars(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, suffix: str, held: str | None) -> None:
        for name, row in (("bars", BAR), ("smollm2", BAR), ("rivals", RIVAL)):
            results.save(self.folder / f"{name}{suffix}.json", {**META, "max_simd": held}, rows=[row])

    def judge(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BENCH / "cpu_bars.py"), str(self.folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_each_line_says_whether_it_is_met(self) -> None:
        self.write("", None)
        text = self.judge().stdout
        self.assertIn("a CPU, 2026-01-02", text)
        self.assertIn("| 4 x 576 x 1536 bf16, of FMA peak | 35 % | 36 % | 45 % | met |", text)
        self.assertIn("| 4 x 576 x 1536 bf16, over torch_eager | 4.00x | 3.50x |  | missed |", text)
        self.assertIn("| 4 x 2048 x 8192 bf16, of FMA peak | 47 % | not measured | | |", text)

    def test_files_held_to_a_target_are_judged_apart(self) -> None:
        self.write("_avx2", "avx2")
        self.assertIn("a CPU held to avx2, 2026-01-02", self.judge("avx2").stdout)
        self.assertIn("bars.json: cannot be read", self.judge().stderr)

    def test_files_that_were_not_held_are_refused(self) -> None:
        self.write("_avx2", None)
        self.assertIn("bars_avx2.json: max_simd: got None, wanted avx2", self.judge("avx2").stderr)


class Held(unittest.TestCase):
    def test_the_program_starts_again_with_every_library_told(self) -> None:
        code = ("import os, sys\n"
                f"sys.path.insert(0, {str(BENCH)!r})\n"
                "from rivals.held import TARGETS, hold\n"
                "hold(sys.argv[1] or None)\n"
                "names = [n for target in TARGETS.values() for n in target]\n"
                "print(sys.argv[2], *(os.environ.get(n, '-') for n in names))\n")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(code)
            for target, wanted in (("avx2", "word avx2 AVX2 avx2 AVX2 Haswell"), ("", "word - - - - -")):
                done = subprocess.run([sys.executable, str(program), target, "word"], env={"PATH": os.environ["PATH"]},
                                      capture_output=True, text=True, check=True)  # fmt: skip
                self.assertEqual(done.stdout.strip(), wanted)


if __name__ == "__main__":
    unittest.main()
