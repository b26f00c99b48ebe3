# SPDX-License-Identifier: Apache-2.0
"""bf16 rounding, against exact rational arithmetic."""

import unittest
from fractions import Fraction

import numpy as np
from sluice.bf16 import from_bf16_bits, to_bf16_bits


def _fp32(bits: int) -> np.float32:
    return np.array([bits], dtype=np.uint32).view(np.float32)[0]


class RoundingTest(unittest.TestCase):
    def test_bit_exact_cases(self) -> None:
        cases = {
            0x00000000: 0x0000,  # 0
            0x80000000: 0x8000,  # -0
            0x3F800000: 0x3F80,  # 1
            0x3F807FFF: 0x3F80,  # just below half: down
            0x3F808000: 0x3F80,  # half, kept part even: down
            0x3F808001: 0x3F81,  # just above half: up
            0x3F818000: 0x3F82,  # half, kept part odd: up
            0xBF818000: 0xBF82,
            0x3FFFFFFF: 0x4000,  # carries into the exponent
            0x7F7F7FFF: 0x7F7F,  # largest bf16
            0x7F7F8000: 0x7F80,  # half a unit above it: infinity
            0x7F7FFFFF: 0x7F80,
            0xFF7FFFFF: 0xFF80,
            0x7F800000: 0x7F80,  # infinity
            0xFF800000: 0xFF80,
            0x00000001: 0x0000,  # smallest fp32
            0x00008000: 0x0000,  # half the smallest bf16, even
            0x00008001: 0x0001,
            0x00018000: 0x0002,
        }
        for given, expected in cases.items():
            self.assertEqual(int(to_bf16_bits(_fp32(given))), expected, hex(given))

    def test_nan_stays_nan(self) -> None:
        for given in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF):
            bits = int(to_bf16_bits(np.array([given], dtype=np.uint32).view(np.float32))[0])
            self.assertGreater(bits & 0x7FFF, 0x7F80, hex(given))
            self.assertEqual(bits >> 15, given >> 31)

    def test_nearest_even_of_random_bits(self) -> None:
        given = np.random.Generator(np.random.PCG64(1)).integers(0, 1 << 32, 4000, dtype=np.uint32)
        given = given[(given & 0x7F800000) < 0x7F000000]  # finite, and so is what they round to
        got = to_bf16_bits(given.view(np.float32))
        for source, bits in zip(given, got, strict=True):
            value = Fraction(float(_fp32(int(source))))
            below, above = (
                Fraction(float(_fp32(kept << 16)))
                for kept in (int(source) >> 16, (int(source) >> 16) + 1)
            )
            distances = abs(value - below), abs(above - value)
            if distances[0] == distances[1]:
                expected = (int(source) >> 16) + ((int(source) >> 16) & 1)
            else:
                expected = (int(source) >> 16) + (distances[1] < distances[0])
            self.assertEqual(int(bits), expected, hex(int(source)))

    def test_widening_is_the_inverse(self) -> None:
        bits = np.arange(1 << 16, dtype=np.uint16)
        finite = bits[(bits & 0x7F80) != 0x7F80]
        np.testing.assert_array_equal(to_bf16_bits(from_bf16_bits(finite)), finite)

    def test_keeps_shapes(self) -> None:
        self.assertEqual(to_bf16_bits(np.zeros((2, 3, 4), np.float32)).shape, (2, 3, 4))
        self.assertEqual(to_bf16_bits(np.zeros((0, 3), np.float32)).shape, (0, 3))
        strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
        np.testing.assert_array_equal(from_bf16_bits(to_bf16_bits(strided)), strided)


if __name__ == "__main__":
    unittest.main()
