# SPDX-License-Identifier: Apache-2.0
"""Draws results files as one self-contained HTML page, light and dark.

``python -m sluice.report results.json... -o report.html`` takes files of ``sluice bench --json``
and of ``sluice memory --json`` in any mixture. The page loads nothing: style and drawings are
in it.

Exit status: 0 done, 1 the page cannot be written, 2 usage or a file that is no results file,
3 no matplotlib.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from sluice import formats
from sluice.pipe import end_with_reader
from sluice.replace_file import replace_file
from sluice.results import (
    UNIT_ROUNDOFF,
    Record,
    ResultsError,
    ResultsFile,
    geometric_mean,
    grouped,
    load,
    model_name,
    number,
    positive,
    printable,
    speedup,
    text,
)

try:
    from sluice import plots
except ModuleNotFoundError as missing:  # main() says so; --help needs none
    if missing.name != "matplotlib":
        raise
    plots = None  # type: ignore[assignment]

# A table of more rows is folded away until it is asked for.
_FOLD_ABOVE = 40


@dataclass(frozen=True)
class Column:
    """One column of a table: its heading and whether it holds numbers."""

    title: str
    is_number: bool = False


def _cell(value: str, column: Column, extra_class: str = "") -> str:
    classes = " ".join(filter(None, ["number" if column.is_number else "", extra_class]))
    return f"<td{f' class={chr(34)}{classes}{chr(34)}' if classes else ''}>{escape(value)}</td>"


def _table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    marks: Sequence[str] | None = None,
) -> str:
    """A table that scrolls by itself where it is too wide; ``marks`` are classes of the cells in
    columns headed "speed-up"."""
    head = "".join(
        f'<th scope="col"{" class=" + chr(34) + "number" + chr(34) if c.is_number else ""}>'
        f"{escape(c.title)}</th>"
        for c in columns
    )
    body = []
    for index, row in enumerate(rows):
        cells = []
        for value, column in zip(row, columns, strict=True):
            mark = marks[index] if marks is not None and column.title == "speed-up" else ""
            cells.append(_cell(value, column, mark))
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _figure(plot: plots.Plot | None) -> str:
    if plot is None:
        return ""
    return (
        f'<figure><h3>{escape(plot.title)}</h3><div class="drawing" tabindex="0" role="region" '
        f'aria-label="{escape(plot.title)}">{plot.svg}</div>'
        f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
    )


def _section(anchor: str, title: str, body: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>' if body else ""


def _all_rows(files: Sequence[ResultsFile]) -> list[Record]:
    return [row for file in files for row in file.rows]


def _chunks(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """At most as many lines in a plot as there are colours."""
    for begin in range(0, len(names), plots.SERIES_PER_PLOT):
        yield names[begin : begin + plots.SERIES_PER_PLOT]


def _what(row: Record) -> str:
    """ "mlp, bf16" or "gate_up (prefill), bf16": what the rows of one plot have in common."""
    run = text(row, "pass")
    run = f" ({run})" if run and run != "fwd" else ""
    threads = number(row, "threads")
    tp = number(row, "tp")
    parts = [
        (text(row, "op") or "unknown operator") + run,
        text(row, "dtype"),
        f"{threads:.0f} threads" if threads is not None and threads > 1 else "",
        f"tensor parallel {tp:.0f}" if tp is not None and tp > 1 else "",
    ]
    return ", ".join(filter(None, parts))


class _Page:
    """Collects the page's parts; plots get ids that are unique in it."""

    def __init__(self, files: Sequence[ResultsFile]) -> None:
        self._files = files
        names = [model_name(row) for row in _all_rows(files)]
        names += [model_name(line) for file in files for line in file.memory]
        self._names = list(dict.fromkeys(names))
        self._slots = plots.series_styles(self._names)
        self._plots = 0

    def _next_id(self) -> str:
        self._plots += 1
        return f"plot-{self._plots}"

    def _parts(self, records: Sequence[Record], title: str) -> Iterable[tuple[str, list[Record]]]:
        """Titles and records of plots with no more models than colours."""
        present = {model_name(record) for record in records}
        names = [name for name in self._names if name in present]
        parts = list(_chunks(names))
        for index, part in enumerate(parts, start=1):
            suffix = f" ({index} of {len(parts)})" if len(parts) > 1 else ""
            yield title + suffix, [r for r in records if model_name(r) in part]

    def summary(self) -> str:
        """Headline numbers, and one line a device and baseline."""
        rows = _all_rows(self._files)
        tiles = []
        ratios = [value for row in rows if (value := speedup(row)) is not None]
        if ratios:
            faster = sum(value >= 1 for value in ratios)
            tiles.append(("Mean speed-up", formats.ratio(geometric_mean(ratios)), "geometric mean"))
            tiles.append(("Lowest", formats.ratio(min(ratios)), "over every measurement"))
            tiles.append(
                ("At least as fast", f"{faster} of {len(ratios)}", "measurements with a baseline")
            )
        errors = [value for row in rows if (value := number(row, "rel_err")) is not None]
        if errors:
            tiles.append(("Largest error", formats.significant(max(errors)), "against fp64"))
        out = "".join(
            f'<div class="tile"><dt>{escape(title)}</dt><dd>{escape(value)}'
            f"<small>{escape(note)}</small></dd></div>"
            for title, value, note in tiles
        )
        return f'<dl class="tiles">{out}</dl>' if out else ""

    def speedups(self) -> str:
        """Speed-up against M, a plot for each device, operator and baseline."""
        out = []
        for file in self._files:
            compared = [row for row in file.rows if speedup(row) is not None]
            keys = grouped(compared, lambda row: (_what(row), text(row, "baseline") or "baseline"))
            for (what, baseline), group in keys.items():
                for title, part in self._parts(group, f"{what} against {baseline}, {file.device}"):
                    plot = plots.speedup_plot(
                        self._next_id(), title, baseline, part, self._slots
                    )
                    out.append(_figure(plot))
        return "".join(out) + self._speedup_table()

    def _speedup_table(self) -> str:
        lines = []
        marks = []
        for file in self._files:
            compared = [row for row in file.rows if speedup(row) is not None]
            keys = grouped(compared, lambda row: (_what(row), text(row, "baseline") or "baseline"))
            for (what, baseline), group in keys.items():
                values = [value for row in group if (value := speedup(row)) is not None]
                mean = geometric_mean(values)
                marks.append(_mark(mean))
                lines.append(
                    [file.device, what, baseline, str(len(values)), formats.ratio(mean),
                     formats.ratio(min(values)), formats.ratio(max(values))]  # fmt: skip
                )
        if not lines:
            return ""
        columns = [
            Column("device"), Column("operator"), Column("baseline"), Column("measurements", True),
            Column("speed-up", True), Column("lowest", True), Column("highest", True),
        ]  # fmt: skip
        return _table("Geometric mean of the speed-ups", columns, lines, marks)

    def rooflines(self) -> str:
        """Where each shape lies under the device's ceilings."""
        out = []
        for file in self._files:
            for title, part in self._parts(file.rows, f"{file.device}, {file.name}"):
                plot = plots.roofline_plot(self._next_id(), title, file.meta, part, self._slots)
                out.append(_figure(plot))
        return "".join(out)

    def memory(self) -> str:
        """What fusing saves: measured by the bench, and computed for whole models."""
        out = []
        for file in self._files:
            title = f"Extra bytes of a call, {file.device}"
            out.append(_figure(plots.extra_bytes_plot(self._next_id(), title, file.rows)))
        lines = [line for file in self._files for line in file.memory]
        by_model = grouped(lines, model_name)
        lengths = [
            line
            for line in lines
            if len({number(other, "tokens") for other in by_model[model_name(line)]}) > 1
        ]
        for title, part in self._parts(lengths, "Activations saved by sequence length"):
            out.append(
                _figure(plots.memory_length_plot(self._next_id(), title, part, self._slots))
            )
        kv_tokens = plots.kv_tokens_plot(self._next_id(), "Room for more KV cache", lines)
        out.append(_figure(kv_tokens))
        return "".join(out)

    def errors(self) -> str:
        """The largest errors, by operator, dtype and model."""
        lines = []
        for file in self._files:
            known = [row for row in file.rows if number(row, "rel_err") is not None]
            key = grouped(known, lambda row: (text(row, "op"), text(row, "dtype"), model_name(row)))
            for (op, dtype, model), group in key.items():
                values = [value for row in group if (value := number(row, "rel_err")) is not None]
                unit = UNIT_ROUNDOFF.get(dtype.rsplit("/", maxsplit=1)[-1])
                lines.append(
                    [file.device, op or formats.UNKNOWN, dtype or formats.UNKNOWN, model,
                     str(len(values)), formats.significant(statistics.median(values)),
                     formats.significant(max(values)), formats.significant(unit),
                     formats.significant(max(values) / unit if unit else None)]  # fmt: skip
                )
        if not lines:
            return self._checks()
        columns = [
            Column("device"), Column("op"), Column("dtype"), Column("model"),
            Column("measurements", True), Column("median error", True),
            Column("largest error", True), Column("roundoff", True),
            Column("in roundoffs", True),
        ]  # fmt: skip
        caption = (
            "Mean |got - fp64| over mean |fp64| of the sampled elements of a run, beside the unit "
            "roundoff of the output's type"
        )
        return _table(caption, columns, lines) + self._checks()

    def _checks(self) -> str:
        """What the benches found against fp64 before they timed, layer by layer."""
        lines = []
        for file in self._files:
            groups = grouped(file.checks, lambda check: (model_name(check), number(check, "m")))
            for (model, m), group in groups.items():
                worst = {}
                for key in ("rel_err", "unfused_rel_err", "worst_bound_share"):
                    values = [value for c in group if (value := number(c, key)) is not None]
                    worst[key] = max(values, default=None)
                passed = sum(check.get("passed") is True for check in group)
                lines.append(
                    [file.name, model, formats.count(m), f"{passed} of {len(group)}",
                     formats.significant(worst["rel_err"]),
                     formats.significant(worst["unfused_rel_err"]),
                     formats.percent(worst["worst_bound_share"])]  # fmt: skip
                )
        if not lines:
            return ""
        columns = [
            Column("file"), Column("model"), Column("M", True), Column("checks passed", True),
            Column("error, worst", True), Column("unfused, worst", True),
            Column("worst element, of its bound", True),
        ]  # fmt: skip
        return _table("Checks against fp64 before timing; bounds are computed", columns, lines)

    def results(self) -> str:
        """Every row of every file."""
        out = []
        columns = [
            Column("model"), Column("op"), Column("pass"), Column("M", True), Column("D", True),
            Column("H", True), Column("dtype"), Column("variant"), Column("us", True),
            Column("p10", True), Column("p90", True), Column("TFLOP/s", True),
            Column("GB/s", True), Column("of roof", True), Column("baseline"),
            Column("baseline us", True), Column("speed-up", True), Column("error", True),
        ]  # fmt: skip
        for file in self._files:
            if not file.rows:
                continue
            lines = []
            for row in file.rows:
                variant = " ".join(filter(None, [text(row, "variant"), text(row, "config")]))
                words = [text(row, key) or formats.UNKNOWN for key in ("op", "pass")]
                lines.append(
                    [model_name(row), *words,
                     *(formats.count(number(row, key)) for key in ("m", "d", "h")),
                     text(row, "dtype") or formats.UNKNOWN, variant or formats.UNKNOWN,
                     *(formats.significant(positive(row, key))
                       for key in ("us", "us_p10", "us_p90", "tflops", "gbps")),
                     formats.percent(number(row, "roof_fraction")),
                     text(row, "baseline") or formats.UNKNOWN,
                     formats.significant(positive(row, "baseline_us")),
                     formats.ratio(speedup(row)),
                     formats.significant(number(row, "rel_err"))]  # fmt: skip
                )
            marks = [_mark(speedup(row)) for row in file.rows]
            table = _table(f"{file.name}: {file.device}", columns, lines, marks)
            if len(lines) > _FOLD_ABOVE:
                table = (
                    f"<details><summary>{escape(file.name)}: {len(lines)} rows</summary>"
                    f"{table}</details>"
                )
            out.append(table)
        return "".join(out)

    def provenance(self) -> str:
        """What each file says of where its numbers come from."""
        labels = {
            "device": "Device", "max_simd": "Held to", "driver": "Driver", "cuda": "CUDA", "compiler": "Compiler",
            "commit": "Commit", "date": "Date", "command": "Command", "clocks": "Clocks",
            "read_tbps": "Read ceiling, TB/s", "copy_tbps": "Copy ceiling, TB/s",
            "gemm_tflops": "GEMM ceiling, TFLOP/s",
            "mma_sync_tflops": "mma.sync ceiling, TFLOP/s", "fma_gflops": "FMA ceiling, GFLOP/s",
            "bf16_gflops": "bf16 dot product ceiling, GFLOP/s",
        }  # fmt: skip
        out = []
        for file in self._files:
            lines = []
            for key, label in labels.items():
                value = file.meta.get(key)
                if value is None or value == "":
                    continue
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                shown = (
                    formats.significant(number(file.meta, key))
                    if is_number
                    else printable(str(value))
                )
                if key == "commit" and file.meta.get("dirty"):
                    shown += " (with uncommitted changes)"
                shown = escape(shown)
                if key == "command":
                    shown = f"<code>{shown}</code>"
                lines.append(f'<tr><th scope="row">{escape(label)}</th><td>{shown}</td></tr>')
            if not lines:
                lines.append('<tr><th scope="row">Provenance</th><td>unknown</td></tr>')
            out.append(
                f'<div class="scroll"><table class="facts"><caption>{escape(file.name)}</caption>'
                f"<tbody>{''.join(lines)}</tbody></table></div>"
            )
        return "".join(out)


def _mark(value: float | None) -> str:
    return "" if value is None else "faster" if value >= 1 else "slower"


def render(files: Sequence[ResultsFile]) -> str:
    """The page as HTML. Raises ``ResultsError`` where the files hold nothing to show."""
    if not any(file.rows or file.memory for file in files):
        raise ResultsError("the results files hold no rows")
    page = _Page(files)
    sections = [
        ("speedup", "Speed-up", page.speedups()),
        ("roofline", "Roofline", page.rooflines()),
        ("memory", "Memory", page.memory()),
        ("errors", "Errors", page.errors()),
        ("results", "Results", page.results()),
        ("provenance", "Provenance", page.provenance()),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _ in sections)
    devices = ", ".join(dict.fromkeys(file.device for file in files))
    dates = sorted({text(file.meta, "date")[:10] for file in files} - {""})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
    lead = ", ".join(filter(None, [devices, span]))
    style = resources.files("sluice").joinpath("report.css").read_text(encoding="utf-8")
    body = "".join(_section(*section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Sluice: results on {escape(devices)}</title>\n<style>\n{style}</style></head>\n"
        f'<body><header><h1>Sluice: gated MLP results</h1><p class="lead">{escape(lead)}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>{page.summary()}{body}</main>\n"
        "<footer>Medians of interleaved runs. M tokens, D model width, H hidden width; "
        "speed-up = baseline time / Sluice time.</footer></body></html>\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.report",
        description="Draw results files as one self-contained HTML page.",
    )
    parser.add_argument("results", nargs="+", type=Path, help="files of bench or memory --json")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="the page")
    arguments = parser.parse_args(argv)
    if plots is None:
        print(f"sluice.report: {sys.executable} has no matplotlib", file=sys.stderr)
        return 3
    try:
        page = render([load(path) for path in arguments.results])
    except ResultsError as error:
        print(f"sluice.report: {error}", file=sys.stderr)
        return 2
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(arguments.output, page)
    except OSError as error:
        print(f"sluice.report: {arguments.output}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    end_with_reader()
    sys.exit(main())
