# SPDX-License-Identifier: Apache-2.0
"""The report's plots, as SVG fragments that take their colours from the page's style sheet.

matplotlib draws with placeholder colours; ``to_svg`` turns them into CSS variables, so that one
drawing serves the light and the dark page. Text stays text: it scales, is found and is read aloud.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator  # noqa: E402

from sluice import formats  # noqa: E402
from sluice.results import Record, model_name, number, positive, speedup, text  # noqa: E402

# Placeholders that no drawing contains otherwise, and the CSS variables they stand for.
_SERIES = [f"#0a0b{i:02x}" for i in range(1, 9)]
_INK, _MUTED, _GRID, _SURFACE = "#0a0c01", "#0a0c02", "#0a0c03", "#0a0c04"
_VARIABLES = {
    **{colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES, start=1)},
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _SURFACE: "var(--surface)",
}
_MARKERS = "osD^v<>p"
SERIES_PER_PLOT = len(_SERIES)

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "lines.linewidth": 2,
    "lines.markersize": 6.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.color": _MUTED,
    "ytick.labelcolor": _INK,
}
_WIDTH = 9.4  # inches of 72 CSS pixels


@dataclass(frozen=True)
class Plot:
    """One drawing: an inline ``<svg>`` and the words around it."""

    title: str
    caption: str
    svg: str


def to_svg(figure: Figure, plot_id: str, title: str, description: str) -> str:
    """The figure as one inline ``<svg>`` element.

    ``plot_id`` is unique in the page; every id of the drawing begins with it. The same figure
    gives the same text.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": plot_id}):
        figure.savefig(
            buffer,
            format="svg",
            bbox_inches="tight",
            pad_inches=0.05,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("xlink:href", "href")
    drawing = re.sub(r'\bid="', f'id="{plot_id}-', drawing)
    drawing = re.sub(r'href="#', f'href="#{plot_id}-', drawing)
    drawing = drawing.replace("url(#", f"url(#{plot_id}-")
    for colour, variable in _VARIABLES.items():
        drawing = drawing.replace(colour, variable)
    view_box = re.search(r'viewBox="[^"]*"', drawing)
    body = drawing[drawing.index(">") + 1 :]
    assert view_box is not None  # matplotlib always writes one
    return (
        f'<svg {view_box[0]} role="img" aria-labelledby="{plot_id}-title {plot_id}-description">'
        f'<title id="{plot_id}-title">{escape(title)}</title>'
        f'<desc id="{plot_id}-description">{escape(description)}</desc>{body}'
    )


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height))
    return figure, figure.add_subplot()


def _log2_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    """A log axis with a tick at every power of two of the data, at most about ten of them."""
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    step = max(1, math.ceil((high - low) / 10))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2.0**e for e in range(low, high + 1, step)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_count(value)))
    axes.set_xlim(2.0 ** (low - 0.3), 2.0 ** (high + 0.3))
    axes.set_xlabel(label)


def _short_count(value: float) -> str:
    """512, 1k, 64k: token counts are powers of two."""
    return f"{value / 1024:.0f}k" if value >= 1024 else f"{value:g}"


def _legend(figure: Figure, axes: Axes, handles: Sequence[Any], below: float) -> None:
    """A legend under the axes; ``below`` is the distance in inches."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(96 // (longest + 7))))
    axes.legend(
        handles=list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, -below / figure.get_size_inches()[1]),
        ncol=columns,
        handletextpad=0.5,
        columnspacing=1.6,
    )


def series_styles(names: Sequence[str]) -> dict[str, int]:
    """The same slot (colour and marker) for a name in every plot of the page."""
    return {name: i % SERIES_PER_PLOT for i, name in enumerate(dict.fromkeys(names))}


def speedup_plot(
    plot_id: str, title: str, baseline: str, rows: Sequence[Record], slots: Mapping[str, int],
    name_of: Callable[[Record], str] = model_name,
) -> Plot | None:  # fmt: skip
    """Speed-up against M, a line for each name, a model's: the median where it has several rows for
    one M (its layers), with a bar from the lowest to the highest. None where no row has both."""
    points: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        m, value = positive(row, "m"), speedup(row)
        if m is not None and value is not None:
            points.setdefault(name_of(row), {}).setdefault(m, []).append(value)
    if not points:
        return None
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(4.2)
        handles: list[Line2D] = []
        everything: list[float] = []
        for name, by_m in points.items():
            slot = slots[name]
            ms = sorted(by_m)
            middle = [statistics.median(by_m[m]) for m in ms]
            spread = [
                [value - min(by_m[m]) for m, value in zip(ms, middle, strict=True)],
                [max(by_m[m]) - value for m, value in zip(ms, middle, strict=True)],
            ]
            everything += [value for m in ms for value in by_m[m]]
            if any(map(any, spread)):
                axes.errorbar(ms, middle, yerr=spread, fmt="none", color=_SERIES[slot],
                              elinewidth=1.4, capsize=3)  # fmt: skip
            (line,) = axes.plot(ms, middle, color=_SERIES[slot], marker=_MARKERS[slot],
                                markeredgecolor=_SURFACE, label=name)  # fmt: skip
            handles.append(line)
        _log2_axis(axes, [m for by_m in points.values() for m in by_m], "M, tokens")
        # Both 1 and the data are in view, with room above and below.
        low, high = min([1.0, *everything]), max([1.0, *everything])
        margin = max(0.08 * (high - low), 0.02)
        axes.set_ylim(max(0.0, low - margin), high + margin)
        axes.set_ylabel(f"speed-up over {baseline}")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
        axes.axhline(1.0, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
        _legend(figure, axes, handles, 0.72)
        worst, best = min(everything), max(everything)
        caption = (
            f"Time of {baseline} over Sluice's time; above 1 Sluice is faster. "
            f"{formats.ratio(worst)} to {formats.ratio(best)} over {len(everything)} measurements."
        )
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))


def roofline_plot(
    plot_id: str, title: str, meta: Record, rows: Sequence[Record], slots: Mapping[str, int]
) -> Plot | None:
    """FLOP/s against FLOP per byte under the ceilings that ``meta`` gives, a filled mark for
    Sluice and a hollow one for the baseline. None where no row has both rates."""
    points: dict[tuple[Any, ...], tuple[str, float, float, float | None]] = {}
    for row in rows:
        tflops, gbps, us = (positive(row, key) for key in ("tflops", "gbps", "us"))
        if tflops is None or gbps is None:
            continue
        baseline_us = positive(row, "baseline_us")
        other = tflops * us / baseline_us if us is not None and baseline_us is not None else None
        key = tuple(str(row.get(k)) for k in ("op", "model", "m", "d", "h", "us", "baseline"))
        points[key] = (model_name(row), 1000 * tflops / gbps, tflops, other)
    if not points:
        return None
    read_tbps = positive(meta, "read_tbps") or positive(meta, "copy_tbps")
    cpu_gflops = positive(meta, "bf16_gflops") or positive(meta, "fma_gflops")
    peak = positive(meta, "gemm_tflops") or (cpu_gflops / 1000 if cpu_gflops else None)
    intensities = [point[1] for point in points.values()]
    # A CPU's page speaks of GFLOP/s and GB/s.
    top = max(point[2] for point in points.values())
    scale, unit = (1000.0, "G") if max(top, peak or 0.0) < 10 else (1.0, "T")
    peak = peak * scale if peak is not None else None
    slope = read_tbps * scale if read_tbps is not None else None
    points = {
        key: (name, x, scale * y, scale * other if other is not None else None)
        for key, (name, x, y, other) in points.items()
    }
    rates = [value for point in points.values() for value in point[2:] if value is not None]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(4.6)
        low, high = min(intensities) / 2, max(intensities) * 2
        ridge = peak / slope if slope is not None and peak is not None else None
        if ridge is not None:
            high = max(high, 2 * ridge)
            low = min(low, ridge / 2)
        roof = []
        for x in (low, ridge, high):
            limits = [slope * x] if x is not None and slope is not None else []
            limits += [peak] if peak is not None else []
            if x is not None and limits:
                roof.append((x, min(limits)))
        if roof:
            axes.plot(*zip(*roof, strict=True), color=_INK, linewidth=1.5)
            words = [
                f"{formats.significant(slope)} {unit}B/s" if slope is not None else "",
                f"{formats.significant(peak)} {unit}FLOP/s" if peak is not None else "",
            ]
            axes.annotate(
                "measured ceiling: " + ", ".join(filter(None, words)), roof[-1], xytext=(0, 5),
                textcoords="offset points", ha="right", fontsize=9.5)  # fmt: skip
            rates += [y for _, y in roof]
        for name, intensity, rate, other in points.values():
            slot = slots[name]
            if other is not None:
                axes.plot([intensity, intensity], [other, rate], color=_SERIES[slot], linewidth=1,
                          alpha=0.6)  # fmt: skip
                axes.plot(intensity, other, color=_SERIES[slot], marker=_MARKERS[slot],
                          markerfacecolor=_SURFACE, linestyle="none")  # fmt: skip
            axes.plot(intensity, rate, color=_SERIES[slot], marker=_MARKERS[slot],
                      markeredgecolor=_SURFACE, linestyle="none")  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(min(rates) / 1.6, max(rates) * 1.8)
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        _log2_axis(axes, [low, high], "arithmetic intensity, FLOP per byte that must move")
        axes.set_xlim(low, high)
        axes.set_ylabel(f"{unit}FLOP/s")
        names = dict.fromkeys(point[0] for point in points.values())
        handles = [
            Line2D([], [], color=_SERIES[slots[name]], marker=_MARKERS[slots[name]],
                   markeredgecolor=_SURFACE, linestyle="none", label=name)
            for name in names
        ]  # fmt: skip
        _legend(figure, axes, handles, 0.72)
        caption = (
            "Filled marks are Sluice, hollow ones the baseline at the same shape; the line is the "
            "lower of the read bandwidth and the arithmetic peak measured in the same run."
            if roof
            else "Filled marks are Sluice, hollow ones the baseline at the same shape; the file "
            "gives no measured ceilings."
        )
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))


def loss_plot(plot_id: str, title: str, baseline: str, rows: Sequence[Record]) -> Plot | None:
    """Loss against the step of a training run, of Sluice and of the baseline. None where no row has both."""
    points = [(number(r, "step"), number(r, "loss"), number(r, "baseline_loss")) for r in rows]
    whole = sorted((s, a, b) for s, a, b in points if s is not None and a is not None and b is not None)
    if not whole:
        return None
    steps, ours, theirs = zip(*whole, strict=True)
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(3.6)
        # The baseline is broad and below, or the one would hide the other.
        handles = [
            *axes.plot(steps, theirs, color=_SERIES[1], linewidth=5, alpha=0.45, label=baseline),
            *axes.plot(steps, ours, color=_SERIES[0], linewidth=1.5, label="Sluice"),
        ]
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        _legend(figure, axes, handles, 0.62)
        apart = max(abs(a - b) for _, a, b in whole)
        caption = (
            f"The losses of {len(whole)} steps are at most {formats.significant(apart)} apart; the last are "
            f"{formats.significant(ours[-1])} and {formats.significant(theirs[-1])}."
        )
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))


_MAX_DUMBBELLS = 32


def extra_bytes_plot(plot_id: str, title: str, rows: Sequence[Record]) -> Plot | None:
    """Bytes beyond the operands, baseline against Sluice, a line a shape. None where no row knows
    both."""
    lines: dict[str, tuple[float, float]] = {}
    for row in rows:
        own, other = number(row, "extra_bytes"), number(row, "baseline_extra_bytes")
        m = positive(row, "m")
        if own is None or other is None or m is None or own < 0 or other < 0:
            continue
        label = f"{model_name(row)}, {text(row, 'op') or 'op'}, M = {m:.0f}"
        before = lines.get(label, (0.0, 0.0))
        lines[label] = (max(own, before[0]), max(other, before[1]))
    if not lines:
        return None
    shown = sorted(lines.items(), key=lambda item: item[1][1] - item[1][0])[-_MAX_DUMBBELLS:]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(1.2 + 0.27 * len(shown))
        positions = range(len(shown))
        ours = [values[0] for _, values in shown]
        theirs = [values[1] for _, values in shown]
        axes.hlines(positions, ours, theirs, color=_MUTED, linewidth=1.5, alpha=0.7)
        axes.plot(theirs, positions, color=_SERIES[7], marker="s", markeredgecolor=_SURFACE,
                  linestyle="none", label="baseline")  # fmt: skip
        axes.plot(ours, positions, color=_SERIES[0], marker="o", markeredgecolor=_SURFACE,
                  linestyle="none", label="Sluice")  # fmt: skip
        axes.set_yticks(list(positions), [label for label, _ in shown])
        axes.set_ylim(-0.7, len(shown) - 0.3)
        axes.grid(visible=False, axis="y")
        top = max([*ours, *theirs, 1.0])
        # Linear up to 1 KiB, so that a kernel that needs nothing has a place at 0.
        axes.set_xscale("symlog", base=2, linthresh=1024, linscale=0.6)
        last = math.ceil(math.log2(top))
        ticks = [0.0, *(2.0**e for e in range(12, last + 1, 2 if last < 28 else 4))]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.binary_bytes(value)))
        axes.set_xlim(-200, top * 1.8)
        axes.set_xlabel("bytes beyond inputs, weights and outputs")
        _legend(figure, axes, axes.get_legend_handles_labels()[0], 0.62)
        caption = "Memory that a call needs on top of its operands; further left is better."
        if len(lines) > len(shown):
            caption += f" The {len(shown)} largest savings of {len(lines)} shapes."
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))


def memory_length_plot(
    plot_id: str, title: str, lines: Sequence[Record], slots: Mapping[str, int]
) -> Plot | None:
    """Activation bytes saved against tokens, a line a model; None where none has two lengths."""
    points: dict[str, dict[float, float]] = {}
    for line in lines:
        length, saved = positive(line, "tokens"), positive(line, "saved_bytes")
        if length is not None and saved is not None:
            points.setdefault(model_name(line), {})[length] = saved
    points = {name: by_tokens for name, by_tokens in points.items() if len(by_tokens) > 1}
    if not points:
        return None
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(4.0)
        handles = []
        for name, by_tokens in points.items():
            slot = slots[name]
            tokens = sorted(by_tokens)
            handles += axes.plot(tokens, [by_tokens[t] for t in tokens], color=_SERIES[slot],
                                 marker=_MARKERS[slot], markeredgecolor=_SURFACE,
                                 label=name)  # fmt: skip
        values = [value for by_tokens in points.values() for value in by_tokens.values()]
        _log2_axis(axes, [t for by_tokens in points.values() for t in by_tokens], "tokens")
        low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
        step = max(1, math.ceil((high - low) / 7))
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_locator(FixedLocator([2.0**e for e in range(low, high + 1, step)]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.binary_bytes(value)))
        axes.set_ylabel("activation bytes saved")
        _legend(figure, axes, handles, 0.72)
        caption = (
            "Unfused less fused activations of one MLP: the [M, 2H] buffer that is never written."
        )
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))


def kv_tokens_plot(plot_id: str, title: str, lines: Sequence[Record]) -> Plot | None:
    """More tokens of KV cache that the saved bytes hold at the shortest length, a bar a model."""
    values: dict[str, tuple[float, float]] = {}
    for line in lines:
        tokens, kv_tokens = positive(line, "tokens"), number(line, "kv_tokens")
        if tokens is None or kv_tokens is None:
            continue
        name = model_name(line)
        if name not in values or tokens < values[name][0]:
            values[name] = (tokens, kv_tokens)
    if not values:
        return None
    shown = sorted(values.items(), key=lambda item: item[1][1])
    lengths = sorted({tokens for tokens, _ in values.values()})
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(1.0 + 0.27 * len(shown))
        bars = axes.barh([name for name, _ in shown], [value for _, (_, value) in shown],
                         color=_SERIES[0], height=0.62)  # fmt: skip
        axes.bar_label(bars, [f"{value:,.0f}" for _, (_, value) in shown], padding=4, fontsize=9.5,
                       color=_INK)  # fmt: skip
        axes.margins(x=0.1, y=0.01)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("more tokens of KV cache")
        chunk = " and ".join(f"{tokens:.0f}" for tokens in lengths[:3])
        caption = (
            f"What the saved activations hold as keys and values instead, at chunks of {chunk} "
            "tokens."
        )
        return Plot(title, caption, to_svg(figure, plot_id, title, caption))
