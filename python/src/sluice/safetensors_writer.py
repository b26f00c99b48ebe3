# SPDX-License-Identifier: Apache-2.0
"""Writes bf16 tensors and raw bytes to a safetensors file, one at a time, the same bytes every time.

The ``safetensors`` package takes numpy arrays, which cannot be bf16, and holds all of them at once.
Tensors that come as bytes are written by the standard library alone.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The data begin at a multiple of this: a cache line, and more than any vector load wants.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: ``values()`` returns it in ``shape`` when its turn comes, as fp32 to be
    written as BF16, or as uint8 to be written as it is (``dtype`` U8); or its bytes, of either."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], bytes | NDArray[np.float32] | NDArray[np.uint8]]
    dtype: Literal["BF16", "U8"] = "BF16"

    def size_bytes(self) -> int:
        """What the tensor takes in the file."""
        return (2 if self.dtype == "BF16" else 1) * math.prod(self.shape)

    def bytes_to_write(self) -> bytes:
        """The tensor's bytes; ``ValueError`` where the values have another shape or type."""
        values = self.values()
        if isinstance(values, bytes):
            if len(values) != self.size_bytes():
                raise ValueError(
                    f"tensor {self.name}: expected {self.size_bytes()} bytes, got {len(values)}"
                )
            return values
        if tuple(values.shape) != self.shape:
            raise ValueError(
                f"tensor {self.name}: expected shape {self.shape}, got {values.shape}"
            )
        if self.dtype == "BF16":
            from sluice.bf16 import to_bf16_bits  # needs numpy

            return to_bf16_bits(values).astype("<u2", copy=False).tobytes()
        if values.dtype != "uint8":
            raise ValueError(f"tensor {self.name}: expected uint8, got {values.dtype}")
        return values.tobytes()


def write_tensors(path: Path, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> None:
    """Writes ``tensors`` in the given order; fp32 values are rounded once, to nearest even.

    The file appears under its name only when it is complete. Raises ``ValueError`` for a duplicate
    name, a tensor whose values have another shape than announced, or a path to something that is
    no regular file, ``OSError`` from the disk.
    """
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for tensor in tensors:
        if tensor.name in header:
            raise ValueError(f"tensor {tensor.name}: appears twice")
        begin, end = end, end + tensor.size_bytes()
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)

    # What the path leads to is replaced: a link stays, and a device is none of ours to remove.
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"{path}: is no regular file")
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for tensor in tensors:
                file.write(tensor.bytes_to_write())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
