# SPDX-License-Identifier: Apache-2.0
"""Reading results files, showing numbers, and README tables. Standard library only."""

import contextlib
import io
import json
import math
import os
import resource
import signal
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from sluice import formats, readme_tables, results
from sluice.replace_file import replace_file

DATA = Path(__file__).parent / "data"


class FolderTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path


class LoadTest(FolderTest):
    def test_a_summary_is_of_the_run_and_of_no_row(self) -> None:
        meta = {"device": "a CPU", "ratio_mean": 1.25, "ratio_lowest_case": "1x8x8", "skipped": "2x8x8"}
        text = results.render(meta, rows=[{"m": 1, "regret": 0.5}, {"m": 2}])
        file = results.parse(text, "a.json")
        self.assertEqual(file.meta, meta)
        self.assertEqual(file.rows, ({"m": 1, "regret": 0.5}, {"m": 2, "regret": None}))
        self.assertEqual(results.render(file.meta, rows=file.rows), text)

    def test_errors_name_file_and_reason(self) -> None:
        cases = {
            "{": "is not JSON",
            "[" * 100_000: "is not JSON",
            "[]": "the JSON root is not an object",
            "{}": "meta is not an object",
            '{"meta":{}}': "holds no rows",
            '{"meta":{},"columns":[],"rows":[]}': "holds no rows",
            '{"meta":[],"columns":[],"rows":[[]]}': "meta is not an object",
            '{"meta":{},"rows":[{"m":1}]}': "no columns: not written by this version",
            '{"meta":{},"columns":"m","rows":[]}': "columns is not a list of names",
            '{"meta":{},"columns":[1],"rows":[]}': "columns is not a list of names",
            '{"meta":{},"columns":[{"m":1}],"rows":[]}': "columns is not a list of names",
            '{"meta":{},"columns":[{"m":[],"d":[]}],"rows":[]}': "columns is not a list of names",
            '{"meta":{},"columns":[{"m":["a"]}],"rows":[[1]]}': r"rows\[0\] has a value that is no place",
            '{"meta":{},"columns":["m",{"m":["a"]}],"rows":[[1,0]]}': "columns is not a list of names",
            '{"meta":{},"columns":[{"m":["a"]}],"rows":[[0.0]]}': r"rows\[0\] has a value that is no place",
            '{"meta":{},"columns":[{"m":["a"]}],"rows":[["a"]]}': r"rows\[0\] has a value that is no place",
            '{"meta":{},"columns":[{"m":["a"]}],"rows":[[[]]]}': r"rows\[0\] has a value that is no place",
            '{"meta":{},"columns":[{"m":["a"]}],"rows":[[false]]}': r"rows\[0\] has a value that is no place",
            '{"meta":{},"columns":["m"],"rows":{}}': "rows is not a list",
            '{"meta":{},"columns":["m"],"rows":[[1],[]]}': r"rows\[1\] is not a list of 1 values",
            '{"meta":{},"columns":["m"],"rows":[{"m":1}]}': r"rows\[0\] is not a list of 1 values",
            '{"meta":{},"memory":[{"m":1}]}': "memory: no columns: not written by this version",
            '{"meta":{},"memory":{"columns":[],"rows":[]}}': "memory: meta is not an object",
            '{"meta":{},"columns":[],"rows":[[]],"checks":1}': "checks: no columns",
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
        huge = {"a": 10**400, "b": -(10**400), "c": 1e308, "d": 5e-324, "e": "x\ud800\x07y"}
        self.assertEqual([results.number(huge, key) for key in "abc"], [None] * 3)
        self.assertIsNone(results.positive(huge, "d"))
        self.assertEqual(results.text(huge, "e"), "x??y")

    def test_speedup(self) -> None:
        self.assertEqual(results.speedup({"ratio": 2.0, "us": 1.0, "baseline_us": 9.0}), 2.0)
        self.assertEqual(results.speedup({"us": 2.0, "baseline_us": 3.0}), 1.5)
        self.assertIsNone(results.speedup({"us": 2.0}))
        self.assertIsNone(results.speedup({"us": 0, "baseline_us": 3.0}))


class RenderTest(FolderTest):
    META = {"device": "a CPU", "read_tbps": 0.0123456, "clocks": "2 GHz"}

    def test_variables_are_told_before_the_command(self) -> None:
        variables = {"SLUICE_MAX_SIMD": "avx2", "SLUICE_TUNE_CACHE": "/home/someone/my cache", "SLUICE_VARIANT": ""}
        with unittest.mock.patch.dict(os.environ, variables):
            told = results.with_variables("python bench/x.py")
        self.assertEqual(told, "SLUICE_MAX_SIMD=avx2 SLUICE_TUNE_CACHE='my cache' python bench/x.py")

    def test_words_of_many_rows_stand_once(self) -> None:
        rows = [{"m": i, "config": "lt0" if i < 4 else "lt1", "case": str(i)} for i in range(8)]
        rows.append({"m": 8, "config": None, "case": "8"})
        text = results.render(self.META, rows=rows)
        self.assertIn('"columns": ["m",{"config":["lt0","lt1"]},"case"],\n  "rows": [\n  [0,0,"0"],\n', text)
        self.assertIn('[7,1,"7"],\n  [8,null,"8"]', text)
        self.assertEqual(results.parse(text, "a.json").rows, tuple(rows))

    def test_the_form(self) -> None:
        rows = [
            {"op": "mlp", "m": 1, "us": 1234.56, "model": None, "extra_bytes": 123456, "clocks": "a"},
            {"op": "mlp", "m": 2, "us": 1e-5, "model": None, "extra_bytes": 123456, "clocks": "a"},
            {"op": "mlp", "m": 2, "us": math.nan, "model": None, "extra_bytes": 123456, "clocks": "a"},
        ]
        checks = [{"m": 1, "rel_err": 0.00129804}, {"m": 1, "note": "µ"}]
        self.assertEqual(results.render(self.META, rows=rows, checks=checks), """{
  "meta": {
    "device": "a CPU",
    "read_tbps": 0.01235,
    "clocks": "2 GHz",
    "op": "mlp",
    "model": null,
    "extra_bytes": 123456
  },
  "columns": ["m","us","clocks"],
  "rows": [
  [1,1235.0,"a"],
  [2,1e-05,"a"],
  [2,null,"a"]
],
  "checks": {
    "meta": {
      "m": 1
    },
    "columns": ["rel_err","note"],
    "rows": [
  [0.001298,null],
  [null,"µ"]
]
  }
}
""")

    def test_reads_what_it_wrote(self) -> None:
        rows = [{"op": "mlp", "us": 1.5, "clocks": "b"}, {"op": "mlp", "us": 2.5, "model": "x"}]
        for meta in (self.META, {}):
            for count in (1, 2):
                lists = {"rows": rows[:count], "memory": rows[:1], "checks": []}
                text = results.render(meta, **lists)
                file = results.parse(text, "folder/a.json")
                self.assertEqual(file.name, "a.json")
                self.assertEqual(file.meta, {k: results.rounded(v) for k, v in meta.items()})
                self.assertEqual(file.rows[0]["clocks"], "b")
                for index, row in enumerate(file.rows):
                    known = {key: value for key, value in row.items() if value is not None}
                    self.assertEqual(known, rows[index])
                self.assertEqual((file.memory, file.checks), ((rows[0],), ()))
                again = results.render(file.meta, rows=file.rows, memory=file.memory, checks=[])
                self.assertEqual(again, text)

    def test_what_is_no_part_of_a_file(self) -> None:
        with self.assertRaisesRegex(ValueError, "host, lines"):
            results.render({"host": "a"}, lines=[])

    def test_save_replaces_as_a_whole(self) -> None:
        path = self.folder / "new" / "a.json"
        results.save(path, self.META, rows=[{"m": 1}])
        before = path.read_text()
        path.chmod(0o640)
        link = self.folder / "link.json"
        link.symlink_to("new/a.json")
        results.save(link, self.META, rows=[{"m": 2}])
        self.assertTrue(link.is_symlink())
        self.assertNotEqual(path.read_text(), before)
        self.assertEqual(path.stat().st_mode & 0o777, 0o640)
        self.assertEqual(results.load(path).rows[0]["m"], 2)

        before = path.read_text()
        limits, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as a disk that is full
        try:
            with self.assertRaises(OSError):
                results.save(path, self.META, rows=[{"m": m} for m in range(1000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, action)
        self.assertEqual(path.read_text(), before)
        self.assertEqual(list(path.parent.iterdir()), [path])
        with self.assertRaises(OSError):
            results.save(self.folder / "new", self.META, rows=[{"m": 1}])
        replace_file(Path(os.devnull), "gone")
        self.assertTrue(Path(os.devnull).is_char_device())


@unittest.skipUnless(os.environ.get("SLUICE_PROGRAM"), "needs the program")
class ProgramTest(unittest.TestCase):
    def test_the_program_writes_the_same_form(self) -> None:
        random = (
            "bench --random 12 --seed 169 --tokens 1-2 --memory 24 --part 1/3 --regret --layers 1 "
            "--quick --milliseconds 1 --device cpu"
        )
        for words in ("memory", "bench 4x64x96 9x32x48 --quick --device cpu", random):
            command = [os.environ["SLUICE_PROGRAM"], *words.split(), "--json", "-"]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            file = results.parse(text, words)
            summary = results.SUMMARY if words == random else ()
            self.assertEqual(tuple(file.meta), results.PROVENANCE + summary)
            lists = {"rows": file.rows} if file.rows else {"memory": file.memory}
            self.assertEqual(results.render(file.meta, **lists), text)


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
        self.write("r.json", results.render(meta, rows=rows))

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
        self.assertEqual(lines[-1], "CPU, [r.json](r.json).")

    def test_the_caption_says_what_was_held_and_what_dirty(self) -> None:
        meta = {"device": "CPU", "max_simd": "avx2"}
        self.write("held.json", results.render(meta, rows=[{"m": 1, "us": 1.0}]))
        self.assertEqual(self.table(path="held.json")[-1], "CPU held to avx2, [held.json](held.json).")
        self.write("dirty.json", results.render({"device": "CPU", "dirty": True}, rows=[{"m": 1}]))
        self.assertIn("uncommitted changes", self.table(path="dirty.json")[-1])

    def test_where_and_group(self) -> None:
        lines = self.table("where=op:mlp,m:1 group=model,m columns=m,us,ratio,rel_err,op,dtype")
        self.assertEqual(lines[2:-2], ["| 1 | 20.0 | 1.20x | 0.00300 | mlp | – |"])

    def test_where_a_number_is_above_or_below(self) -> None:
        self.assertEqual(self.table("where=m:>1 columns=m")[2:-2], ["| 512 |"])
        self.assertEqual(self.table("where=m:<512 columns=us")[2:-2], ["| 10.0 |", "| 20.0 |", "| 30.0 |"])
        for words in ("where=m:>512", "where=m:<1", "where=op:>1", "where=m:>x"):
            with self.assertRaisesRegex(readme_tables.MarkerError, "no row is left"):
                self.table(words)

    def test_across(self) -> None:
        lines = self.table("group=op,m columns=model across=m cell=us,ratio")
        self.assertEqual(lines[0], "| model | M=1 | M=512 |")
        self.assertEqual(lines[1], "|---|---:|---:|")
        self.assertEqual(lines[2:-2], ["| a\\|b | 20.0, 1.20x | 10.0, 1.20x |"])
        self.assertTrue(lines[-1].startswith("Cells: us, speed-up. CPU, "))
        rows = [{"d": 8, "m": m, "us": 1.0} for m in (64, 8, 512)]
        self.write("order.json", results.render({"device": "CPU"}, rows=rows))
        lines = self.table("columns=d across=m cell=us", "order.json")
        self.assertEqual(lines[0], "| D | M=8 | M=64 | M=512 |")
        lines = self.table("group=op,m columns=m across=op cell=us")
        self.assertEqual(lines[0], "| M | mlp | down |")
        self.assertEqual(lines[2:-2], ["| 1 | 20.0 | – |", "| 512 | – | 10.0 |"])
        self.assertTrue(lines[-1].startswith("CPU, "))

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
            "across=m": "across= takes one field",
            "cell=us": "across= takes one field",
            "across=m,op cell=us": "across= takes one field",
            "columns=op across=m cell=us": "two rows for mlp at M=1",
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
