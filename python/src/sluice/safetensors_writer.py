# SPDX-License-Identifier: Apache-2.0
"""Writes bf16 tensors to a safetensors file, one at a time, the same bytes every time.

The ``safetensors`` package takes numpy arrays, which cannot be bf16, and holds all of them at once.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.bf16 import to_bf16_bits

# The data begin at a multiple of this: a cache line, and more than any vector load wants.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: ``values()`` returns it as fp32 of ``shape`` when its turn comes."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], NDArray[np.float32]]


def write_bf16(path: Path, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> None:
    """Writes ``tensors`` in the given order as BF16, each element rounded once to nearest even.

    The file appears under its name only when it is complete. Raises ``ValueError`` for a duplicate
    name or a tensor whose values have another shape than announced, ``OSError`` from the disk.
    """
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for tensor in tensors:
        if tensor.name in header:
            raise ValueError(f"tensor {tensor.name}: appears twice")
        begin, end = end, end + 2 * int(np.prod(tensor.shape, dtype=np.int64))
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)

    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for tensor in tensors:
                values = tensor.values()
                if tuple(values.shape) != tensor.shape:
                    raise ValueError(
                        f"tensor {tensor.name}: expected shape {tensor.shape}, got {values.shape}"
                    )
                file.write(to_bf16_bits(values).astype("<u2", copy=False).tobytes())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
