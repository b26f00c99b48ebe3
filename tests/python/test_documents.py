# SPDX-License-Identifier: Apache-2.0
"""data/documents.json leads to results and tests that exist; docs/documents.md is made of it."""

import copy
import re
import unittest
from pathlib import Path

from sluice import documents, fields, readme_tables

ROOT = Path(__file__).parents[2]
FILE = ROOT / "data/documents.json"
PAGE = ROOT / "docs/documents.md"


class Documents(unittest.TestCase):
    def setUp(self) -> None:
        self.documents = documents.read(FILE)

    def problem(self, **changes: object) -> str:
        """Of the first claim that is done with these fields changed; None takes one away."""
        planted = copy.deepcopy(self.documents)
        claim = next(c for d in planted for c in d["claims"] if c["state"] == "done")
        claim.update(changes)
        for name in [name for name, value in claim.items() if value is None]:
            del claim[name]
        return "\n".join(documents.problems(planted, ROOT))

    def test_every_claim_resolves(self) -> None:
        self.assertEqual(documents.problems(self.documents, ROOT), [])

    def test_claims_that_do_not_are_named(self) -> None:
        self.assertIn("done with 0 pieces of evidence", self.problem(evidence=None))
        self.assertIn("done with 0 pieces of evidence", self.problem(evidence=[]))
        self.assertIn("absent with 1 pieces of evidence", self.problem(state="absent", missing="x",
                      evidence=["GpuRun.CanBeCapturedAndReplayed"]))  # fmt: skip
        self.assertIn("partly that names 'nothing' as missing", self.problem(state="partly"))
        self.assertIn("done that names 'a run' as missing", self.problem(missing="a run"))
        self.assertIn("state is 'nearly'", self.problem(state="nearly", missing="x"))
        self.assertIn("no test GpuRun.IsNotThere", self.problem(evidence=["GpuRun.IsNotThere"]))
        self.assertIn("no test test_ops.test_none", self.problem(evidence=["test_ops.test_none"]))
        self.assertIn("none.json: cannot be read", self.problem(evidence=["h200/none.json op:mlp"]))
        self.assertIn("no row is h200/decode.json m:7",
                      self.problem(evidence=["h200/decode.json m:7"]))  # fmt: skip
        self.assertIn("where: expected field:value",
                      self.problem(evidence=["h200/decode.json speed:7"]))  # fmt: skip

    def test_the_page_is_up_to_date_and_has_every_document(self) -> None:
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(readme_tables.rewrite(text, PAGE.parent), text,
                         "run python -m sluice.readme_tables docs/documents.md")  # fmt: skip
        shown = re.findall(r"<!-- sluice-document \S+ (\S+) -->", text)
        self.assertEqual(shown, [document["id"] for document in self.documents])

    def test_a_cell_is_one_number(self) -> None:
        results, files = ROOT / "bench/results", {}
        one = "h200/decode.json op:mlp,baseline:cublaslt_chain,d:4096,m:{} ratio"
        self.assertRegex(documents._cell(results, one.format(16), files), r"^1\.\d\dx$")
        self.assertEqual(files["h200/decode.json"].device, "NVIDIA H200")
        self.assertEqual(documents._cell(results, one.format(17), files), documents.NOT_RUN)
        self.assertEqual(documents._cell(results, "needs a card", files), "needs a card")
        for text, message in {
            "h200/decode.json op:mlp us": "46 rows",
            "h200/decode.json op:mlp speed": "unknown field speed",
        }.items():
            with self.assertRaisesRegex(fields.MarkerError, message):
                documents._cell(results, text, files)

    def test_an_unknown_document_and_a_bad_file_are_named(self) -> None:
        with self.assertRaisesRegex(fields.MarkerError, "no document other"):
            documents.section(FILE, "data/documents.json", "other")
        with self.assertRaisesRegex(fields.MarkerError, "absent.json: cannot be read"):
            documents.read(ROOT / "data/absent.json")


if __name__ == "__main__":
    unittest.main()
