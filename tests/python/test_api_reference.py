# SPDX-License-Identifier: Apache-2.0
"""docs/api.md is what scripts/api_reference.py writes, and every entry says something."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ApiReference(unittest.TestCase):
    def test_it_is_up_to_date(self) -> None:
        script = ROOT / "scripts" / "api_reference.py"
        done = subprocess.run(
            [sys.executable, "-B", script, "--check"], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_entry_has_a_docstring(self) -> None:
        text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
        entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
        self.assertGreater(len(entries), 12)
        for entry in entries:
            title, _, body = entry.partition("\n")
            self.assertRegex(body.strip(), r"^[A-Z`\"]", title)


if __name__ == "__main__":
    unittest.main()
