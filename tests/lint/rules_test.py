# SPDX-License-Identifier: Apache-2.0
"""The rules of sources.py and results.py find what they are for, and nothing else."""

from __future__ import annotations

import copy
import unittest
from pathlib import Path

import results
import sources


def found(rule: str, name: str, text: str) -> list[str]:
    return list(sources.RULES[rule](name, text))


class Includes(unittest.TestCase):
    def test_direction(self) -> None:
        self.assertFalse(found("includes", "src/cpu/a.cpp", '#include "cpu/engine.hpp"\n'))
        self.assertTrue(found("includes", "src/core/plan.cpp", '#include "cpu/engine.hpp"\n'))
        self.assertFalse(found("includes", "src/core/variants.cpp", '#include "cpu/variants.hpp"\n'))
        self.assertTrue(found("includes", "src/math/gate.hpp", '#include "core/variant.hpp"\n'))
        self.assertTrue(found("includes", "harness/a.cpp", '#include "cli/cli.hpp"\n'))
        self.assertTrue(found("includes", "harness/a.cpp", '#include "core/variant.hpp"\n'))
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


class Links(unittest.TestCase):
    def test_files(self) -> None:
        self.assertFalse(found("links", "docs/a.md", "[x](../README.md) [y](https://example.org/z)\n"))
        self.assertTrue(found("links", "docs/a.md", "[x](README.md)\n"))
        self.assertFalse(found("links", "docs/a.md", "```\n[x](none.md)\n```\n"))
        self.assertFalse(found("links", "src/a.cpp", "// docs/numerics.md\n"))
        self.assertTrue(found("links", "src/a.cpp", "// docs/none.md\n"))

    def test_headings(self) -> None:
        text = "# A `b_c` (d), e\n## Two\n## Two\n"
        self.assertEqual(sources.anchors(text), {"a-b_c-d-e", "two", "two-1"})
        self.assertFalse(found("links", "docs/a.md", text + "[x](#two-1)\n"))
        self.assertTrue(found("links", "docs/a.md", text + "[x](#two-2)\n"))
        self.assertTrue(found("links", "docs/a.md", "[x](../README.md#no-such-heading)\n"))


class Results(unittest.TestCase):
    def test_schema(self) -> None:
        self.assertEqual(results.findings(results.EXAMPLE), [])
        for spoil in (
            lambda d: d.pop("meta"),
            lambda d: d["meta"].pop("commit"),
            lambda d: d["rows"][0].update(op="other"),
            lambda d: d["rows"][0].update(surprise=1),
            lambda d: d["rows"][0].update(us="fast"),
            lambda d: d["rows"][0].update(us=-1.0),
            lambda d: d["rows"][0].update(baseline="mine"),
            lambda d: d["rows"][0].update(ratio=9.0),
            lambda d: d.update(rows=[]),
        ):
            spoiled = copy.deepcopy(results.EXAMPLE)
            spoil(spoiled)
            self.assertNotEqual(results.findings(spoiled), [])


if __name__ == "__main__":
    unittest.main()
