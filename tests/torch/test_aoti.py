# SPDX-License-Identifier: Apache-2.0
"""examples/aoti: a C++ program runs an AOTInductor package that calls Sluice's operators."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

from sluice import capi

EXAMPLE = Path(__file__).parents[2] / "examples" / "aoti"
MISSING = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]


def call(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=600)


@unittest.skipIf(MISSING, f"no {' and no '.join(MISSING)} here")
class Aoti(unittest.TestCase):
    def test_the_program_gives_the_bits_of_eager(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package, build = Path(folder) / "mlp.pt2", Path(folder) / "build"
            exported = call(sys.executable, "-B", EXAMPLE / "export.py", package)
            self.assertEqual(exported.returncode, 0, exported.stderr)
            # The package holds the operator's name, not Torch's own products.
            named = [b"sluice::mlp" in file.read_bytes() or b"sluice.mlp" in file.read_bytes()
                     for file in unpacked(package, Path(folder) / "files")]  # fmt: skip
            self.assertTrue(any(named))
            made = call("cmake", "-S", EXAMPLE, "-B", build, f"-DTORCH_DIR={torch.__path__[0]}")
            self.assertEqual(made.returncode, 0, made.stderr)
            made = call("cmake", "--build", build)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            operators = capi.library_folder() / "sluice_torch.so"
            ran = call(build / "aoti", package, operators)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertEqual(len(ran.stdout.split()), 5 * 64)
            self.assertEqual(ran.stdout.split(), exported.stdout.split())
            self.assertEqual(call(build / "aoti", package, "/nowhere.so").returncode, 1)


def unpacked(package: Path, folder: Path) -> list[Path]:
    shutil.unpack_archive(package, folder, "zip")
    return [path for path in folder.rglob("*") if path.is_file()]


if __name__ == "__main__":
    unittest.main()
