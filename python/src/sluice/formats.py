# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them, the same in the report and in README tables."""

from __future__ import annotations

UNKNOWN = "–"


def significant(value: float | None, digits: int = 3) -> str:
    """``value`` to that many significant digits; thousands separated, tiny ones as 1.2e-04."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.{max(digits - 2, 0)}e}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def count(value: float | None) -> str:
    """A whole number: 14336."""
    return UNKNOWN if value is None else f"{value:.0f}"


def percent(value: float | None) -> str:
    """A fraction: 87 %."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """A speed-up: 1.23x."""
    return UNKNOWN if value is None else f"{value:.2f}x"


def binary_bytes(value: float | None) -> str:
    """Bytes in binary units: 3.5 MiB."""
    if value is None:
        return UNKNOWN
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    whole = units[0] == "B" or value >= 100
    return f"{value:.0f} {units[0]}" if whole else f"{value:.3g} {units[0]}"
