# SPDX-License-Identifier: Apache-2.0
"""The rules of sources.py, results.py and tidy.sh find what they are for, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import results
import sources
from sluice.results import render


def found(rule: str, name: str, text: str) -> list[str]:
    return list(sources.RULES[rule](name, text))


class Includes(unittest.TestCase):
    def test_direction(self) -> None:
        self.assertFalse(found("includes", "src/cpu/a.cpp", '#include "cpu/engine.hpp"\n'))
        self.assertTrue(found("includes", "src/core/plan.cpp", '#include "cpu/engine.hpp"\n'))
        self.assertFalse(found("includes", "src/core/recipes.cpp", '#include "cpu/kernel_rows.hpp"\n'))
        self.assertTrue(found("includes", "src/math/gate.hpp", '#include "core/kernel.hpp"\n'))
        self.assertTrue(found("includes", "harness/a.cpp", '#include "cli/cli.hpp"\n'))
        self.assertTrue(found("includes", "harness/a.cpp", '#include "core/kernel.hpp"\n'))
        self.assertTrue(found("includes", "src/cuda/ptx/a.cuh", '#include "cuda/tile/b.cuh"\n'))
        self.assertTrue(found("includes", "src/cpu/a.cpp", '# include "no_such_file.hpp"\n'))


class Text(unittest.TestCase):
    def test_ascii(self) -> None:
        self.assertFalse(found("ascii", "a.cpp", "// x\u00b7W\u1d40 \u2265 0\nint x;\n"))
        self.assertTrue(found("ascii", "a.cpp", 'const char* s = "\u00b7";\n'))
        self.assertTrue(found("ascii", "a.cpp", "// \U0001f600\n"))
        self.assertFalse(found("ascii", "a.cpp", 'auto s = "// no"; /* \u00b7\n\u00b7 */\n'))

    def test_licence(self) -> None:
        self.assertTrue(found("licence", "a.cpp", "int x;\n"))
        self.assertFalse(found("licence", "a.cpp", "// SPDX-License-Identifier: Apache-2.0\n"))

    def test_paths(self) -> None:
        for place in (str(Path.cwd()), "/" + "root"):
            self.assertTrue(found("paths", "a.md", f"see {place}/someone/file\n"))
        self.assertFalse(found("paths", "a.md", "see https://example.org/root/page and src/root/x\n"))

    def test_sizes(self) -> None:
        self.assertTrue(found("sizes", "src/a.hpp", "\n" * 400))
        self.assertFalse(found("sizes", "src/a.hpp", "\n" * 300))


HERE = Path(__file__).resolve().parent


@unittest.skipUnless(shutil.which("clang-tidy"), "no clang-tidy")
class Tidy(unittest.TestCase):
    FILES = {
        "cli/first.cpp": "int first() { return 1; }\n",
        "cli/second.cpp": "int second() { return 2; }\n",
        "harness/a.cpp": "int a() { return 3; }\n",
        "src/core/a.cpp": '#include "cuda/sm90/a.hpp"\nint core() { return sm90(); }\n',
        "src/cuda/sm90/a.hpp": "inline int sm90() { return 4; }\n",
        "src/tune/a.cpp": "int tune() { return 5; }\n",
    }

    def errors(self, **changed: str) -> str:
        """What it says of the files, with the functions named renamed."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "include").mkdir()
            shutil.copy(HERE.parents[1] / ".clang-tidy", root)
            for name, text in self.FILES.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                for old, new in changed.items():
                    text = text.replace(f"{old}()", f"{new}()")
                (root / name).write_text(text)
            for git in (["init", "--quiet"], ["add", "."]):
                subprocess.run(["git", *git], cwd=root, check=True)
            done = subprocess.run(["bash", HERE / "tidy.sh", "clang-tidy", root / "build"],
                                  cwd=root, capture_output=True, text=True)  # fmt: skip
            self.assertEqual(done.returncode != 0, "error:" in done.stderr, done.stderr)
            return done.stderr

    def test_every_file_of_a_batch_and_every_header(self) -> None:
        self.assertEqual(self.errors(), "")
        for name in ("first", "second", "a", "core", "sm90", "tune"):
            self.assertIn(f"'{name.upper()}'", self.errors(**{name: name.upper()}))


class Links(unittest.TestCase):
    def test_files(self) -> None:
        self.assertFalse(found("links", "docs/a.md", "[x](../README.md) [y](https://example.org/z)\n"))
        self.assertTrue(found("links", "docs/a.md", "[x](README.md)\n"))
        self.assertFalse(found("links", "docs/a.md", "```\n[x](none.md)\n```\n"))
        self.assertFalse(found("links", "src/a.cpp", "// docs/numerics.md\n"))
        self.assertTrue(found("links", "src/a.cpp", "// docs/none.md\n"))
        self.assertFalse(found("links", "src/a.cpp", "// core/plan.cpp, plan.cpp, llama.cpp\n"))
        self.assertTrue(found("links", "src/a.cpp", "// cpu/plan.cpp\n"))
        self.assertFalse(found("links", "src/a.cpp", 'none("none.cpp");\n'))

    def test_named_paths(self) -> None:
        text = "`src/core/lower.cpp` `src/{core,cuda}/CMakeLists.txt` `harness/oracle*` `none/x` `tests/torch/`\n"
        self.assertFalse(found("links", "CONTRIBUTING.md", text.replace("{core,cuda}", "{cuda,}")))
        self.assertTrue(found("links", "CONTRIBUTING.md", text))
        self.assertTrue(found("links", "ARCHITECTURE.md", "`src/core/none.cpp`\n"))
        self.assertFalse(found("links", "docs/a.md", "`src/core/none.cpp`\n"))

    def test_headings(self) -> None:
        text = "# A `b_c` (d), e\n## Two\n## Two\n"
        self.assertEqual(sources.anchors(text), {"a-b_c-d-e", "two", "two-1"})
        self.assertFalse(found("links", "docs/a.md", text + "[x](#two-1)\n"))
        self.assertTrue(found("links", "docs/a.md", text + "[x](#two-2)\n"))
        self.assertTrue(found("links", "docs/a.md", "[x](../README.md#no-such-heading)\n"))


class Results(unittest.TestCase):
    def text(self, *changes: dict[str, Any], **meta: Any) -> str:
        """A file of a row for each change to the example, or of the example twice."""
        rows = [{**results.EXAMPLE_ROW, **change} for change in changes or ({}, {"m": 2})]
        return render({**results.EXAMPLE_META, **meta}, rows=rows)

    def test_schema(self) -> None:
        self.assertEqual(results.findings(self.text()), [])
        for spoiled in (
            {"op": "other"},
            {"surprise": 1},
            {"us": "fast"},
            {"us": None},
            {"us": -1.0},
            {"us_p10": 2.5},
            {"us": 12345, "us_p90": 20000, "baseline": None, "baseline_us": None, "ratio": None},
            {"m": 1.5},
            {"baseline": "mine"},
            {"ratio": 9.0},
            {"ratio": None},
        ):
            self.assertNotEqual(results.findings(self.text({}, spoiled)), [], spoiled)
        self.assertNotEqual(results.findings(self.text(commit=None)), [])
        meta = {**results.EXAMPLE_META}
        for broken in ("{}", "7", render(meta), render(meta, rows=[])):
            self.assertNotEqual(results.findings(broken), [], broken)
        del meta["date"]
        self.assertEqual(results.findings(render(meta, rows=[results.EXAMPLE_ROW])), ["meta: no date"])
        checks = [{"model": "a", "m": 1}]
        found = results.findings(render(results.EXAMPLE_META, rows=[results.EXAMPLE_ROW], checks=checks))
        self.assertIn("checks[0]: no layer", found)

    def test_form(self) -> None:
        text = self.text({"us": 2.0}, {"us": 2.001, "ratio": 1.499})
        self.assertEqual(results.findings(text), [])
        for old, new in (
            ("2.001", "2.00101"),  # five digits
            ("2.001,", "2.001, "),
            ("\n  [2.0", " [2.0"),
            ('"tp": 1', '"tp":1'),
        ):
            self.assertIn(old, text)
            self.assertNotEqual(results.findings(text.replace(old, new, 1)), [], new)
        data = json.loads(text)
        data["columns"].append("tp")  # the same in all rows
        for row in data["rows"]:
            row.append(data["meta"]["tp"])
        del data["meta"]["tp"]
        self.assertNotEqual(results.findings(json.dumps(data)), [])
        data["rows"] = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
        del data["columns"]
        self.assertIn("no columns", results.findings(json.dumps(data))[0])

    def test_size(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertNotEqual(results.folder_findings(folder), [])
            text = self.text()
            for i in range(3):
                (folder / f"{i}.json").write_text(text)
            self.assertEqual(results.folder_findings(folder, 3 * len(text)), [])
            found = results.folder_findings(folder, 3 * len(text) - 1)
            self.assertEqual(len(found), 1)
            self.assertIn(f"{3 * len(text)} bytes, wanted at most", found[0])


if __name__ == "__main__":
    unittest.main()
