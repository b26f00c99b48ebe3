# SPDX-License-Identifier: Apache-2.0
"""Every library of a process held to one SIMD target, as on a CPU that has no better."""

from __future__ import annotations

import os
import sys

# What each library calls the target: Sluice, oneDNN, Torch's own kernels, MKL, OpenBLAS.
TARGETS = {
    "avx2": {
        "SLUICE_MAX_SIMD": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    }
}


def hold(target: str | None) -> None:
    """Starts this program again where its environment does not say so yet, as libraries read it when
    they load."""
    wanted = TARGETS[target] if target else {}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
