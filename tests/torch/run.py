# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the step torch: ``run.py [MODULE[.CLASS[.TEST]]...]``, all without a name. The
package under test is the one on PYTHONPATH. The last line is "N passed, N failed, N skipped".

All of them run in a process a core where there is no GPU, a module at a time; a module is told when it is done."""

import concurrent.futures
import io
import multiprocessing
import os
import sys
import time
import unittest
from pathlib import Path

FOLDER = Path(__file__).parent
LONGEST = ("test_aoti", "test_jax", "test_model")  # begin first
Counts = tuple[int, int, int]  # passed, failed, skipped


def run(names: list[str], stream) -> Counts:  # type: ignore[no-untyped-def]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(stream, verbosity=2).run(suite)
    # A test's failing subtests count once.
    bad = [getattr(test, "test_case", test) for test, _ in result.failures + result.errors]
    failed = len({id(test) for test in bad}) + len(result.unexpectedSuccesses)
    if result.testsRun == 0 and not result.skipped:
        failed += 1
    skipped = len(result.skipped)
    return max(0, result.testsRun - failed - skipped), failed, skipped


def of_module(name: str) -> tuple[str, Counts, str]:
    """Name, counts and what was told, in a worker."""
    told = io.StringIO()
    begin = time.perf_counter()
    counts = run([name], told)
    return name, counts, f"{told.getvalue()}{name}: {time.perf_counter() - begin:.0f} s\n"


def in_parallel(names: list[str], workers: int) -> Counts:
    os.environ["OMP_WAIT_POLICY"] = "passive"  # threads of one that wait leave the cores to the others
    context = multiprocessing.get_context("spawn")
    total, waiting = [0, 0, 0], set(names)
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(of_module, n) for n in names]):
                name, counts, told = done.result()
                waiting.remove(name)
                print(told, file=sys.stderr, flush=True)
                total = [a + b for a, b in zip(total, counts)]
        except concurrent.futures.process.BrokenProcessPool:
            print(f"a process died; not told: {', '.join(sorted(waiting))}", file=sys.stderr)
            total[1] += 1
    passed, failed, skipped = total
    return passed, failed, skipped


def main() -> int:
    """Returns the exit status."""
    sys.path.insert(0, str(FOLDER))
    workers = 1 if Path("/dev/nvidia0").exists() else len(os.sched_getaffinity(0))
    if names := sys.argv[1:]:
        counts = run(names, sys.stderr)
    else:
        modules = sorted((path.stem for path in FOLDER.glob("test_*.py")), key=lambda n: (n not in LONGEST, n))
        counts = in_parallel(modules, workers) if workers > 1 else run(modules, sys.stderr)
    passed, failed, skipped = counts
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    sys.exit(main())
