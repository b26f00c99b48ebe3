# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/quickstart.md runs as it stands there, and so do the examples that chat.py is not."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).parents[2]


def run(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-B", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


class Docs(unittest.TestCase):
    def test_the_quick_starts_run(self) -> None:
        text = (SOURCE / "docs" / "quickstart.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 4)
        names: dict[str, object] = {}
        for block in blocks:
            exec(compile(block, "docs/quickstart.md", "exec"), names)  # noqa: S102
        self.assertEqual(str(names["report"]).splitlines()[0], "0 of 0 MLPs patched")  # undone


class Examples(unittest.TestCase):
    def test_training_learns_with_and_without_recomputation(self) -> None:
        for options in ((), ("--recompute",)):
            done = run(SOURCE / "examples" / "train.py", "--device", "cpu", *options)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_tour_leaves_its_plots(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = run(SOURCE / "examples" / "tour.py", folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for name in ("gates.png", "time.png", "memory.png"):
                self.assertGreater((Path(folder) / name).stat().st_size, 5000, name)


if __name__ == "__main__":
    unittest.main()
