# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror of sluice.h against the header and the library, and the doctor."""

import contextlib
import ctypes
import importlib.util
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import sluice
from sluice import capi, doctor, foreign
from sluice.gate import ACTIVATIONS, Gate

INCLUDE = os.environ.get("SLUICE_INCLUDE_DIRS", "")
MIRRORS = {
    "sluice_error": capi.CError,
    "sluice_layout": capi.CLayout,
    "sluice_layouts": capi.CLayouts,
    "sluice_gate": capi.CGate,
    "sluice_norm": capi.CNorm,
    "sluice_problem": capi.CProblem,
    "sluice_device": capi.CDevice,
    "sluice_options": capi.COptions,
    "sluice_plan": capi.CPlan,
    "sluice_operands": capi.COperands,
    "sluice_operand_spec": capi.COperandSpec,
    "sluice_workspace": capi.CWorkspace,
    "sluice_run_args": capi.CRunArgs,
    "sluice_foreign_functions": foreign._Functions,
}


def assertions(name: str, mirror: type[ctypes.Structure]) -> list[str]:
    """C that compiles only where the mirror has every member where the header has it: package and
    library come together, so that a mirror that lags behind is an error."""
    lines = [f'_Static_assert(sizeof({name}) == {ctypes.sizeof(mirror)}, "{name}");']
    for field, kind, *_ in mirror._fields_:
        lines.append(
            f"_Static_assert(offsetof({name}, {field}) == {getattr(mirror, field).offset} && "
            f'sizeof((({name}*)0)->{field}) == {ctypes.sizeof(kind)}, "{name}.{field}");'
        )
    return lines


def compiles(lines: list[str]) -> tuple[bool, str]:
    command = [shutil.which("cc") or "cc", "-std=c11", "-fsyntax-only", "-x", "c", "-"]
    command += [f"-I{folder}" for folder in INCLUDE.split(os.pathsep)]
    source = "\n".join(["#include <stddef.h>", '#include "sluice/foreign.h"', *lines])
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


class Header(unittest.TestCase):
    def test_every_mirrored_member_lies_where_the_header_has_it(self) -> None:
        lines = [line for name, mirror in MIRRORS.items() for line in assertions(name, mirror)]
        good, messages = compiles(lines)
        self.assertTrue(good, messages)

    def test_a_member_in_the_wrong_place_does_not_compile(self) -> None:
        class Swapped(ctypes.Structure):
            _fields_ = [*capi.CGate._fields_[:1], *reversed(capi.CGate._fields_[1:])]

        good, messages = compiles(assertions("sluice_gate", Swapped))
        self.assertFalse(good)
        self.assertIn("sluice_gate.alpha", messages)

    def test_names_are_in_the_order_of_the_enumerators(self) -> None:
        lib = capi.library()
        for names, function in (
            (capi.WEIGHT_DTYPES, lib.sluice_dtype_name),
            (capi.OPS, lib.sluice_op_name),
            (ACTIVATIONS, lib.sluice_activation_name),
        ):
            self.assertEqual([function(i).decode() for i in range(len(names))], list(names))


class Operands(unittest.TestCase):
    """What Python writes to a problem is what the library reads: by the library's own table each operand
    answers for its dims, its type and its layout."""

    OPERANDS = Path(__file__).parents[2] / "src/core/operands.inc"

    def problem_of(self, op: str) -> capi.CProblem:
        """Dims, types and strides that differ from each other."""
        problem = capi._problem(op, 3, 5, 7, "bf16", None, Gate(), {})
        problem.alignment_bytes = 8
        problem.x_dtype, problem.w_dtype, problem.y_dtype, problem.dw_dtype = 2, 0, 2, 2
        for i, (slot, _) in enumerate(capi.CLayouts._fields_):
            getattr(problem.layout, slot).row_stride_bytes = 1024 + 8 * i
        return problem

    def query(self, problem: capi.CProblem, index: int) -> capi.COperandSpec:
        spec, error = capi.COperandSpec(), capi.CError()
        size = ctypes.sizeof(spec)
        code = capi.library().sluice_operand_query(problem, index, spec, size, error)
        self.assertEqual(code, 0, error.message)
        return spec

    def test_each_answers_for_its_members(self) -> None:
        rows = re.findall(r"^SLUICE_(?:MATRIX|VECTOR)\((.*)\)$", self.OPERANDS.read_text(), re.M)
        self.assertGreater(len(rows), 0)
        for op in capi.OPS:
            problem = self.problem_of(op)
            for index, row in enumerate(rows):
                _, name, shape, dtype, *layout = row.split(", ")
                *height, width = shape.removeprefix("kVec").removeprefix("k").lower()
                spec = self.query(problem, index)
                with self.subTest(op=op, operand=name):
                    self.assertEqual(spec.name.decode(), name)
                    self.assertEqual(spec.rows, getattr(problem, height[0]) if height else 1)
                    self.assertEqual(spec.cols, getattr(problem, width))
                    self.assertEqual(spec.dtype, getattr(problem, dtype))
                    for slot in layout:
                        stride = getattr(problem.layout, slot).row_stride_bytes
                        self.assertEqual(spec.layout.row_stride_bytes, stride)


class Queries(unittest.TestCase):
    def test_info_has_this_cpu_first(self) -> None:
        found = sluice.info()
        self.assertRegex(found.version, r"^\d+\.\d+\.\d+$")
        self.assertEqual(sluice.__version__, found.version)
        self.assertEqual(found.devices[0].index, "cpu")
        self.assertGreaterEqual(found.devices[0].threads, 1)
        self.assertEqual(found.variants["cpu"][-1], "cpu.reference")

    def test_the_cpu_may_be_held_to_a_simd_target(self) -> None:
        with mock.patch.dict(os.environ, {"SLUICE_MAX_SIMD": "emulated"}):
            self.assertEqual(sluice.info().devices[0].simd_targets, ("emulated",))
            self.assertEqual(sluice.plan(4, 64, 96).config, "mlp=emulated")
            self.assertIn("mlp: cpu.simd emulated", sluice.explain(4, 64, 96))
        wrong = mock.patch.dict(os.environ, {"SLUICE_MAX_SIMD": "sse9"})
        with wrong, self.assertRaisesRegex(ValueError, 'SIMD target: got "sse9"'):
            sluice.plan(4, 64, 96)

    def test_a_plan_says_what_would_run(self) -> None:
        made = sluice.plan(16, 576, 1536, gate=Gate.clamped_swiglu(), threads=1)
        self.assertEqual((made.variant, made.source, made.threads), ("cpu.simd", "heuristic", 1))
        self.assertEqual(made.flops, 2 * 3 * 16 * 576 * 1536)
        forced = sluice.plan(16, 576, 1536, variant="cpu.reference")
        self.assertEqual((forced.variant, forced.source), ("cpu.reference", "forced"))

    def test_linear_is_down(self) -> None:
        self.assertEqual(sluice.plan(4, 64, 96, op="linear").config, sluice.plan(4, 64, 96, op="down").config)

    def test_the_norm_alone_has_a_plan(self) -> None:
        made = sluice.plan(4, 64, 0, op="norm", config="norm=fp64")
        self.assertEqual((made.variant, made.config), ("cpu.reference", "norm=fp64"))
        self.assertEqual(made.flops, 0)

    def test_explain_gives_the_reason_of_a_refusal(self) -> None:
        text = sluice.explain(4, 8, 8, dtype="fp64")
        self.assertRegex(text, "cpu.simd: refused: .*fp64")
        self.assertRegex(text, "cpu.reference: chosen")
        self.assertRegex(text, "\n  recipe: fp64, obviously right")

    def test_weights_may_be_blocks(self) -> None:
        made = sluice.plan(4, 64, 96, weight_dtype="q4_0")
        self.assertEqual(made.variant.split(".")[0], "cpu")
        dense = sluice.plan(4, 64, 96)
        self.assertLess(made.bytes_moved, dense.bytes_moved)

    def test_errors_are_pythons_own_and_name_the_field(self) -> None:
        for wrong, message in (
            (lambda: sluice.plan(-1, 8, 8), "^m: got -1"),
            (lambda: sluice.plan(2**64 + 1, 8, 8), "^m: got 18446744073709551617, wanted what 64"),
            (lambda: sluice.explain(1, 8, 2**63), "^h: got 9223372036854775808"),
            (lambda: sluice.plan(1, 8, 8, threads=2**32), "^threads: got 4294967296, wanted what 32"),
            (lambda: sluice.plan(1, 8, 8, device="cuda:4294967296"), "^device: got 4294967296"),
            (lambda: sluice.plan(1, 8, 8, variant="cpu.none"), "cpu.none"),
            (lambda: sluice.plan(1, 8, 8, variant=""), '^variant: got "", wanted'),
            (lambda: sluice.plan(1, 8, 8, config=""), '^config: got "", wanted'),
            (lambda: sluice.plan(1, 8, 8, dtype="int3"), "^dtype: got 'int3', wanted one of bf16"),
            (lambda: sluice.plan(1, 8, 8, op="mul"), "^op: got 'mul'"),
            (lambda: sluice.plan(1, 8, 8, device="tpu"), "^device: got 'tpu'"),
            (lambda: sluice.plan(1, 8, 8, gate=Gate(alpha=math.nan)), "alpha"),
            (lambda: Gate("swish"), "^activation: got 'swish'"),
            (lambda: sluice.plan(1, 8, 8, gate="silu"), "^gate: got 'silu', wanted a Gate"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                wrong()
        with self.assertRaisesRegex(TypeError, "^bias: no such flag, wanted one of bias_gate_up"):
            sluice.plan(1, 8, 8, bias=True)

    def test_explain_raises_what_plan_raises(self) -> None:
        for wrong in ({"m": -1}, {"gate": Gate(limit=-1.0)}, {"bias_down": 2}, {"device": None}):
            arguments = {"m": 4, "d": 8, "h": 8, **wrong}
            messages = set()
            for function in (sluice.plan, sluice.explain):
                with self.assertRaises(ValueError) as caught:
                    function(**arguments)
                messages.add(str(caught.exception))
            self.assertEqual(len(messages), 1, messages)

    def test_nothing_is_cut_to_what_c_holds(self) -> None:
        for wrong, message in (
            ({"m": 2**64 + 4}, "^m: got 18446744073709551620"),
            ({"threads": 2**32 + 1}, "^threads: got 4294967297"),
            ({"bias_down": 2**32}, "^bias_down: got 4294967296"),
            ({"variant": "cpu.simd\0beyond"}, "^variant: got 'cpu.simd"),
            ({"config": b"cpu.simd"}, "^config: got b'cpu.simd'"),
            ({"device": None}, "^device: got None, wanted 'cpu'"),
            ({"device": 0}, "^device: got 0, wanted 'cpu'"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sluice.plan(**{"m": 4, "d": 8, "h": 8, **wrong})

    def test_a_message_may_be_cut_inside_a_letter(self) -> None:
        for length in (398, 399, 400, 401):
            with self.assertRaisesRegex(ValueError, "^variant: got"):
                sluice.plan(4, 8, 8, variant="x" * (length % 2) + "\u00e9" * length)

    def test_only_infinity_is_no_limit(self) -> None:
        self.assertIsNone(Gate().arguments[2])
        self.assertEqual(Gate(limit=-math.inf).arguments[2], -math.inf)

    def test_a_forced_variant_that_refuses_is_not_implemented(self) -> None:
        with self.assertRaises(NotImplementedError) as caught:
            sluice.plan(1, 8, 8, dtype="fp64", variant="cpu.simd")
        self.assertEqual(caught.exception.code, 2)

    def test_a_missing_library_says_where_it_was_looked_for(self) -> None:
        capi.library.cache_clear()
        self.addCleanup(capi.library.cache_clear)
        with mock.patch.dict(os.environ, {"SLUICE_LIBRARY_DIR": "/nowhere"}):
            with self.assertRaisesRegex(ImportError, "/nowhere/libsluice.*SLUICE_LIBRARY_DIR"):
                sluice.info()


class Import(unittest.TestCase):
    def test_importing_the_package_loads_none_of_its_parts(self) -> None:
        code = (
            "import sys, sluice; sluice.Gate; "
            "print([m for m in sys.modules if m in ('ctypes', 'numpy', 'torch', 'sluice.capi')])"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.strip(), "[]")

    def test_what_is_promised_is_there(self) -> None:
        for name in sluice.__all__:
            self.assertIn(name, dir(sluice))
            if name not in ("Patched", "patch", "unpatch"):  # these need Torch
                getattr(sluice, name)
        self.assertEqual(sluice.report.__name__, "sluice.report")
        with self.assertRaises(AttributeError):
            sluice.nothing_of_this_name
        # Modules that need Torch are found by name too, and say what they miss.
        if importlib.util.find_spec("torch") is None:
            for name in ("liger", "nn", "ops"):
                with self.assertRaisesRegex(ImportError, "torch"):
                    getattr(sluice, name)


class Doctor(unittest.TestCase):
    def run_doctor(self) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = doctor.main([])
        return code, out.getvalue()

    def test_a_working_library_is_ok(self) -> None:
        code, out = self.run_doctor()
        self.assertEqual(code, 0, out)
        self.assertRegex(out, r"(?m)^ok   library +\d")
        self.assertRegex(out, r"(?m)^ok   cpu variants +.*cpu.reference")
        self.assertRegex(out, r"(?m)^(ok|no)   CUDA driver")

    def test_a_library_that_does_not_load_is_bad(self) -> None:
        capi.library.cache_clear()
        self.addCleanup(capi.library.cache_clear)
        with mock.patch.dict(os.environ, {"SLUICE_LIBRARY_DIR": "/nowhere"}):
            code, out = self.run_doctor()
        self.assertEqual(code, 1)
        self.assertRegex(out, r"(?m)^BAD  library +/nowhere")

    def test_the_program_is_missed_outside_of_a_wheel(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "sluice", "list"], capture_output=True, text=True, check=False
        )
        if (Path(sluice.__file__).parent / "bin" / "sluice").is_file():
            self.skipTest("this is an installed package")
        self.assertEqual(done.returncode, 3)
        self.assertIn("not installed by pip", done.stderr)


class WithoutMatplotlib(unittest.TestCase):
    def run_report(self, *words: str) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys; sys.modules['matplotlib'] = None; "
            "from sluice import report; sys.exit(report.main(sys.argv[1:]))"
        )
        return subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )

    def test_the_report_says_what_is_missing(self) -> None:
        done = self.run_report("results.json")
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"^sluice\.report: .* has no matplotlib\n$")

    def test_its_help_needs_none(self) -> None:
        self.assertEqual(self.run_report("--help").returncode, 0)


class Pipes(unittest.TestCase):
    def test_programs_end_without_a_word_when_their_reader_has(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        self.addCleanup(os.close, writing)
        for words in (
            ("sluice", "doctor"), ("sluice.doctor",), ("sluice.report", "--help"),
            ("sluice.checkpoint", "--help"), ("sluice.readme_tables", "--help"),
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", *words], stdout=writing, stderr=subprocess.PIPE, check=False
            )
            with self.subTest(words):
                self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))


if __name__ == "__main__":
    unittest.main()
