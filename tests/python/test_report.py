# SPDX-License-Identifier: Apache-2.0
"""The report page: complete, self-contained, well-formed, and unmoved by incomplete files."""

import contextlib
import io
import json
import re
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from sluice import report
from sluice.results import ResultsError, ResultsFile, load, render

DATA = Path(__file__).parent / "data"
SAMPLES = [DATA / name for name in ("cpu.json", "gpu.json", "memory.json")]
ROW = {"op": "mlp", "pass": "fwd", "model": "m", "m": 4, "d": 64, "h": 128, "dtype": "bf16",
       "us": 2.0, "baseline": "own_unfused", "baseline_us": 3.0, "ratio": 1.5, "tflops": 0.1,
       "gbps": 10.0, "rel_err": 1e-3, "extra_bytes": 0, "baseline_extra_bytes": 4096}  # fmt: skip
META = {"device": "CPU", "read_tbps": 0.02, "fma_gflops": 200.0}

_VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """What the tests ask of a page; raises where elements are not properly nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        if self._open:
            raise AssertionError(f"not closed: {self._open}")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attributes}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def drawings(self) -> list[str]:
        return re.findall(r"<svg.*?</svg>", self.text, flags=re.DOTALL)


def page(*rows: dict, meta: dict | None = None) -> Page:
    return Page(report.render([ResultsFile("r.json", META if meta is None else meta, rows)]))


class SampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.files = [load(path) for path in SAMPLES]
        cls.page = Page(report.render(cls.files))

    def test_every_section_and_plot_is_there(self) -> None:
        anchors = {a["id"] for tag, a in self.page.elements if tag == "section"}
        self.assertEqual(
            anchors, {"speedup", "roofline", "memory", "errors", "results", "provenance"}
        )
        # cpu: speed-up, roofline, bytes; gpu: ten models make two plots of each of two baselines
        # and of the roofline, and bytes; memory: lengths, KV tokens.
        self.assertEqual(self.page.count("svg"), 3 + 7 + 2)

    def test_every_row_is_in_the_tables(self) -> None:
        rows = sum(len(file.rows) for file in self.files)
        times = [report.formats.significant(row["us"]) for f in self.files for row in f.rows]
        shown = Counter(word for word in self.page.words)
        self.assertGreaterEqual(self.page.count("tr"), rows)
        for time in times:
            self.assertGreater(shown[time], 0, time)
        for file in self.files:
            self.assertIn(file.meta["command"], self.page.words)

    def test_loads_nothing(self) -> None:
        for tag in ("script", "link", "img", "iframe", "object", "image", "base"):
            self.assertEqual(self.page.count(tag), 0, tag)
        for tag, attributes in self.page.elements:
            for key, value in attributes.items():
                self.assertFalse(key.startswith("on"), f"{tag} {key}")
                if key in ("href", "src", "xlink:href"):
                    self.assertTrue(value.startswith("#"), f"{tag} {key}={value}")
        self.assertNotRegex(self.page.text, r"@import|url\((?!#)")
        without_namespaces = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", self.page.text)
        self.assertNotIn("http", without_namespaces)

    def test_ids_are_unique_and_references_meet_them(self) -> None:
        ids = Counter(a["id"] for _, a in self.page.elements if "id" in a)
        self.assertEqual([name for name, times in ids.items() if times > 1], [])
        references = set(re.findall(r'href="#([^"]*)"', self.page.text))
        references |= set(re.findall(r"url\(#([^)]*)\)", self.page.text))
        for _, attributes in self.page.elements:
            references |= set(attributes.get("aria-labelledby", "").split())
        self.assertGreater(len(references), 20)
        self.assertEqual(references - set(ids), set())

    def test_drawings_take_every_colour_from_the_page(self) -> None:
        variables = set(re.findall(r"(--[\w-]+):", self.page.text))
        for drawing in self.page.drawings():
            self.assertEqual(re.findall(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?!-)", drawing), [])
            self.assertNotRegex(drawing, r"(fill|stroke): *(black|white|rgb)")
            used = set(re.findall(r"var\((--[\w-]+)\)", drawing))
            self.assertGreater(len(used), 2)
            self.assertEqual(used - variables, set())

    def test_dark_page_redefines_every_colour(self) -> None:
        light, dark = (
            set(re.findall(r"(--[\w-]+):", block))
            for block in re.findall(r":root \{(.*?)\}", self.page.text, flags=re.DOTALL)
        )
        self.assertEqual(light, dark)

    def test_drawings_are_well_formed_and_described(self) -> None:
        for drawing in self.page.drawings():
            root = ElementTree.fromstring(drawing)
            tags = [child.tag.rsplit("}", 1)[-1] for child in root][:2]
            self.assertEqual(tags, ["title", "desc"])
            self.assertEqual(root.get("role"), "img")
            self.assertIsNotNone(root.get("viewBox"))
            self.assertIsNone(root.get("width"))

    def test_tables_have_captions_and_headings(self) -> None:
        self.assertGreater(self.page.count("table"), 5)
        self.assertEqual(self.page.count("table"), self.page.count("caption"))
        self.assertTrue(all(a.get("scope") for tag, a in self.page.elements if tag == "th"))
        self.assertIn(("html", {"lang": "en"}), self.page.elements)

    def test_same_files_same_page(self) -> None:
        self.assertEqual(report.render(self.files), self.page.text)


class RobustnessTest(unittest.TestCase):
    def test_single_row(self) -> None:
        self.assertEqual(page(ROW).count("svg"), 3)

    def test_every_field_may_be_missing(self) -> None:
        for key in ROW:
            with self.subTest(key):
                rest = {name: value for name, value in ROW.items() if name != key}
                self.assertIn("r.json: CPU", page(rest, {**ROW, key: None}).words)
        self.assertEqual(page({}, meta={}).count("svg"), 0)
        self.assertIn("unknown device", " ".join(page({}, meta={}).words))

    def test_wrong_types_and_values(self) -> None:
        for value in (float("nan"), float("inf"), -1.0, 0, "text", [], {}, True, 10**400, 1e308,
                      5e-324):  # fmt: skip
            with self.subTest(value=value):
                rows = [{**ROW, key: value} for key in ROW]
                got = page(*rows, dict.fromkeys(ROW, value), meta=dict.fromkeys(META, value))
                self.assertGreaterEqual(got.count("svg"), 3)
                self.assertGreaterEqual(got.count("tr"), len(rows))

    def test_ceilings_may_be_missing(self) -> None:
        for meta in ({}, {"read_tbps": 0.02}, {"gemm_tflops": 700.0}):
            with self.subTest(meta):
                self.assertEqual(page(ROW, meta=meta).count("svg"), 3)

    def test_extremes_are_drawn(self) -> None:
        rows = [{**ROW, "m": m, "us": us, "ratio": ratio, "tflops": 1e-6 * m, "gbps": 1e-3 * us}
                for m, us, ratio in ((1, 1e-3, 1e-3), (2**31, 1e9, 1e3))]  # fmt: skip
        self.assertEqual(page(*rows).count("svg"), 3)

    def test_names_are_only_text(self) -> None:
        name = "<script>alert(1)</script>$\\frac{a}$&\"'"
        got = page({**ROW, "model": name, "op": name}, meta={**META, "device": name})
        self.assertEqual(got.count("script"), 0)
        self.assertIn(name, got.words)
        for drawing in got.drawings():
            self.assertIn(name, "".join(ElementTree.fromstring(drawing).itertext()))

    def test_ratio_is_found_from_times(self) -> None:
        rest = {key: value for key, value in ROW.items() if key != "ratio"}
        self.assertIn("1.50x", page(rest).words)

    def test_slower_is_marked(self) -> None:
        classes = [a.get("class", "") for _, a in page({**ROW, "ratio": 0.5}).elements]
        self.assertTrue(any("slower" in name for name in classes))
        self.assertFalse(any("faster" in name for name in classes))

    def test_checks_are_summed_up(self) -> None:
        check = {"model": "m", "m": 4, "passed": True, "rel_err": 1e-3, "unfused_rel_err": 2e-3,
                 "worst_bound_share": 0.25}  # fmt: skip
        checks = (check, {**check, "rel_err": 7e-3, "passed": False}, {"m": 512, "passed": "yes"})
        words = Page(report.render([ResultsFile("r.json", META, (ROW,), (), checks)])).words
        for word in ("1 of 2", "0.00700", "0.00200", "25 %", "0 of 1"):
            self.assertIn(word, words)

    def test_nothing_to_show(self) -> None:
        with self.assertRaisesRegex(ResultsError, "hold no rows"):
            report.render([ResultsFile("r.json")])


class CommandLineTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_main(self, *arguments: object) -> tuple[int, str]:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                status = report.main([str(argument) for argument in arguments])
            except SystemExit as stop:
                status = int(stop.code or 0)
        return status, errors.getvalue()

    def test_writes_the_page(self) -> None:
        out = self.folder / "new" / "report.html"
        self.assertEqual(self.run_main(SAMPLES[0], "-o", out), (0, ""))
        self.assertTrue(out.read_text(encoding="utf-8").startswith("<!doctype html>"))

    def test_writes_what_no_encoding_has(self) -> None:
        strange = self.folder / "strange.json"
        row = {**ROW, "model": "\ud800", "variant": "\udfff"}
        meta = {**META, "device": "a\ud800", "command": "\udc80"}
        content = json.loads(render(meta, rows=[row]))
        strange.write_text(json.dumps(content))  # ASCII: UTF-8 holds no lone surrogate
        out = self.folder / "r.html"
        self.assertEqual(self.run_main(strange, "-o", out), (0, ""))
        self.assertIn("a?", out.read_text(encoding="utf-8"))

    def test_says_what_is_wrong(self) -> None:
        bad = self.folder / "bad.json"
        bad.write_text(render({}, rows=[]))
        status, errors = self.run_main(SAMPLES[0], bad, "-o", self.folder / "r.html")
        self.assertEqual(status, 2)
        self.assertIn("bad.json: holds no rows", errors)
        self.assertFalse((self.folder / "r.html").exists())
        self.assertEqual(self.run_main(self.folder / "absent.json")[0], 2)
        self.assertEqual(self.run_main()[0], 2)
        self.assertEqual(self.run_main(SAMPLES[0], "-o", self.folder)[0], 1)


if __name__ == "__main__":
    unittest.main()
