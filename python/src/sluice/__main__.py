# SPDX-License-Identifier: Apache-2.0
"""``sluice`` and ``python -m sluice``: the command line that is installed with the package,
``doctor``, which checks the installation, and ``results``, which lists stale results files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sluice.pipe import end_with_reader


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``doctor`` and ``results`` here and hands everything else to the program; returns the exit
    status."""
    end_with_reader()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["doctor"]:
        from sluice.doctor import main as doctor

        return doctor(words[1:])
    if words[:1] == ["results"]:
        from sluice.staleness import main as results

        return results(words[1:])
    program = Path(__file__).parent / "bin" / "sluice"
    if not program.is_file():
        print(
            f"sluice: {program} is not there: this package was not installed by pip; "
            "`sluice doctor`, `sluice results` and the modules work without it",
            file=sys.stderr,
        )
        return 3
    # `sluice report` draws with this Python, not with the first python3 of the PATH.
    os.environ.setdefault("SLUICE_PYTHON", sys.executable)
    os.execv(program, ["sluice", *words])


if __name__ == "__main__":
    sys.exit(main())
