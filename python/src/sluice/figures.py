# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of Markdown documents from committed results files. Needs matplotlib, of the
version in python/requirements.txt: another one may place things elsewhere.

A document names a figure, the rows in it and its title; the SVG file beside it is written. For a
file of ``sluice memory`` it shows the KV tokens gained, for rows with ``loss`` the training run, for
others speed-ups, a line for each model or, where these are several, baseline:

    <!-- sluice-figure FILE where=op:mlp,baseline:cublaslt_chain figures/decode.svg TITLE -->

``python -m sluice.figures docs/results.md`` writes, ``--check`` only compares.
Exit status: 0 done or current, 1 a figure is stale (``--check``), 2 usage, a bad marker or file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path

from sluice import plots
from sluice.fields import MarkerError, matches
from sluice.replace_file import replace_file
from sluice.results import ResultsError, load, model_name, text

_FIGURE = re.compile(r"<!-- sluice-figure (\S+) where=(\S+) (\S+\.svg) (.+) -->")
_COLOURS = re.compile(r":root \{.*?^\}\n(?=\*)", re.DOTALL | re.MULTILINE)


def _standalone(svg: str) -> str:
    """The drawing of a report's page with that page's colours, light and dark."""
    style = resources.files("sluice").joinpath("report.css").read_text(encoding="utf-8")
    colours = _COLOURS.search(style)
    assert colours is not None  # report.css begins with them
    head, _, body = svg.partition(">")
    drawn = (f'{head} xmlns="http://www.w3.org/2000/svg">\n<style>\n{colours[0]}'
             f"svg {{ background: var(--surface); }}\n</style>\n{body.rstrip()}\n")  # fmt: skip
    return re.sub(r" +$", "", drawn, flags=re.MULTILINE)


def figures(document: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Of each figure that a document in ``folder`` names the file and its text. Raises
    ``MarkerError`` and ``ResultsError``."""
    for name, where, target, title in _FIGURE.findall(document):
        file = load(folder / name)
        kept = [row for row in file.memory or file.rows if matches(row, where.split(","))]
        if file.memory:
            plot = plots.kv_tokens_plot("figure", title, kept)
        else:
            baselines = list(dict.fromkeys(text(row, "baseline") for row in kept))
            name_of = model_name if len(baselines) < 2 else partial(text, key="baseline")
            slots = plots.series_styles([name_of(row) for row in kept])
            baseline = " and ".join(baselines)
            title = f"{title}, {file.device}"
            plot = plots.loss_plot("figure", title, baseline, kept) or plots.speedup_plot(
                "figure", title, baseline, kept, slots, name_of
            )
        if plot is None:
            raise MarkerError(f"{name}: no row is left to draw")
        yield target, _standalone(plot.svg)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.figures", description="Draw the figures that documents name."
    )
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    arguments = parser.parse_args(argv)
    stale = False
    for path in arguments.documents:
        try:
            for target, made in figures(path.read_text(encoding="utf-8"), path.parent):
                file = path.parent / target
                if file.is_file() and file.read_text(encoding="utf-8") == made:
                    continue
                stale = True
                if arguments.check:
                    print(f"{file}: stale; run python -m sluice.figures {path}", file=sys.stderr)
                else:
                    file.parent.mkdir(exist_ok=True)
                    replace_file(file, made)
        except (MarkerError, ResultsError, OSError) as error:
            print(f"sluice.figures: {path}: {error}", file=sys.stderr)
            return 2
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
