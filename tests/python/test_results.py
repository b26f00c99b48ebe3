# SPDX-License-Identifier: Apache-2.0
"""Reading results files, showing numbers, and README tables. Standard library only."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from sluice import formats, readme_tables, results

DATA = Path(__file__).parent / "data"


class FolderTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: object) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path


class LoadTest(FolderTest):
    def test_errors_name_file_and_reason(self) -> None:
        cases = {
            "{": "is not JSON",
            "[" * 100_000: "is not JSON",
            "[]": "the JSON root is not an object",
            "{}": "holds no rows",
            '{"meta":{},"rows":[]}': "holds no rows",
            '{"meta":[],"rows":[{}]}': "meta is not an object",
            '{"rows":{}}': "rows is not a list",
            '{"rows":[{},3]}': r"rows\[1\] is not an object",
            '{"memory":7}': "memory is not a list",
            '{"rows":[{}],"checks":[1]}': r"checks\[0\] is not an object",
        }
        for content, message in cases.items():
            path = self.write("a.json", content)
            with self.assertRaisesRegex(results.ResultsError, "a.json: .*" + message):
                results.load(path)
        with self.assertRaisesRegex(results.ResultsError, "absent.json: cannot be read"):
            results.load(self.folder / "absent.json")
        path.write_bytes(b"\xff\xfe")
        with self.assertRaisesRegex(results.ResultsError, "is not JSON"):
            results.load(path)

    def test_unknown_values(self) -> None:
        row = json.loads('{"a":NaN,"b":Infinity,"c":true,"d":"1","e":null,"f":0,"g":-2,"h":3}')
        numbers = {key: results.number(row, key) for key in "abcdefghi"}
        known = {key: value for key, value in numbers.items() if value is not None}
        self.assertEqual(known, {"f": 0.0, "g": -2.0, "h": 3.0})
        self.assertEqual([results.positive(row, key) for key in "fgh"], [None, None, 3.0])
        self.assertEqual(results.text(row, "h"), "")

    def test_speedup(self) -> None:
        self.assertEqual(results.speedup({"ratio": 2.0, "us": 1.0, "baseline_us": 9.0}), 2.0)
        self.assertEqual(results.speedup({"us": 2.0, "baseline_us": 3.0}), 1.5)
        self.assertIsNone(results.speedup({"us": 2.0}))
        self.assertIsNone(results.speedup({"us": 0, "baseline_us": 3.0}))


class FormatsTest(unittest.TestCase):
    def test_significant(self) -> None:
        cases = {0: "0", 1: "1.00", 12.345: "12.3", 123.4: "123", 12345.6: "12,346",
                 0.01234: "0.0123", 0.00012345: "1.2e-04", 99.96: "100", -3.14159: "-3.14",
                 None: formats.UNKNOWN}  # fmt: skip
        for value, expected in cases.items():
            self.assertEqual(formats.significant(value), expected, value)

    def test_bytes(self) -> None:
        cases = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 200 * 1024: "200 KiB",
                 3.5 * 2**20: "3.5 MiB", 2**40: "1 TiB", 2**51: "2048 TiB",
                 None: formats.UNKNOWN}  # fmt: skip
        for value, expected in cases.items():
            self.assertEqual(formats.binary_bytes(value), expected, value)


class ReadmeTablesTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        row = {"op": "mlp", "model": "a|b", "m": 1, "us": 10.0, "baseline_us": 12.0,
               "rel_err": 1e-3}  # fmt: skip
        rows = [
            row,
            {**row, "us": 20.0, "baseline_us": 30.0, "rel_err": 3e-3},
            {**row, "us": 30.0, "baseline_us": 30.0, "rel_err": 2e-3},
            {**row, "m": 512, "op": "down"},
        ]
        meta = {"device": "CPU", "date": "2026-01-02T03:04:05Z", "commit": "0123456789abcdef"}
        self.write("r.json", {"meta": meta, "rows": rows})

    def table(self, words: str = "", path: str = "r.json") -> list[str]:
        return readme_tables.table(self.folder / path, path, words).split("\n")

    def run_main(self, *arguments: object) -> tuple[int, str]:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = readme_tables.main([str(argument) for argument in arguments])
        return status, errors.getvalue()

    def test_every_row(self) -> None:
        lines = self.table()
        self.assertEqual(lines[0], "| model | M | us | baseline us | speed-up |")
        self.assertEqual(lines[1], "|---|---:|---:|---:|---:|")
        self.assertEqual(lines[2], "| a\\|b | 1 | 10.0 | 12.0 | 1.20x |")
        self.assertEqual(len(lines), 2 + 4 + 2)
        self.assertEqual(lines[-1], "CPU, 2026-01-02, commit 0123456789ab, [r.json](r.json).")

    def test_the_caption_says_what_the_cpu_was_held_to(self) -> None:
        meta = {"device": "CPU", "max_simd": "avx2"}
        self.write("held.json", {"meta": meta, "rows": [{"m": 1, "us": 1.0}]})
        self.assertEqual(self.table(path="held.json")[-1], "CPU held to avx2, [held.json](held.json).")

    def test_where_and_group(self) -> None:
        lines = self.table("where=op:mlp,m:1 group=model,m columns=m,us,ratio,rel_err,op,dtype")
        self.assertEqual(lines[2:-2], ["| 1 | 20.0 | 1.20x | 0.00300 | mlp | – |"])

    def test_means_and_lowest(self) -> None:
        columns = "columns=mean_ratio,least_ratio,ratio"
        lines = self.table(f"where=m:1 group=m {columns}")
        self.assertEqual(lines[2:-2], ["| 1.22x | 1.00x | 1.20x |"])  # of 1.2, 1.5 and 1
        self.assertEqual(self.table(columns)[3], "| 1.50x | 1.50x | 1.50x |")

    def test_bad_markers(self) -> None:
        cases = {
            "columns=us,speed": "columns: unknown field speed",
            "group=x": "group: unknown field x",
            "sort=us": "unknown option sort=",
            "where=m": "where: expected field:value",
            "where=m:7": "no row is left",
        }
        for words, message in cases.items():
            with self.assertRaisesRegex(readme_tables.MarkerError, message):
                self.table(words)
        for text, message in {
            "no marker": "holds no <!-- sluice-table",
            "<!-- sluice-table r.json -->": "no <!-- /sluice-table --> after it",
            "<!-- sluice-table r.json -->\n<!-- sluice-table r.json -->\n<!-- /sluice-table -->":
                "begins within another",
        }.items():  # fmt: skip
            with self.assertRaisesRegex(readme_tables.MarkerError, message):
                readme_tables.rewrite(text, self.folder)

    def test_rewrite_and_check(self) -> None:
        document = self.write(
            "R.md",
            "before\n<!-- sluice-table r.json where=m:512 -->\nold\n"
            "<!-- /sluice-table -->\nafter\n",
        )
        status, errors = self.run_main(document, "--check")
        self.assertEqual(status, 1)
        self.assertIn("stale", errors)
        self.assertIn("old", document.read_text())
        self.assertEqual(self.run_main(document), (0, ""))
        text = document.read_text()
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("before\n<!-- sluice-table"))
        self.assertTrue(text.endswith("<!-- /sluice-table -->\nafter\n"))
        self.assertEqual(self.run_main(document, "--check"), (0, ""))
        document.write_text(text.replace("10.0", "9.0"))
        self.assertEqual(self.run_main(document, "--check")[0], 1)

    def test_summary(self) -> None:
        text = "<!-- sluice-summary\nr.json where=m:1 | a `b` | c\nr.json | d | e\n-->\n%s\nend\n"
        document = self.write("S.md", text % "old\n<!-- /sluice-summary -->")
        self.assertEqual(self.run_main(document), (0, ""))
        made = document.read_text()
        self.assertIn("| a `b` | c | 1.22x | 1.00x | [CPU](r.json) |\n", made)  # of 1.2, 1.5 and 1
        self.assertIn("| d | e | 1.21x | 1.00x | [CPU](r.json) |\n", made)  # and 1.2
        self.assertNotIn("old", made)
        self.assertTrue(made.endswith("\n<!-- /sluice-summary -->\nend\n"))
        self.assertEqual(self.run_main(document, "--check"), (0, ""))
        for lines, message in {
            text % "": "no <!-- /sluice-summary --> after it",
            "<!-- sluice-summary\nr.json | a\n-->\n<!-- /sluice-summary -->": "expected FILE",
            "<!-- sluice-summary\nr.json where=m:7 | a | b\n-->\n<!-- /sluice-summary -->":
                "no row is left",
        }.items():  # fmt: skip
            with self.assertRaisesRegex(readme_tables.MarkerError, message):
                readme_tables.rewrite(lines, self.folder)

    def test_exit_status_2(self) -> None:
        self.assertEqual(self.run_main(self.folder / "absent.md")[0], 2)
        document = self.write("R.md", "<!-- sluice-table no.json -->\n<!-- /sluice-table -->\n")
        status, errors = self.run_main(document)
        self.assertEqual(status, 2)
        self.assertIn("no.json: cannot be read", errors)

    def test_sample_data(self) -> None:
        lines = readme_tables.table(DATA / "cpu.json", "cpu.json", "group=model,m").split("\n")
        rows = results.load(DATA / "cpu.json").rows
        self.assertEqual(len(lines), 4 + len({(row["model"], row["m"]) for row in rows}))


if __name__ == "__main__":
    unittest.main()
