# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the step torch: ``run.py [MODULE[.CLASS[.TEST]]...]``, all without a name. The
package under test is the one on PYTHONPATH. The last line is "N passed, N failed, N skipped"."""

import sys
import unittest
from pathlib import Path


def main() -> int:
    """Returns the exit status."""
    folder = Path(__file__).parent
    sys.path.insert(0, str(folder))
    names = sys.argv[1:] or sorted(path.stem for path in folder.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    # A test's failing subtests count once.
    bad = [getattr(test, "test_case", test) for test, _ in result.failures + result.errors]
    failed = len({id(test) for test in bad})
    failed += len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    passed = max(0, result.testsRun - failed - skipped)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
