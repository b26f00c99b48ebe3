# SPDX-License-Identifier: Apache-2.0
"""Runs the Python tests for CTest: ``run.py MODULE...`` with the package on PYTHONPATH.

Exit status 77, which CTest shows as skipped, where this interpreter has no numpy or matplotlib;
a failure instead where CI or SLUICE_REQUIRE_PYTHON is set to anything but 0 or nothing.
"""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

_SKIPPED = 77
_STANDARD_LIBRARY_ONLY = {
    "test_bench", "test_capi", "test_documents", "test_form", "test_generate",
    "test_results", "test_sass_fingerprint", "test_staleness",
}  # fmt: skip


def main() -> int:
    """Returns the exit status."""
    modules = sys.argv[1:]
    folder = Path(__file__).parent
    sys.path.insert(0, str(folder))
    needs = [] if set(modules) <= _STANDARD_LIBRARY_ONLY else ["numpy", "matplotlib"]
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {' and no '.join(missing)}", file=sys.stderr)
        required = any(
            os.environ.get(name, "") not in ("", "0") for name in ("CI", "SLUICE_REQUIRE_PYTHON")
        )
        return 1 if required else _SKIPPED
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
