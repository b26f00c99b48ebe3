# SPDX-License-Identifier: Apache-2.0
"""Reads and writes results files, those of ``sluice bench --json`` and ``sluice memory --json`` and
of the programs in bench/. Standard library only.

docs/benchmarking.md describes the form and says what each field means. A field that is absent,
null, of the wrong type or no finite number counts as unknown.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sluice.replace_file import replace_file

Record = Mapping[str, Any]
_Key = TypeVar("_Key", bound=Hashable)

_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Products and powers of a few such numbers, as axes make them, are still finite.
_LARGEST = 1e30

# Measured numbers are written with so many significant digits, as harness/results.hpp has it.
SIGNIFICANT_DIGITS = 4

# What ``meta`` says of the run; its fields that are neither these nor SUMMARY belong to every row.
PROVENANCE = (
    "device", "max_simd", "driver", "cuda", "compiler", "commit", "dirty", "fingerprints", "date",
    "command", "read_tbps", "copy_tbps", "gemm_tflops", "mma_sync_tflops", "fma_gflops",
    "bf16_gflops", "clocks",
)  # fmt: skip
# What ``meta`` says of all rows together, where the run summed them up.
SUMMARY = ("ratio_shapes", "ratio_mean", "ratio_p5", "ratio_lowest", "ratio_lowest_case", "skipped")
_META = PROVENANCE + SUMMARY
_LISTS = ("rows", "memory", "checks")

# Half the distance from 1 to the next number: the error of one rounding.
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24, "fp64": 2.0**-53}


class ResultsError(Exception):
    """A file that is not a results file; the message names it and says why."""


@dataclass(frozen=True)
class ResultsFile:
    """One file: ``name`` is its base name, ``meta`` what is known of the run, the lists hold a JSON
    object each for a row, whose fields are the same in all rows of a list."""

    name: str
    meta: Record = field(default_factory=dict)
    rows: tuple[Record, ...] = ()
    memory: tuple[Record, ...] = ()
    checks: tuple[Record, ...] = ()

    @property
    def device(self) -> str:
        """The device the file is about, or a word that says that nobody knows."""
        return text(self.meta, "device") or "unknown device"


def printable(value: str) -> str:
    """Text that every encoding of Unicode and XML can hold: control characters, lone surrogates and
    what is no character are shown as "?"."""
    return _NOT_TEXT.sub("?", value)


def text(record: Record, key: str) -> str:
    """The text of a field, printable; "" where it is unknown."""
    value = record.get(key)
    return printable(value) if isinstance(value, str) else ""


def number(record: Record, key: str) -> float | None:
    """The number of a field, or None, also for what is larger than any measurement."""
    value = record.get(key)
    # An integer may be too large for a float; no comparison with NaN is true.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        return None
    return float(value)


def positive(record: Record, key: str) -> float | None:
    """The number of a field where it is above 0 (times, rates and sizes on log axes), or None."""
    value = number(record, key)
    return value if value is not None and value >= 1 / _LARGEST else None


def speedup(row: Record) -> float | None:
    """baseline_us / us: the field ``ratio`` or, without it, its definition."""
    ratio = positive(row, "ratio")
    if ratio is not None:
        return ratio
    us, baseline_us = positive(row, "us"), positive(row, "baseline_us")
    return baseline_us / us if us is not None and baseline_us is not None else None


def model_name(row: Record) -> str:
    """The row's model, or its shape "D x H" where no model is named."""
    d, h = number(row, "d"), number(row, "h")
    shape = f"{d:.0f} x {h:.0f}" if d is not None and h is not None else "unknown shape"
    return text(row, "model") or shape


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def grouped(rows: Iterable[Record], key: Callable[[Record], _Key]) -> dict[_Key, list[Record]]:
    """Rows by key, keys in the order in which they first appear."""
    groups: dict[_Key, list[Record]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def load(path: Path) -> ResultsFile:
    """Reads one file. Raises ``ResultsError`` where it cannot be read, has not the form, or holds
    neither rows nor memory lines."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    file = parse(content, str(path))
    if not file.rows and not file.memory:
        raise ResultsError(f"{path}: holds no rows")
    return file


def parse(content: str | bytes, name: str) -> ResultsFile:
    """Reads the text of a file; errors name it so. Raises ``ResultsError`` where it has not the
    form."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{name}: is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ResultsError(f"{name}: the JSON root is not an object")
    meta = document.get("meta")
    if not isinstance(meta, dict):
        raise ResultsError(f"{name}: meta is not an object")
    known = {key: value for key, value in meta.items() if key in _META}
    shared = {key: value for key, value in meta.items() if key not in _META}
    lists: dict[str, tuple[Record, ...]] = {}
    if "rows" in document:
        lists["rows"] = _records(f"{name}: ", {**document, "meta": shared})
    for key in ("memory", "checks"):
        if key in document:
            lists[key] = _records(f"{name}: {key}: ", document[key])
    return ResultsFile(Path(name).name, known, **lists)


def _records(where: str, table: Any) -> tuple[Record, ...]:
    """The rows of a table, an object each."""
    if not isinstance(table, dict) or "columns" not in table:
        raise ResultsError(
            f"{where}no columns: not written by this version, whose form is in docs/benchmarking.md"
        )
    shared, columns, rows = (table.get(key) for key in ("meta", "columns", "rows"))
    if not isinstance(shared, dict):
        raise ResultsError(f"{where}meta is not an object")
    if not isinstance(columns, list):
        raise ResultsError(f"{where}columns is not a list of names")
    known = [column for column in map(_column, columns) if column is not None]
    if len({name for name, _ in known}) != len(columns):
        raise ResultsError(f"{where}columns is not a list of names")
    if not isinstance(rows, list):
        raise ResultsError(f"{where}rows is not a list")
    records = []
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ResultsError(f"{where}rows[{index}] is not a list of {len(columns)} values")
        try:
            fields = {name: of(value) for (name, of), value in zip(known, row, strict=True)}
        except IndexError:
            raise ResultsError(f"{where}rows[{index}] has a value that is no place of a word") from None
        records.append({**shared, **fields})
    return tuple(records)


def _column(column: Any) -> tuple[str, Callable[[Any], Any]] | None:
    """Its name, and what makes a field of its values; nothing where it is none. Of a column with few
    words, an object, rows hold their places."""
    if isinstance(column, str):
        return column, lambda value: value
    if not isinstance(column, dict) or len(column) != 1:
        return None
    ((name, words),) = column.items()
    if not isinstance(words, list):
        return None
    places = dict(enumerate(words)) | {None: None}

    def word(place: Any) -> Any:
        if not isinstance(place, int | None) or isinstance(place, bool) or place not in places:
            raise IndexError
        return places[place]

    return name, word


def with_variables(command: str) -> str:
    """A command behind the environment's variables that stand for options, as ``meta`` tells it."""
    names = ("SLUICE_DEVICE", "SLUICE_MAX_SIMD", "SLUICE_VARIANT", "SLUICE_TUNE_CACHE")
    told = [f"{name}={shlex.quote(Path(value).name)}" for name in names if (value := os.environ.get(name))]
    return " ".join([*told, command])


def save(path: Path, meta: Record, **lists: Sequence[Record]) -> None:
    """Writes a file; see ``render``. Its folder is made. A failure leaves the file as it was. Raises
    ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, render(meta, **lists))


def render(meta: Record, **lists: Sequence[Record]) -> str:
    """The text of a file: ``meta`` is what is known of the run, ``lists`` are ``rows``, ``memory``
    and ``checks``, of flat records. A field that a record lacks is null there."""
    unknown = [key for key in meta if key not in _META]
    unknown += [key for key in lists if key not in _LISTS]
    if unknown:
        raise ValueError(f"no part of a results file: {', '.join(unknown)}")
    indent = "  "
    if "rows" in lists:
        members = _members(meta, lists["rows"], _META, indent)
    else:
        members = ['"meta": ' + _object(meta, indent)]
    for key in ("memory", "checks"):
        if key in lists:
            inner = _members({}, lists[key], (), indent * 2)
            members.append(f'"{key}": ' + _block(inner, indent, "{}"))
    return _block(members, "", "{}") + "\n"


def _members(
    meta: Record, records: Sequence[Record], kept: Sequence[str], indent: str
) -> list[str]:
    """The members of a table: what all records agree on is in meta, if it is not named as one of
    ``kept``, the rest in a row a record."""
    names = list(dict.fromkeys(name for record in records for name in record))
    values = {name: [rounded(record.get(name)) for record in records] for name in names}
    shared = {
        name: values[name][0]
        for name in names
        if name not in kept and all(value == values[name][0] for value in values[name])
    }
    names = [name for name in names if name not in shared]
    columns: list[Any] = []
    for name in names:
        words = _few_words(values[name])
        columns.append({name: words} if words else name)
        if words:
            places = {word: place for place, word in enumerate(words)}
            values[name] = [places.get(value) for value in values[name]]
    rows = [_line([values[name][i] for name in names]) for i in range(len(records))]
    return [
        '"meta": ' + _object({**meta, **shared}, indent),
        '"columns": ' + _line(columns),
        '"rows": ' + _block(rows, "", "[]"),  # most of a file, so not indented
    ]


def _few_words(values: Sequence[Any]) -> list[str]:
    """The words of a column that has few, in the order of their first rows; else none."""
    least_rows, rows_a_word = 8, 4
    words = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    few = len(values) >= least_rows and len(words) * rows_a_word <= len(values)
    return words if few and all(value is None or isinstance(value, str) for value in values) else []


def _object(record: Record, indent: str) -> str:
    members = [f"{_line(key)}: {_line(rounded(value))}" for key, value in record.items()]
    return _block(members, indent, "{}")


def _block(items: Sequence[str], indent: str, brackets: str) -> str:
    """Items between brackets, a line each."""
    if not items:
        return brackets
    lines = ",".join(f"\n{indent}  {item}" for item in items)
    return f"{brackets[0]}{lines}\n{indent}{brackets[1]}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def rounded(value: Any) -> Any:
    """A value as a file holds it: floats with four significant digits, or null if not finite."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
