# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of Markdown documents from committed results files, so that no number in them
is typed. Standard library only.

A document says where a table goes and what is in it; whatever is between the two lines is replaced:

    <!-- sluice-table bench/results/cpu/smollm2.json columns=model,m,us,baseline_us,ratio -->
    <!-- /sluice-table -->

A summary has a line for each of several files, over all rows that the line's ``where=`` leaves:

    <!-- sluice-summary
    bench/results/h200/decode.json where=baseline:cublaslt_chain | `mlp`, 1 to 64 tokens | cuBLASLt
    -->
    <!-- /sluice-summary -->

The section of a published document that Sluice reproduces (``sluice.documents``):

    <!-- sluice-document ../data/documents.json ID -->
    <!-- /sluice-document -->

Options after the file, all optional: ``columns=`` the fields of a row, in order; ``where=`` a
``field:value`` that a row must have (``d:>2048``, ``m:<64``), several joined by commas; ``group=``
fields whose equal values make one line of several rows (the layers of a model): times and ratios become medians, errors and
bytes the largest; ``mean_ratio`` and ``least_ratio`` are the geometric mean and the lowest of the
ratios; ``across=`` a field that gets a column for each of its values, and ``cell=`` the fields that
stand in it: a line then holds all rows that ``columns=`` cannot tell apart. Files are named
relative to the document's folder or to ``--root``.

``python -m sluice.readme_tables README.md`` rewrites, ``--check`` only compares.
Exit status: 0 done or current, 1 a document is stale (``--check``), 2 usage, a bad marker or file.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sluice import documents, formats
from sluice.fields import FIELDS, MarkerError, matches, table_lines
from sluice.pipe import end_with_reader
from sluice.replace_file import replace_file
from sluice.results import Record, ResultsError, grouped, load, number, speedup, text

_BEGIN = re.compile(r"<!-- sluice-table (\S+)((?: [a-z]+=\S+)*) -->")
_END = "<!-- /sluice-table -->"
_SUMMARY = re.compile(r"<!-- sluice-summary\n(.*?)\n-->", re.DOTALL)
_SUMMARY_END = "<!-- /sluice-summary -->"
_DOCUMENT = re.compile(r"<!-- sluice-document (\S+) (\S+) -->")
_DOCUMENT_END = "<!-- /sluice-document -->"
_DEFAULT_COLUMNS = ("model", "m", "us", "baseline_us", "ratio")


def _options(words: str) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for word in words.split():
        key, _, value = word.partition("=")
        if key not in ("columns", "where", "group", "across", "cell"):
            raise MarkerError(f"unknown option {key}=")
        options[key] = value.split(",")
    if len(options.get("across", ["one"])) != 1 or ("across" in options) != ("cell" in options):
        raise MarkerError("across= takes one field, and cell= says what stands in its columns")
    for key in ("columns", "group", "across", "cell"):
        for name in options.get(key, []):
            if name not in FIELDS:
                raise MarkerError(f"{key}: unknown field {name}")
    return options


def _merged(rows: Sequence[Record]) -> Record:
    """One row of several: what they agree on stays, numbers are merged."""
    merged: dict[str, Any] = {}
    for key, field in FIELDS.items():
        if field.merge is None:
            values = {text(row, key) for row in rows}
            merged[key] = values.pop() if len(values) == 1 else "various"
            continue
        read = field.read or (lambda row, key=key: number(row, key))
        numbers = [value for row in rows if (value := read(row)) is not None]
        merged[key] = field.merge(numbers) if numbers else None
    return merged


def _spread(rows: Sequence[Record], columns: list[str], across: str, cell: list[str]) -> list[str]:
    """A table with a column for each value of the field ``across``."""
    fields = [FIELDS[name] for name in columns]
    title = f"{FIELDS[across].title}=" if FIELDS[across].is_number else ""
    in_order = sorted(rows, key=lambda row: number(row, across) or 0)  # stable: text stays as it is
    heads = list(dict.fromkeys(FIELDS[across].show(row) for row in in_order))
    made = []
    for key, group in grouped(rows, lambda row: tuple(f.show(row) for f in fields)).items():
        cells: dict[str, str] = {}
        for row in group:
            head = FIELDS[across].show(row)
            if head in cells:
                raise MarkerError(f"across: two rows for {', '.join(key)} at {title}{head}")
            cells[head] = ", ".join(FIELDS[name].show(row) for name in cell)
        made.append([*key, *(cells.get(head, formats.UNKNOWN) for head in heads)])
    titles = [field.title for field in fields] + [title + head for head in heads]
    return table_lines(titles, [field.is_number for field in fields] + [True] * len(heads), made)


def table(path: Path, shown_path: str, words: str) -> str:
    """The Markdown of one marker: a table and a line that says where the numbers come from.

    Raises ``MarkerError`` and ``ResultsError``."""
    options = _options(words)
    file = load(path)
    rows: list[Record] = [row for row in file.rows if matches(row, options.get("where", []))]
    if "group" in options:
        keys = options["group"]
        groups = grouped(rows, lambda row: tuple(str(row.get(key)) for key in keys))
        rows = [_merged(group) for group in groups.values()]
    if not rows:
        raise MarkerError(f"{shown_path}: no row is left to show")
    columns = options.get("columns", list(_DEFAULT_COLUMNS))
    across = options.get("across", [])
    cell = options.get("cell", [])
    if across:
        lines = _spread(rows, columns, across[0], cell)
    else:
        fields = [FIELDS[name] for name in columns]
        shown = [[field.show(row) for field in fields] for row in rows]
        lines = table_lines([f.title for f in fields], [f.is_number for f in fields], shown)
    held = text(file.meta, "max_simd")
    facts = [
        f"{file.device} held to {held}" if held else file.device,
        "built with uncommitted changes" if file.meta.get("dirty") else "",
        f"[{path.name}]({shown_path})",
    ]
    legend = f"Cells: {', '.join(FIELDS[name].title for name in cell)}. " if len(cell) > 1 else ""
    return "\n".join(lines) + "\n\n" + legend + ", ".join(filter(None, facts)) + "."


def summary(lines: str, root: Path) -> str:
    """The Markdown of one summary: a row for each line of the marker, and where its numbers are.

    Raises ``MarkerError`` and ``ResultsError``."""
    out = ["| what | baseline | mean speed-up | lowest | measured on |", "|---|---|---:|---:|---|"]
    for line in lines.split("\n"):
        parts = [part.strip() for part in line.split("|")]
        name, _, words = parts[0].partition(" ")
        if len(parts) != 3 or not name:
            raise MarkerError(f"summary: expected FILE [where=...] | what | baseline, got {line}")
        file = load(root / name)
        rows = [row for row in file.rows if matches(row, _options(words).get("where", []))]
        ratios = [value for row in rows if (value := speedup(row)) is not None]
        if not ratios:
            raise MarkerError(f"{name}: no row is left to show")
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        out.append(
            f"| {parts[1]} | {parts[2]} | {formats.ratio(mean)} | {formats.ratio(least)} "
            f"| [{file.device}]({name}) |"
        )
    return "\n".join(out)


# Of each kind of marker its end, and what makes the text between.
_MARKERS: dict[re.Pattern[str], tuple[str, Callable[[re.Match[str], Path], str]]] = {
    _BEGIN: (_END, lambda found, root: table(root / found[1], found[1], found[2])),
    _SUMMARY: (_SUMMARY_END, lambda found, root: summary(found[1], root)),
    _DOCUMENT: (
        _DOCUMENT_END,
        lambda found, root: documents.section(root / found[1], found[1], found[2]),
    ),
}


def rewrite(document: str, root: Path) -> str:
    """The document with every table, summary and section made anew.

    Raises ``MarkerError`` where it has no marker or one without an end, ``ResultsError`` from a
    results file."""
    pieces = []
    position = 0
    begins = [found for kind in _MARKERS for found in kind.finditer(document)]
    for begin in sorted(begins, key=lambda found: found.start()):
        marker, make = _MARKERS[begin.re]
        name = "summary" if begin.re is _SUMMARY else begin[1]
        if begin.start() < position:
            raise MarkerError(f"{name}: begins within another table")
        end = document.find(marker, begin.end())
        if end < 0:
            raise MarkerError(f"{name}: no {marker} after it")
        pieces.append(document[position : begin.end()])
        pieces.append("\n\n" + make(begin, root) + "\n\n")
        position = end
    if not pieces:
        raise MarkerError("holds no <!-- sluice-table FILE ... -->")
    return "".join(pieces) + document[position:]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.readme_tables",
        description="Write the tables of Markdown documents from results files.",
    )
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--root", type=Path, help="folder that results files are named from")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    arguments = parser.parse_args(argv)
    stale = False
    for path in arguments.documents:
        try:
            before = path.read_text(encoding="utf-8")
            after = rewrite(before, arguments.root or path.parent)
            if before == after:
                continue
            stale = True
            if arguments.check:
                print(f"{path}: stale; run python -m sluice.readme_tables {path}", file=sys.stderr)
            else:
                replace_file(path, after)
        except (MarkerError, ResultsError) as error:
            print(f"sluice.readme_tables: {path}: {error}", file=sys.stderr)
            return 2
        except (OSError, UnicodeDecodeError) as error:
            print(f"sluice.readme_tables: {path}: {error}", file=sys.stderr)
            return 2
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    end_with_reader()
    sys.exit(main())
