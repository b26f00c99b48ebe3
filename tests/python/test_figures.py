# SPDX-License-Identifier: Apache-2.0
"""The figures of documents are those that their results files give. Needs matplotlib."""

import contextlib
import io
import json
import re
import shutil
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
from sluice import figures, results

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/results.md"
PUBLISHED = ROOT / "docs/documents.md"
PINS = (ROOT / "python/requirements.txt").read_text(encoding="utf-8")


def check(document: Path, *options: str) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = figures.main([str(document), *options])
    return status, errors.getvalue()


class Figures(unittest.TestCase):
    @unittest.skipIf(f"matplotlib=={matplotlib.__version__}\n" not in PINS,
                     "another matplotlib than python/requirements.txt names")  # fmt: skip
    def test_those_of_the_results_are_up_to_date_and_shown(self) -> None:
        self.assertEqual(check(DOCUMENT, "--check"), (0, ""))
        text = DOCUMENT.read_text(encoding="utf-8")
        made = dict(figures.figures(text, DOCUMENT.parent))
        self.assertEqual(set(re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)), set(made))
        self.assertIn("figures/decode.svg", made)
        self.assertEqual(check(PUBLISHED, "--check"), (0, ""))

    def test_kv_tokens_are_a_bar_a_model(self) -> None:
        text = PUBLISHED.read_text(encoding="utf-8")
        drawn = dict(figures.figures(text, PUBLISHED.parent))
        for target in drawn:
            self.assertIn(f"]({target})", text)
        self.assertIn("llama-3.1-8b", drawn["figures/kv_tokens.svg"])
        self.assertIn(">224</text>", drawn["figures/kv_tokens.svg"])

    def test_of_several_baselines_each_is_a_line(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            rows = [{"model": "a", "m": 1, "us": 1.0, "baseline_us": t, "ratio": t, "baseline": b}
                    for t, b in ((1.125, "vllm"), (1.25, "sglang"))]  # fmt: skip
            results.save(Path(name, "r.json"), {"device": "a GPU"}, rows=rows)
            marker = "<!-- sluice-figure r.json where=model:a d.svg Two engines -->"
            ((_, svg),) = figures.figures(marker, Path(name))
        self.assertIn(">vllm</text>", svg)
        self.assertIn(">sglang</text>", svg)
        self.assertIn("Time of vllm and sglang over", svg)

    def test_a_training_run_is_two_curves_of_loss(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            losses = [{"step": s, "loss": 3.0 - s / 4, "baseline_loss": 3.125 - s / 4} for s in (1, 2, 3)]
            rows = [{**r, "model": "m", "pass": "full", "baseline": "torch_eager"} for r in losses]
            results.save(Path(name, "r.json"), {"device": "a CPU"}, rows=rows)
            marker = "<!-- sluice-figure r.json where=pass:full d.svg Two runs -->"
            ((_, svg),) = figures.figures(marker, Path(name))
        for words in ("Two runs, a CPU", "losses of 3 steps are at most 0.125 apart", "2.25 and 2.38", "torch_eager"):
            self.assertIn(words, svg)

    def test_a_drawing_stands_alone(self) -> None:
        text = DOCUMENT.read_text(encoding="utf-8")
        for _, svg in figures.figures(text, DOCUMENT.parent):
            drawing = ElementTree.fromstring(svg)
            self.assertEqual(drawing.tag, "{http://www.w3.org/2000/svg}svg")
            defined = set(re.findall(r"(--[\w-]+):", svg))
            self.assertLessEqual(set(re.findall(r"var\((--[\w-]+)\)", svg)), defined)

    def test_a_stale_or_missing_figure_is_told_and_written(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copy(ROOT / "bench/results/h200/decode_engine.json", folder / "r.json")
            document = folder / "d.md"
            marker = "<!-- sluice-figure r.json where={} f/d.svg A title -->"
            document.write_text(marker.format("baseline:cublaslt_chain"))
            self.assertEqual(check(document, "--check")[0], 1)
            self.assertEqual(check(document), (0, ""))
            self.assertEqual(check(document, "--check"), (0, ""))
            drawn = (folder / "f/d.svg").read_text(encoding="utf-8")
            self.assertIn("A title, NVIDIA H200", drawn)
            file = json.loads((folder / "r.json").read_text(encoding="utf-8"))
            for row in file["rows"]:
                row[file["columns"].index("ratio")] *= 2
            (folder / "r.json").write_text(json.dumps(file), encoding="utf-8")
            status, errors = check(document, "--check")
            self.assertEqual(status, 1)
            self.assertIn("f/d.svg: stale; run python -m sluice.figures", errors)
            for where, message in {"m:7": "no row is left", "x": "expected field:value"}.items():
                document.write_text(marker.format(where))
                status, errors = check(document)
                self.assertEqual(status, 2)
                self.assertIn(message, errors)


if __name__ == "__main__":
    unittest.main()
