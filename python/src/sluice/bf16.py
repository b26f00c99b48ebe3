# SPDX-License-Identifier: Apache-2.0
"""bfloat16 as raw bits: numpy has no such type."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def to_bf16_bits(values: ArrayLike) -> NDArray[np.uint16]:
    """Rounds fp32 values once to bf16, to nearest, ties to even; returns the bits.

    Values beyond the largest bf16 become infinity; NaN stays NaN (quiet, sign and upper payload
    kept). The same bits as ``sluice::math::to_bf16(float)``. Same shape as ``values``.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    # Adding half a unit, less one where the kept part is even, carries exactly where rounding up
    # is due. It wraps around for a NaN only, which is replaced.
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(is_nan, quiet, result).reshape(np.shape(values))


def from_bf16_bits(bits: ArrayLike) -> NDArray[np.float32]:
    """Widens bf16 bits to fp32, exactly. Same shape as ``bits``."""
    wide = np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32).reshape(np.shape(bits))
