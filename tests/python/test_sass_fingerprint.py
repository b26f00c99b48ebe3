# SPDX-License-Identifier: Apache-2.0
"""scripts/sass_fingerprint.py tells kernels apart by what they do, not by what they are called."""

import importlib.util
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).parents[2] / "scripts" / "sass_fingerprint.py"
_spec = importlib.util.spec_from_file_location("sass_fingerprint", SCRIPT)
sass_fingerprint = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sass_fingerprint)

# As cuobjdump prints one instruction: text and the low word, then the high word.
LOAD = ("LDC R1, c[0x0][0x28]", 0x00000A00FF017B82, 0x000FE20000000800)
LOAD_ELSEWHERE = ("LDC R1, c[0x0][0x30]", 0x00000C00FF017B82, 0x000FE20000000800)
GLOBAL = ("LDC.64 R4, c[0x4][RZ]", 0x01000000FF047B82, 0x000E620000000A00)
GLOBAL_ELSEWHERE = ("LDC.64 R4, c[0x4][0x8]", 0x01000200FF047B82, 0x000E620000000A00)
EXIT = ("EXIT", 0x000000000000794D, 0x000FEA0003800000)
EXIT_LATER = ("EXIT", 0x000000000000794D, 0x000FEC0003800000)


def output(functions, *arguments):
    lines = ["", "Fatbin elf code:", "================", "arch = sm_90a", "code version = [1,8]"]
    if arguments[0] == "-res-usage":
        for name, _ in functions:
            lines += [f" Function {name}:", "  REG:40 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:2304 TEXTURE:0"]
        return "\n".join(lines)
    lines.append("\tcode for sm_90a")
    for name, instructions in functions:
        lines += [f"\t\tFunction : {name}", '\t.headerflags\t@"EF_CUDA_SM90"']
        for at, (text, low, high) in enumerate(instructions):
            lines.append(f"        /*{16 * at:04x}*/                   {text} ;      /* 0x{low:016x} */")
            lines.append(f"                                           /* 0x{high:016x} */")
    return "\n".join(lines)


def kernels(*functions):
    with mock.patch.object(sass_fingerprint, "cuobjdump", lambda *a: output(functions, *a)):
        return sass_fingerprint.named_kernels(["file"])


class Fingerprint(unittest.TestCase):
    def changes(self, old, new):
        return [line[0] for line in sass_fingerprint.differences(kernels(*old), kernels(*new))]

    def test_a_line_says_what_there_is(self) -> None:
        ((kernel, name),) = kernels(("f", [LOAD, EXIT]))
        self.assertEqual((kernel.arch, kernel.registers, kernel.stack, kernel.shared), ("sm_90a", 40, 8, 1024))
        self.assertEqual((kernel.instructions, name), (2, "f"))
        self.assertEqual(sass_fingerprint.Kernel.of(kernel.line()), kernel)

    def test_names_and_order_do_not_matter(self) -> None:
        self.assertEqual(self.changes([("f", [LOAD]), ("g", [EXIT])], [("a", [EXIT]), ("b", [LOAD])]), [])

    def test_where_globals_are_linked_does_not_matter(self) -> None:
        self.assertEqual(self.changes([("f", [GLOBAL])], [("f", [GLOBAL_ELSEWHERE])]), [])

    def test_instructions_and_their_schedule_do(self) -> None:
        self.assertEqual(self.changes([("f", [LOAD, EXIT])], [("f", [LOAD])]), ["-", "+"])
        self.assertEqual(self.changes([("f", [EXIT])], [("f", [EXIT_LATER])]), ["-", "+"])

    def test_moved_parameters_are_told_apart(self) -> None:
        self.assertEqual(self.changes([("f", [LOAD])], [("f", [LOAD_ELSEWHERE])]), ["~"])

    def test_data_names_the_row_of_the_table(self) -> None:
        row = sass_fingerprint.row_of
        self.assertEqual(row("void sluice::cuda::sm90::gemm::gemm<sluice::cuda::norm::A>()"), "cuda.sm90_gemm")
        self.assertEqual(row("sluice::cuda::sm80::gemm<X>()"), "cuda.sm80_gemm")
        self.assertEqual(row("sluice::cuda::sm80::decode::decode<X>()"), "cuda.sm80_decode")
        self.assertEqual(row("sluice::cuda::simt::column_sums(int)"), "cuda.simt")
        self.assertEqual(row("sluice::cuda::(anonymous namespace)::read_through(int)"), "-")

    def test_kernels_of_cutlass_are_left_out(self) -> None:
        self.assertEqual(self.changes([("f", [EXIT])], [("f", [EXIT]), ("_ZN7cutlass13device_kernelE", [EXIT])]), [])

    def test_an_update_keeps_what_only_grew(self) -> None:
        def update(*codes: str) -> list[str]:
            kernels = [(sass_fingerprint.Kernel("sm_90a", 1, 0, 0, 0, 1, code, "f"), name)
                       for code in codes for name in ("sluice::cuda::norm::a()", "other()")]
            sass_fingerprint.update(folder, kernels, "13")
            return (folder / "grown.list").read_text(encoding="utf-8").split()

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertEqual(update("1"), [])
            grown = update("1", "2")
            self.assertEqual(grown[::2], ["cuda.norm"])
            self.assertEqual(len(update("1", "2", "3")), 4)
            self.assertEqual(update("1", "2", "3")[:2], grown)
            self.assertEqual(update("2", "3"), [])

    def test_each_copy_counts(self) -> None:
        self.assertEqual(self.changes([("f", [EXIT]), ("g", [EXIT])], [("f", [EXIT])]), ["-"])


if __name__ == "__main__":
    unittest.main()
