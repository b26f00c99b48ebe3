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

Options after the file, all optional: ``columns=`` the fields of a row, in order; ``where=`` a
``field:value`` that a row must have, several joined by commas; ``group=`` fields whose equal values
make one line of several rows (the layers of a model): times and ratios become medians, errors and
bytes the largest; ``mean_ratio`` and ``least_ratio`` are the geometric mean and the lowest of the
ratios. Files are named relative to the document's folder or to ``--root``.

``python -m sluice.readme_tables README.md`` rewrites, ``--check`` only compares.
Exit status: 0 done or current, 1 a document is stale (``--check``), 2 usage, a bad marker or file.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice import formats
from sluice.pipe import end_with_reader
from sluice.results import Record, ResultsError, grouped, load, number, speedup, text

_BEGIN = re.compile(r"<!-- sluice-table (\S+)((?: [a-z]+=\S+)*) -->")
_END = "<!-- /sluice-table -->"
_SUMMARY = re.compile(r"<!-- sluice-summary\n(.*?)\n-->", re.DOTALL)
_SUMMARY_END = "<!-- /sluice-summary -->"
_DEFAULT_COLUMNS = ("model", "m", "us", "baseline_us", "ratio")


@dataclass(frozen=True)
class _Field:
    title: str
    show: Callable[[Record], str]
    merge: Callable[[list[float]], float] | None = statistics.median
    is_number: bool = True
    read: Callable[[Record], float | None] | None = None  # of a row, where it is no field of that name


def _ratio_field(title: str, key: str, merge: Callable[[list[float]], float]) -> _Field:
    def read(row: Record) -> float | None:
        merged = number(row, key)
        return merged if merged is not None else speedup(row)

    return _Field(title, lambda row: formats.ratio(read(row)), merge, read=read)


def _number_field(
    title: str,
    key: str,
    show: Callable[[float | None], str],
    merge: Callable[[list[float]], float] = statistics.median,
) -> _Field:
    return _Field(title, lambda row: show(number(row, key)), merge)


def _text_field(title: str, key: str) -> _Field:
    return _Field(title, lambda row: text(row, key) or formats.UNKNOWN, None, is_number=False)


_FIELDS = {
    "op": _text_field("operator", "op"),
    "pass": _text_field("pass", "pass"),
    "model": _text_field("model", "model"),
    "dtype": _text_field("dtype", "dtype"),
    "gate": _text_field("gate", "gate"),
    "layout": _text_field("layout", "layout"),
    "policy": _text_field("policy", "policy"),
    "output": _text_field("output", "output"),
    "variant": _text_field("variant", "variant"),
    "config": _text_field("config", "config"),
    "baseline": _text_field("baseline", "baseline"),
    "baseline_config": _text_field("baseline's configuration", "baseline_config"),
    "m": _number_field("M", "m", formats.count),
    "d": _number_field("D", "d", formats.count),
    "h": _number_field("H", "h", formats.count),
    "threads": _number_field("threads", "threads", formats.count),
    "tp": _number_field("TP", "tp", formats.count),
    "us": _number_field("us", "us", formats.significant),
    "us_p10": _number_field("p10", "us_p10", formats.significant),
    "us_p90": _number_field("p90", "us_p90", formats.significant),
    "tflops": _number_field("TFLOP/s", "tflops", formats.significant),
    "gbps": _number_field("GB/s", "gbps", formats.significant),
    "roof_fraction": _number_field("of roof", "roof_fraction", formats.percent),
    "baseline_us": _number_field("baseline us", "baseline_us", formats.significant),
    "ratio": _ratio_field("speed-up", "ratio", statistics.median),
    "mean_ratio": _ratio_field("mean speed-up", "mean_ratio", statistics.geometric_mean),
    "least_ratio": _ratio_field("lowest", "least_ratio", min),
    "batch": _number_field("requests", "batch", formats.count),
    "tokens_per_s": _number_field("tokens/s", "tokens_per_s", formats.significant),
    "baseline_tokens_per_s": _number_field(
        "baseline tokens/s", "baseline_tokens_per_s", formats.significant
    ),
    "runs": _number_field("runs", "runs", formats.count, min),
    "sd": _number_field("sd", "sd", formats.significant, max),
    "baseline_sd": _number_field("baseline's sd", "baseline_sd", formats.significant, max),
    "rel_err": _number_field("error", "rel_err", formats.significant, max),
    "baseline_rel_err": _number_field(
        "baseline's error", "baseline_rel_err", formats.significant, max
    ),
    "draws": _number_field("draws", "draws", formats.count, min),
    "max_diff": _number_field("max diff", "max_diff", formats.significant, max),
    "mean_diff": _number_field("mean diff", "mean_diff", formats.significant, max),
    "rel_diff": _number_field("relative diff", "rel_diff", formats.significant, max),
    "rel_diff_sd": _number_field("its sd", "rel_diff_sd", formats.significant, max),
    "study_rel_diff": _number_field("the study's", "study_rel_diff", formats.significant, max),
    "extra_bytes": _number_field("extra bytes", "extra_bytes", formats.binary_bytes, max),
    "baseline_extra_bytes": _number_field(
        "baseline extra bytes", "baseline_extra_bytes", formats.binary_bytes, max
    ),
    "peak_bytes": _number_field("peak bytes", "peak_bytes", formats.binary_bytes, max),
}


class MarkerError(Exception):
    """A marker that cannot be obeyed; the message says which and why."""


def _options(words: str) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for word in words.split():
        key, _, value = word.partition("=")
        if key not in ("columns", "where", "group"):
            raise MarkerError(f"unknown option {key}=")
        options[key] = value.split(",")
    for key in ("columns", "group"):
        for name in options.get(key, []):
            if name not in _FIELDS:
                raise MarkerError(f"{key}: unknown field {name}")
    return options


def _matches(row: Record, conditions: Sequence[str]) -> bool:
    for condition in conditions:
        key, colon, wanted = condition.partition(":")
        if not colon or key not in _FIELDS:
            raise MarkerError(f"where: expected field:value, got {condition}")
        value = number(row, key)
        given = formats.count(value) if value is not None else text(row, key)
        if given != wanted:
            return False
    return True


def _merged(rows: Sequence[Record]) -> Record:
    """One row of several: what they agree on stays, numbers are merged."""
    merged: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        if field.merge is None:
            values = {text(row, key) for row in rows}
            merged[key] = values.pop() if len(values) == 1 else "various"
            continue
        read = field.read or (lambda row, key=key: number(row, key))
        numbers = [value for row in rows if (value := read(row)) is not None]
        merged[key] = field.merge(numbers) if numbers else None
    return merged


def table(path: Path, shown_path: str, words: str) -> str:
    """The Markdown of one marker: a table and a line that says where the numbers come from.

    Raises ``MarkerError`` and ``ResultsError``."""
    options = _options(words)
    file = load(path)
    rows: list[Record] = [row for row in file.rows if _matches(row, options.get("where", []))]
    if "group" in options:
        keys = options["group"]
        groups = grouped(rows, lambda row: tuple(str(row.get(key)) for key in keys))
        rows = [_merged(group) for group in groups.values()]
    if not rows:
        raise MarkerError(f"{shown_path}: no row is left to show")
    fields = [_FIELDS[name] for name in options.get("columns", _DEFAULT_COLUMNS)]
    lines = [
        "| " + " | ".join(field.title for field in fields) + " |",
        "|" + "|".join("---:" if field.is_number else "---" for field in fields) + "|",
    ]
    for row in rows:
        cells = (field.show(row).replace("|", "\\|") for field in fields)
        lines.append("| " + " | ".join(cells) + " |")
    commit = text(file.meta, "commit")[:12]
    dirty = " with uncommitted changes" if file.meta.get("dirty") else ""
    held = text(file.meta, "max_simd")
    facts = [
        f"{file.device} held to {held}" if held else file.device,
        text(file.meta, "date")[:10],
        f"commit {commit}{dirty}" if commit else "",
        f"[{path.name}]({shown_path})",
    ]
    return "\n".join(lines) + "\n\n" + ", ".join(filter(None, facts)) + "."


def summary(lines: str, root: Path) -> str:
    """The Markdown of one summary: a row for each line of the marker, and where its numbers are.

    Raises ``MarkerError`` and ``ResultsError``."""
    out = ["| what | beside | mean speed-up | lowest | measured on |", "|---|---|---:|---:|---|"]
    for line in lines.split("\n"):
        parts = [part.strip() for part in line.split("|")]
        name, _, words = parts[0].partition(" ")
        if len(parts) != 3 or not name:
            raise MarkerError(f"summary: expected FILE [where=...] | what | beside, got {line}")
        file = load(root / name)
        rows = [row for row in file.rows if _matches(row, _options(words).get("where", []))]
        ratios = [value for row in rows if (value := speedup(row)) is not None]
        if not ratios:
            raise MarkerError(f"{name}: no row is left to show")
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        out.append(
            f"| {parts[1]} | {parts[2]} | {formats.ratio(mean)} | {formats.ratio(least)} "
            f"| [{file.device}]({name}) |"
        )
    return "\n".join(out)


def rewrite(document: str, root: Path) -> str:
    """The document with every table and summary made anew.

    Raises ``MarkerError`` where it has no marker or one without an end, ``ResultsError`` from a
    results file."""
    pieces = []
    position = 0
    begins = [*_BEGIN.finditer(document), *_SUMMARY.finditer(document)]
    for begin in sorted(begins, key=lambda found: found.start()):
        is_table = begin.re is _BEGIN
        name, marker = (begin[1], _END) if is_table else ("summary", _SUMMARY_END)
        if begin.start() < position:
            raise MarkerError(f"{name}: begins within another table")
        end = document.find(marker, begin.end())
        if end < 0:
            raise MarkerError(f"{name}: no {marker} after it")
        made = table(root / name, name, begin[2]) if is_table else summary(begin[1], root)
        pieces.append(document[position : begin.end()])
        pieces.append("\n\n" + made + "\n\n")
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
                path.write_text(after, encoding="utf-8")
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
