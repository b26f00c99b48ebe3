# SPDX-License-Identifier: Apache-2.0
"""Reads results files: ``{"meta": {...}, "rows": [...]}`` of ``sluice bench --json`` and
``{"meta": {...}, "memory": [...]}`` of ``sluice memory --json``; a bench adds ``"checks"``, what it
found against fp64. Standard library only.

What each field means is in docs/benchmarking.md. A field that is absent, null, of the wrong type or
no finite number counts as unknown: older and foreign files stay readable.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Record = Mapping[str, Any]
_Key = TypeVar("_Key", bound=Hashable)

# Half the distance from 1 to the next number: the error of one rounding.
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24, "fp64": 2.0**-53}


class ResultsError(Exception):
    """A file that is not a results file; the message names it and says why."""


@dataclass(frozen=True)
class ResultsFile:
    """One file: ``name`` is its base name, the lists hold JSON objects only."""

    name: str
    meta: Record = field(default_factory=dict)
    rows: tuple[Record, ...] = ()
    memory: tuple[Record, ...] = ()
    checks: tuple[Record, ...] = ()

    @property
    def device(self) -> str:
        """The device the file is about, or a word that says that nobody knows."""
        return text(self.meta, "device") or "unknown device"


def text(record: Record, key: str) -> str:
    """The text of a field; "" where it is unknown."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def number(record: Record, key: str) -> float | None:
    """The finite number of a field, or None."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def positive(record: Record, key: str) -> float | None:
    """The number of a field where it is above 0 (times, rates and sizes on log axes), or None."""
    value = number(record, key)
    return value if value is not None and value > 0 else None


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
    """Reads one file. Raises ``ResultsError`` where it cannot be read, is no JSON object, or holds
    neither rows nor memory lines."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ResultsError(f"{path}: the JSON root is not an object")
    meta = document.get("meta", {})
    if not isinstance(meta, dict):
        raise ResultsError(f"{path}: meta is not an object")
    lists: dict[str, tuple[Record, ...]] = {}
    for key in ("rows", "memory", "checks"):
        records = document.get(key, [])
        if not isinstance(records, list):
            raise ResultsError(f"{path}: {key} is not a list")
        for index, record in enumerate(records):
            if not isinstance(record, dict):
                raise ResultsError(f"{path}: {key}[{index}] is not an object")
        lists[key] = tuple(records)
    if not lists["rows"] and not lists["memory"]:
        raise ResultsError(f"{path}: holds no rows")
    return ResultsFile(path.name, meta, lists["rows"], lists["memory"], lists["checks"])
