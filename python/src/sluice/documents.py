# SPDX-License-Identifier: Apache-2.0
"""The published documents that Sluice reproduces: what each claims, and what shows it here. Reads
data/documents.json and writes a document's section for ``sluice.readme_tables``. Standard library
only.

A claim is ``done``, ``partly`` or ``absent``. The first two name their evidence, the last two what
is missing. Evidence is a selection of rows, ``FILE [field:value,...]`` with a file below
bench/results, or a test: ``Suite.Name`` of C++, ``module.test_name`` of Python, a name of CTest for
an example. A table has the
document's printed columns and columns of ``ours``: for each key ``FILE CONDITIONS FIELD``, or
words; one text for all keys has ``{}`` where the key stands.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sluice.fields import FIELDS, MarkerError, matches, table_lines
from sluice.results import Record, ResultsError, ResultsFile, grouped, load

STATES = ("done", "partly", "absent")
NOT_RUN = "–"
_CPP_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)")
_EXAMPLE_TEST = re.compile(r"\badd_test\(NAME ([\w.]+)")
_PYTHON_TEST = re.compile(r"^\s+def (test_\w+)\(self", re.MULTILINE)


def read(path: Path) -> list[Mapping[str, Any]]:
    """The documents of a file. Raises ``MarkerError`` where it cannot be read or is no JSON."""
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["documents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MarkerError(f"{path}: cannot be read: {error}") from None


@cache
def _load(path: Path) -> ResultsFile:
    return load(path)


def _selected(results: Path, selection: str) -> tuple[ResultsFile, list[Record]]:
    """The file and the rows that ``FILE [field:value,...]`` names. Raises ``ResultsError`` where
    there is no such file."""
    name, _, conditions = selection.partition(" ")
    file = _load(results / name)
    where = conditions.split(",") if conditions else []
    return file, [row for row in file.rows if matches(row, where)]


@cache
def test_names(root: Path) -> set[str]:
    """Every test of a checkout, as evidence names it."""
    found: set[str] = set()
    for path in sorted((root / "examples").rglob("CMakeLists.txt")):
        found |= set(_EXAMPLE_TEST.findall(path.read_text("utf-8")))
    tests = root / "tests"
    for path in sorted([*tests.rglob("*.cpp"), *tests.rglob("*.cu")]):
        found |= {f"{suite}.{name}" for suite, name in _CPP_TEST.findall(path.read_text("utf-8"))}
    for path in sorted(tests.rglob("*.py")):
        found |= {f"{path.stem}.{name}" for name in _PYTHON_TEST.findall(path.read_text("utf-8"))}
    return found


def problems(documents: Sequence[Mapping[str, Any]], root: Path) -> list[str]:
    """What is wrong with the claims, a line each: a state that is none, evidence that is missing,
    not wanted, or leads nowhere in the checkout ``root``."""
    tests = test_names(root)
    out: list[str] = []
    for document in documents:
        for claim in document["claims"]:
            where = f"{document['id']}: {claim['claim']}"
            state, evidence = claim["state"], claim.get("evidence", [])
            if state not in STATES:
                out.append(f"{where}: state is {state!r}, wanted one of {', '.join(STATES)}")
            if bool(evidence) != (state != "absent"):
                out.append(f"{where}: {state} with {len(evidence)} pieces of evidence")
            if bool(claim.get("missing")) != (state != "done"):
                missing = claim.get("missing", "nothing")
                out.append(f"{where}: {state} that names {missing!r} as missing")
            for piece in evidence:
                if ".json" not in piece:
                    out += [] if piece in tests else [f"{where}: no test {piece}"]
                    continue
                try:
                    if not _selected(root / "bench/results", piece)[1]:
                        out.append(f"{where}: no row is {piece}")
                except (MarkerError, ResultsError) as error:
                    out.append(f"{where}: {error}")
    return out


def _cell(results: Path, text: str, files: dict[str, ResultsFile]) -> str:
    """One cell of a column of ours; ``files`` gets the file that it is from."""
    if ".json" not in text:
        return text
    selection, _, field = text.rpartition(" ")
    file, rows = _selected(results, selection)
    if field not in FIELDS:
        raise MarkerError(f"{text}: unknown field {field}")
    shown = {FIELDS[field].show(row) for row in rows}
    if len(shown) > 1:
        raise MarkerError(f"{text}: {len(rows)} rows")
    if not shown:
        return NOT_RUN
    files[selection.partition(" ")[0]] = file
    return shown.pop()


def _table(table: Mapping[str, Any], results: Path, shown_results: Path) -> str:
    keys: list[str] = table["keys"]
    titles, columns = [table["head"]], [keys]
    files: dict[str, ResultsFile] = {}
    for column in table["columns"]:
        titles.append(column["head"])
        if "ours" in column:
            ours = column["ours"]
            texts = [ours.format(key) for key in keys] if isinstance(ours, str) else ours
            columns.append([_cell(results, text, files) for text in texts])
        else:
            columns.append(column["printed"])
    if len({len(column) for column in columns}) != 1:
        raise MarkerError(f"{table['title']}: columns of different lengths")
    rows = [list(cells) for cells in zip(*columns, strict=True)]
    sources = [f"{file.device}, [{name}]({shown_results}/{name})" for name, file in files.items()]
    lines = table_lines(titles, [False] + [True] * (len(titles) - 1), rows)
    return "\n".join([table["title"] + ":", "", *lines, "", f"Sluice: {'; '.join(sources)}."])


def _figured(claim: Mapping[str, Any]) -> str:
    return f"{claim['claim']} ({claim['figure']})" if "figure" in claim else str(claim["claim"])


def section(path: Path, shown_path: str, name: str) -> str:
    """The Markdown of the document with the id ``name`` in the file ``path`` of a checkout, which
    the page calls ``shown_path``: what it reports, its tables beside ours, what is missing, and how
    many claims are done. Raises ``MarkerError`` and ``ResultsError``."""
    document = next((d for d in read(path) if d["id"] == name), None)
    if document is None:
        raise MarkerError(f"{path}: no document {name}")
    results, shown_results = (
        Path(p).parent.parent / "bench/results" for p in (path.resolve(), shown_path)
    )
    states = Counter(claim["state"] for claim in document["claims"])
    title = f"[{document['title']}]({document['url']})" if "url" in document else document["title"]
    counts = ", ".join(f"{states[state]} {state}" for state in STATES)
    about = f"{document['reports']} Measured on {document['hardware']}."
    parts = [f"{title}, {document['by']}. {about}"]
    parts.append(f"{len(document['claims'])} claims: {counts}.")
    parts += [_table(table, results, shown_results) for table in document["tables"]]
    for state in STATES[1:]:
        claims = [claim for claim in document["claims"] if claim["state"] == state]
        by_reason = grouped(claims, lambda claim: claim["missing"])
        lines = [
            f"- *{reason}*: {'; '.join(map(_figured, of))}" for reason, of in sorted(by_reason.items())
        ]
        parts.append("\n".join([f"{state.capitalize()}, and *what is missing*:", "", *lines]))
    return "\n\n".join(parts)
