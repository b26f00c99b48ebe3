# SPDX-License-Identifier: Apache-2.0
"""What bench/counters.py reads out of a profiler's table."""

from __future__ import annotations

import csv
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import counters


def table(rows: list[tuple[str, int, int]], passes: int = 1) -> str:
    """As `ncu --csv --page raw` prints it behind the program's own lines: kernel, bytes read and ns of each."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", "Grid Size", counters.PASSES, *counters.METRICS.values()])
    writer.writerow(["", "", "", "", *("byte" for _ in counters.METRICS)])
    for i, (name, read, ns) in enumerate(rows):
        values = {key: "1" for key in counters.METRICS} | {
            "dram_read_bytes": f"{read:,}", "ns": str(ns), "registers": str(100 + i), "occupancy": "50.00",
        }  # fmt: skip
        writer.writerow([i, name, "(132, 1, 1)", passes, *values.values()])
    return "==PROF== Connected\nop  model  M\n" + out.getvalue()


class Counters(unittest.TestCase):
    OWN = "void cuda::gemm<cuda::GemmConfig<0>>"
    THEIRS = "nvjet_sm90_tst_320x128"
    GATE = "void harness::<unnamed>::tiled<harness::<unnamed>::Bf16>"

    def test_bytes_are_those_of_a_run(self) -> None:
        found = counters.launches(table([(self.OWN, 1000, 5), (self.OWN, 3000, 5), (self.OWN, 2000, 5)]))
        got = counters.counters(found)
        self.assertEqual((got["dram_read_bytes"], got["occupancy"]), (2000, 0.5))

    def test_a_kernel_that_runs_twice_counts_twice_and_the_longest_is_described(self) -> None:
        run = [(self.THEIRS, 1000, 9), (self.THEIRS, 1000, 9), (self.GATE, 10, 2)]
        got = counters.counters(counters.launches(table(run * 4)))
        self.assertEqual(got["dram_read_bytes"], 2010)
        self.assertEqual(got["registers"], 105)  # the median of theirs: launches 0, 1, 3, 4, 6, 7, 9, 10

    def test_a_kernel_that_was_but_tried_does_not_count(self) -> None:
        tried = [("nvjet_sm90_tst_128x128", 7777, 99)] * 4
        got = counters.counters(counters.launches(table(tried + [(self.THEIRS, 1000, 9)] * 9)))
        self.assertEqual(got["dram_read_bytes"], 1000)

    def test_own_kernels_are_told_from_others(self) -> None:
        for name in (self.OWN, "gemm (132, 1, 1)", "gate_whole_chunks (7, 1, 1)", "elementwise::gate_chunks<x>"):
            self.assertTrue(counters.OWN.search(name), name)
        for name in (self.THEIRS, self.GATE, "tiled (14, 1024, 1)", "void cutlass::gemm_kernel"):
            self.assertFalse(counters.OWN.search(name), name)

    def test_several_passes_are_an_error(self) -> None:
        with self.assertRaisesRegex(SystemExit, "several passes"):
            counters.launches(table([(self.OWN, 1000, 5)], passes=2))

    def test_no_table_is_an_error(self) -> None:
        with self.assertRaisesRegex(SystemExit, "ERR_NVGPUCTRPERM"):
            counters.launches("==ERROR== ERR_NVGPUCTRPERM")

    def test_no_kernel_is_an_error(self) -> None:
        with self.assertRaisesRegex(SystemExit, "saw no kernel of these names, but .*nvjet"):
            counters.counters([], [self.THEIRS])


if __name__ == "__main__":
    unittest.main()
