# SPDX-License-Identifier: Apache-2.0
"""The installed wheel: the command and the library in it work, from any folder, with any Python 3."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import sluice
from sluice import capi

PACKAGE = Path(sluice.__file__).parent
SITE = PACKAGE.parent
SOURCE = Path(__file__).parents[2]
MOST_BYTES = 30e6  # issue: a wheel, the CUDA backend included, stays below this


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, cwd="/"
    )


def fnv1a(text: str) -> int:
    """The checksum of a tuning table's line."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        if not (PACKAGE / "bin" / "sluice").is_file():
            self.skipTest(f"{PACKAGE} was not installed from a wheel")

    def test_the_command_runs_the_program_and_the_doctor(self) -> None:
        for command in ([SITE / "bin" / "sluice"], [sys.executable, "-m", "sluice"]):
            listed = call(*command, "list", "variants")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertIn("cpu.reference", listed.stdout)
            checked = call(*command, "doctor")
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            self.assertIn(str(PACKAGE / "bin" / "sluice"), checked.stdout)
            self.assertRegex(checked.stdout, "(?m)^ok   Torch operators +gate_up, ")
        self.assertEqual(call(SITE / "bin" / "sluice", "nothing").returncode, 2)

    def test_report_draws_with_this_python(self) -> None:
        results = SOURCE / "tests" / "python" / "data" / "cpu.json"
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            done = call(SITE / "bin" / "sluice", "report", results, "-o", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("<svg", page.read_text(encoding="utf-8"))

    def test_the_library_is_the_packages_own_and_of_the_projects_version(self) -> None:
        found = sluice.info()
        self.assertTrue(found.library.is_relative_to(PACKAGE))
        project = (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")
        version = re.search(r"project\(sluice VERSION ([0-9.]+)", project)
        self.assertEqual(found.version, version[1])
        self.assertTrue((SITE / f"sluice-{version[1]}.dist-info").is_dir())

    def test_the_operators_say_what_is_missing(self) -> None:
        code = "from sluice import ops"
        environment = {**os.environ, "SLUICE_LIBRARY_DIR": "/nowhere"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "ImportError: /nowhere/.* is not there: SLUICE_LIBRARY_DIR names /nowhere")

    def test_the_operators_take_tuned_choices(self) -> None:
        """A table that names the fp64 reference gives its bits, which are not those of the choice without."""
        code = ("import torch; from sluice import ops; torch.manual_seed(1)\n"
                "x, g, u, d = (torch.randn(s) for s in ((5, 64), (96, 64), (96, 64), (64, 96)))\n"
                "print(ops.mlp(x, g, u, d, weights_static=True).view(torch.int32).flatten().tolist())")  # fmt: skip

        def result(table: Path | None) -> subprocess.CompletedProcess[str]:
            told = {} if table is None else {"SLUICE_TUNE_CACHE": str(table)}
            return subprocess.run(
                [sys.executable, "-c", code], env={**os.environ, **told}, capture_output=True, text=True, check=False
            )

        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "node.tune"
            problem = "5x64x96:mlp:fp32"
            tuned = call(PACKAGE / "bin" / "sluice", "tune", problem, "--seconds", "20", "--tune-cache", table)
            self.assertEqual(tuned.returncode, 0, tuned.stderr)
            self.assertIn("1 measured", tuned.stdout)
            head, line = table.read_text(encoding="utf-8").splitlines()
            fields = line.split("\t")
            fields[4:6] = "cpu.reference", "mlp=fp64"
            body = "\t".join(fields[:-1]) + "\t"
            table.write_text(f"{head}\n{body}{fnv1a(body):016x}\n", encoding="utf-8")
            plain, measured = result(None), result(table)
            self.assertEqual((plain.returncode, measured.returncode), (0, 0), plain.stderr + measured.stderr)
            self.assertNotEqual(plain.stdout, measured.stdout)
            table.write_text("something else\n", encoding="utf-8")
            self.assertRegex(result(table).stderr, "ValueError: .*no tuning table")

    def test_the_operators_may_be_held_to_a_simd_target(self) -> None:
        """Held so, they give the bits of that target; another word is an error."""
        code = ("import torch; from sluice import ops; torch.manual_seed(1)\n"
                "x, g, u, d = (torch.randn(s) for s in ((5, 64), (96, 64), (96, 64), (64, 96)))\n"
                "print(ops.mlp(x, g, u, d).view(torch.int32).flatten().tolist())")  # fmt: skip

        def result(target: str) -> subprocess.CompletedProcess[str]:
            held = {**os.environ, "SLUICE_MAX_SIMD": target}
            return subprocess.run(
                [sys.executable, "-c", code], env=held, capture_output=True, text=True, check=False
            )

        bits = {target: result(target) for target in ("", "avx512_bf16", "emulated")}
        for target, done in bits.items():
            self.assertEqual(done.returncode, 0, f"{target}: {done.stderr}")
        self.assertEqual(bits[""].stdout, bits["avx512_bf16"].stdout)
        if len(sluice.info().devices[0].simd_targets) > 1:
            self.assertNotEqual(bits[""].stdout, bits["emulated"].stdout)
        self.assertRegex(result("sse9").stderr, 'ValueError: .*SIMD target: got "sse9"')

    def test_one_wheel_serves_every_python_3(self) -> None:
        (tags,) = SITE.glob("sluice-*.dist-info/WHEEL")
        text = tags.read_text(encoding="utf-8")
        self.assertEqual(len(re.findall(r"(?m)^Tag:", text)), 1)
        # Debian 12 has glibc 2.36: a later one would shut the machines out that it is tested on.
        tag = re.search(r"(?m)^Tag: py3-none-manylinux_2_(\d+)_\w+$", text)
        self.assertIsNotNone(tag, text)
        self.assertLessEqual(int(tag[1]), 36)

    def test_it_is_small_and_holds_no_path_of_the_build(self) -> None:
        wheels = list((SITE.parent / "wheel").glob("sluice-*.whl"))
        for wheel in wheels:
            self.assertLess(wheel.stat().st_size, MOST_BYTES)
        binaries = [PACKAGE / "bin" / "sluice", *(PACKAGE / "lib").iterdir()]
        self.assertEqual(
            sorted(path.name for path in binaries),
            [capi.LIBRARY, "libsluice_verify.so", "sluice", "sluice_jax.so", "sluice_torch.so"],
        )
        for binary in binaries:
            self.assertNotIn(os.fsencode(SOURCE) + b"/", binary.read_bytes(), binary.name)


if __name__ == "__main__":
    unittest.main()
