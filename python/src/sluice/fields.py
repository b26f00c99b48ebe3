# SPDX-License-Identifier: Apache-2.0
"""The fields of a results file's rows as documents show them: titles, formats, conditions on them,
and the lines of a Markdown table. Standard library only."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice import formats
from sluice.results import Record, number, speedup, text


class MarkerError(Exception):
    """A marker that cannot be obeyed; the message says which and why."""


@dataclass(frozen=True)
class Field:
    title: str
    show: Callable[[Record], str]
    merge: Callable[[list[float]], float] | None = statistics.median
    is_number: bool = True
    # Of a row, where it is no field of that name.
    read: Callable[[Record], float | None] | None = None


def _ratio_field(title: str, key: str, merge: Callable[[list[float]], float]) -> Field:
    def read(row: Record) -> float | None:
        merged = number(row, key)
        return merged if merged is not None else speedup(row)

    return Field(title, lambda row: formats.ratio(read(row)), merge, read=read)


def _number_field(
    title: str,
    key: str,
    show: Callable[[float | None], str],
    merge: Callable[[list[float]], float] = statistics.median,
) -> Field:
    return Field(title, lambda row: show(number(row, key)), merge)


def _text_field(title: str, key: str) -> Field:
    return Field(title, lambda row: text(row, key) or formats.UNKNOWN, None, is_number=False)


FIELDS = {
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
    "roof_fraction": _number_field("of roofline", "roof_fraction", formats.percent),
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
    "max_diff_sd": _number_field("its sd", "max_diff_sd", formats.significant, max),
    "mean_diff": _number_field("mean diff", "mean_diff", formats.significant, max),
    "mean_diff_sd": _number_field("its sd", "mean_diff_sd", formats.significant, max),
    "rel_diff": _number_field("relative diff", "rel_diff", formats.significant, max),
    "rel_diff_sd": _number_field("its sd", "rel_diff_sd", formats.significant, max),
    "norm_diff": _number_field("norms' ratio", "norm_diff", formats.significant, max),
    "norm_diff_sd": _number_field("its sd", "norm_diff_sd", formats.significant, max),
    "study_rel_diff": _number_field("the study's", "study_rel_diff", formats.significant, max),
    "perplexity": _number_field("perplexity", "perplexity", formats.significant),
    "baseline_perplexity": _number_field(
        "baseline's perplexity", "baseline_perplexity", formats.significant
    ),
    "layer_ratio": _number_field("of the layer's bytes", "layer_ratio", formats.percent, max),
    "extra_bytes": _number_field("extra bytes", "extra_bytes", formats.binary_bytes, max),
    "baseline_extra_bytes": _number_field(
        "baseline extra bytes", "baseline_extra_bytes", formats.binary_bytes, max
    ),
    "peak_bytes": _number_field("peak bytes", "peak_bytes", formats.binary_bytes, max),
}


_BOUND = re.compile(r"([<>])(\d+)")


def matches(row: Record, conditions: Sequence[str]) -> bool:
    """Whether a row has ``field:value`` of every condition, where a number may also be above or
    below one: ``d:>2048``. Raises ``MarkerError`` for what is no condition."""
    for condition in conditions:
        key, colon, wanted = condition.partition(":")
        if not colon or key not in FIELDS:
            raise MarkerError(f"where: expected field:value, got {condition}")
        value = number(row, key)
        if bound := _BOUND.fullmatch(wanted):
            limit = float(bound[2])
            holds = value is not None and (value > limit if bound[1] == ">" else value < limit)
        else:
            holds = wanted == (formats.count(value) if value is not None else text(row, key))
        if not holds:
            return False
    return True


def table_lines(
    titles: Sequence[str], numbers: Sequence[bool], rows: Sequence[list[str]]
) -> list[str]:
    """The lines of a Markdown table; ``numbers`` says which columns stand to the right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---:" if right else "---" for right in numbers) + "|"
    return [line(titles), rule, *map(line, rows)]
