# SPDX-License-Identifier: Apache-2.0
"""``python -m sluice results --stale`` knows measurements of kernels and plans that are no more."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sluice import results, staleness

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import sass_fingerprint as fingerprint_tool  # noqa: E402


class Stale(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("data/sass", "data/devices", "src/cpu", "src/math"):
            shutil.copytree(ROOT / name, self.root / name)
        shutil.copy(ROOT / "data/plans.txt", self.root / "data/plans.txt")
        steps = staleness.plans(ROOT)["NVIDIA H200", "32x4096x14336"]
        self.row = {
            "case": "32x4096x14336", "kernels": "cuda.cublaslt,cuda.sm90_decode",
            "config": ",".join(f"{step}={config}" for step, config in steps.items()),
        }  # fmt: skip
        self.meta = {
            "device": "NVIDIA H200", "driver": "13.0", "command": "sluice bench",
            "fingerprints": staleness.as_text(staleness.fingerprints(ROOT)),
        }  # fmt: skip

    def reasons(self, row: dict[str, str] | None = None, **meta: object) -> list[str]:
        text = results.render({**self.meta, **meta}, rows=[self.row if row is None else row])
        now, planned = staleness.fingerprints(self.root), staleness.plans(self.root)
        return staleness.reasons(results.parse(text, "a.json"), now, planned, staleness.grown(self.root))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        self.assertRegex(text, old)
        path.write_text(re.sub(old, new, text, count=1), encoding="utf-8")

    def test_what_is_current_is_not_stale(self) -> None:
        self.assertEqual(self.reasons(), [])

    def test_a_file_without_fingerprints_is_stale(self) -> None:
        self.assertEqual(self.reasons(fingerprints=None), ["written before fingerprints were kept"])

    def test_a_kernel_that_changed_and_only_where_it_ran(self) -> None:
        code = r"[0-9a-f]{16}(?= [0-9a-f]{16} cuda.sm90_decode)"
        self.edit("data/sass/sm_90a.txt", code, "0" * 16)
        changed = ["cuda.sm90_decode is another kernel now"]
        self.assertEqual(self.reasons(), changed)
        self.assertEqual(self.reasons({**self.row, "kernels": "cuda.sm90_gemm"}), [])
        self.assertEqual(self.reasons({"case": "x"}), changed)  # names no kernels: all of a GPU's
        self.assertEqual(self.reasons({"case": "x", "op": "gate_up"}), changed)
        self.assertEqual(self.reasons({"case": "x", "op": "gate_mul"}), [])  # but of this one
        self.assertEqual(self.reasons({"kernels": "cpu.simd"}), [])

    def test_a_file_that_names_no_kernels_is_not_of_those_of_other_chips(self) -> None:
        code = r"[0-9a-f]{16}(?= [0-9a-f]{16} cuda.sm80_gemm)"
        self.edit("data/sass/sm_80.txt", code, "0" * 16)
        self.assertEqual(self.reasons({"case": "x"}), [])
        changed = ["cuda.sm80_gemm is another kernel now"]
        self.assertEqual(self.reasons({**self.row, "kernels": "cuda.sm80_gemm"}), changed)

    def test_a_kernel_that_is_gone(self) -> None:
        self.edit("data/sass/sm_90a.txt", r"(.*cuda.sm90_decode\n)+", "")
        self.assertEqual(self.reasons(), ["cuda.sm90_decode is another kernel now"])

    def test_a_kernel_that_gained_instantiations(self) -> None:
        listing = self.root / "data/sass/sm_90a.txt"
        lines = listing.read_text(encoding="utf-8").splitlines(keepends=True)
        of = [i for i, line in enumerate(lines) if line.endswith(" cuda.sm90_decode\n")]
        before = fingerprint_tool.lines_by_row(self.root / "data/sass")
        lines.insert(of[-1], lines[of[-1]].replace(" 0 ", " 8 ", 1))
        listing.write_text("".join(lines), encoding="utf-8")
        changed = ["cuda.sm90_decode is another kernel now"]
        self.assertEqual(self.reasons(), changed)
        kept = self.root / "data/sass/grown.list"
        after = fingerprint_tool.lines_by_row(self.root / "data/sass")
        fingerprint_tool.keep_grown(kept, before, after)
        self.assertEqual(self.reasons(), [])
        # One that goes takes with it what was measured of all.
        fingerprint_tool.keep_grown(kept, after, {**after, "cuda.sm90_decode": after["cuda.sm90_decode"][1:]})
        self.assertEqual(self.reasons(), changed)

    def test_the_sources_of_the_cpus_kernels(self) -> None:
        self.edit("src/cpu/simd.cpp", r"\n", "\n\n")
        self.assertEqual(self.reasons(), [])
        self.assertEqual(self.reasons({"kernels": "cpu.reference"}), ["cpu is another kernel now"])
        self.assertEqual(self.reasons({"m": "1"}, driver=None), ["cpu is another kernel now"])

    def test_a_plan_that_changed_where_it_was_the_choice(self) -> None:
        self.edit("data/plans.txt", r"(?<=h200 32x4096x14336 gate_up=decode:)\S+", "b8r16k64s3")
        self.assertEqual(self.reasons(), ["1 plans are others now, of 32x4096x14336 first"])
        self.assertEqual(self.reasons(command="sluice bench --variant cuda.sm90_decode"), [])
        self.assertEqual(self.reasons(command="sluice bench --max-capability 8.0"), [])
        self.assertEqual(self.reasons(command="sluice bench --experimental"), [])
        self.assertEqual(self.reasons({**self.row, "case": "33x4096x14336"}), [])
        other = self.reasons(device="NVIDIA H20")
        self.assertEqual(other, ["1 plans are others now, of 32x4096x14336 first"])

    def test_the_command(self) -> None:
        def run(*arguments: object) -> tuple[int, str]:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                status = staleness.main([str(argument) for argument in arguments])
            return status, out.getvalue()

        folder = self.root / "bench/results/h200"
        results.save(folder / "new.json", self.meta, rows=[self.row])
        results.save(folder / "old.json", {**self.meta, "fingerprints": None}, rows=[self.row])
        status, out = run("--stale", "--root", self.root)
        self.assertEqual(status, 0)
        self.assertIn("old.json: written before", out)
        self.assertNotIn("new.json", out)
        self.assertTrue(out.endswith("1 of 2 files are stale\n"))
        grown = {**staleness.fingerprints(ROOT), "cuda.sm90_decode": "0" * 16}
        results.save(folder / "grown.json", {**self.meta, "fingerprints": staleness.as_text(grown)}, rows=[self.row])
        self.assertIn("grown.json: cuda.sm90_decode is another", run("--stale", "--root", self.root)[1])
        (self.root / "data/sass/grown.list").write_text("cuda.sm90_decode " + "0" * 16 + "\n")
        self.assertNotIn("grown.json", run("--stale", "--root", self.root)[1])
        status, out = run("--stale", "--root", self.root, folder / "new.json")
        self.assertEqual((status, out), (0, "0 of 1 files are stale\n"))
        status, out = run("--stale", "--root", folder)
        self.assertEqual(status, 2)
        self.assertIn("data/sass: No such file or directory; run it in a checkout", out)
        (folder / "bad.json").write_text("{")
        status, out = run("--stale", "--root", self.root)
        self.assertEqual(status, 2)
        self.assertIn("bad.json: is not JSON", out)

    @unittest.skipUnless(os.environ.get("SLUICE_PROGRAM"), "needs the program")
    def test_the_program_keeps_the_same_fingerprints(self) -> None:
        command = [os.environ["SLUICE_PROGRAM"], "bench", "4x64x96", "--quick", "--device", "cpu",
                   "--json", "-"]  # fmt: skip
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        file = results.parse(text, "bench")
        self.assertEqual(file.meta["fingerprints"], staleness.as_text(staleness.fingerprints(ROOT)))
        self.assertEqual((file.rows[0]["case"], file.rows[0]["kernels"]), ("4x64x96", "cpu.simd"))
        self.assertEqual(staleness.reasons(file, staleness.fingerprints(ROOT), {}), [])


if __name__ == "__main__":
    unittest.main()
