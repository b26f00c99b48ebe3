# SPDX-License-Identifier: Apache-2.0
"""Kernels written in Python against Sluice's cases, fp64 oracle and bounds::

    python -m sluice.foreign kernels.py [CASE...] [--device cuda] [--unfused] [--json FILE]

``kernels.py``, or a module by its dotted name, defines functions named as operators (``gate_up``,
``down``, ``mlp``, ``gate_mul``, ...), each ``def mlp(problem, t)``: ``problem`` is a ``Problem``,
``t`` holds a Torch tensor for each operand, ``t.x``, ``t.w_gate`` and so on, or ``None`` where the
case has none. A function reads inputs and writes outputs in place (``t.y.copy_(...)``), on the
current stream. ``NotImplementedError`` skips the case; any other exception fails it.

Options and exit status are those of ``sluice verify --foreign``; ``sluice/foreign.h`` has the rules.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_size_t, c_void_p, sizeof
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from sluice import capi
from sluice.gate import ACTIVATIONS, Gate
from sluice.pipe import end_with_reader

LIBRARY = "libsluice_verify.so"
_RESIDUALS = ("none", "operand", "norm_input")
_OPERANDS = [name for name, _ in capi.COperands._fields_[1:]]
_VECTORS = ("norm_weight", "next_norm_weight", "b_gate", "b_up", "b_down", "db_gate", "db_up", "db_down")
_UNSUPPORTED, _INTERNAL = 2, 5

_FUNCTION = ctypes.CFUNCTYPE(
    c_int32,
    POINTER(capi.CProblem),
    POINTER(capi.COperands),
    POINTER(capi.CDevice),
    c_void_p,
    POINTER(capi.CError),
)


class _Functions(ctypes.Structure):
    """``sluice_foreign_functions``"""

    _fields_ = [("struct_size", c_size_t), *((op, _FUNCTION) for op in capi.OPS)]


@dataclass(frozen=True)
class Norm:
    """RMSNorm of x, or of ``x + x_residual`` with ``add``; ``sluice_norm``."""

    add: bool
    eps: float
    weight_offset: float


@dataclass(frozen=True)
class Problem:
    """``sluice_problem``: types by name ("bf16"), ``residual`` is "none", "operand" or
    "norm_input", ``norm`` is ``None`` where there is none. Layouts are in the tensors' strides."""

    op: str
    m: int
    d: int
    h: int
    x_dtype: str
    w_dtype: str
    y_dtype: str
    dw_dtype: str
    gate: Gate
    norm: Norm | None
    residual: str
    bias_gate_up: bool
    bias_down: bool
    save_g_u: bool
    recompute: bool
    accumulate_dw: bool
    save_dg_du: bool
    round_gate: bool
    alignment_bytes: int


def _problem(c: capi.CProblem) -> Problem:
    gate = {name: getattr(c.gate, name) for name, _ in capi.CGate._fields_}
    gate["activation"] = ACTIVATIONS[c.gate.activation]
    types = ("x_dtype", "w_dtype", "y_dtype", "dw_dtype")
    flags = (
        "bias_gate_up", "bias_down", "save_g_u", "recompute", "accumulate_dw", "save_dg_du",
        "round_gate",
    )  # fmt: skip
    return Problem(
        op=capi.OPS[c.op],
        m=c.m,
        d=c.d,
        h=c.h,
        gate=Gate(**gate),
        norm=Norm(bool(c.norm.add), c.norm.eps, c.norm.weight_offset) if c.norm.enabled else None,
        residual=_RESIDUALS[c.residual],
        alignment_bytes=c.alignment_bytes,
        **{name: capi.WEIGHT_DTYPES[getattr(c, name)] for name in types},
        **{name: bool(getattr(c, name)) for name in flags},
    )


def _strides(name: str, spec: capi.COperandSpec, element: int) -> tuple[int, int]:
    """Bytes from row to row and from column to column. Raises ``NotImplementedError`` where blocks
    of rows or columns leave no single stride."""
    layout = spec.layout
    row, column = layout.row_stride_bytes, element
    if 0 < layout.block_rows < spec.rows:
        if layout.block_rows > 1:
            raise NotImplementedError(f"{name}: blocks of {layout.block_rows} rows are no tensor")
        row = layout.block_stride_bytes
    if 0 < layout.block_cols < spec.cols:
        if layout.block_cols > 1:
            raise NotImplementedError(f"{name}: blocks of {layout.block_cols} columns are no tensor")
        column = layout.col_block_stride_bytes
    return row, column


def _tensor(name: str, spec: capi.COperandSpec, address: int, device: capi.CDevice) -> Any:
    """The operand's memory as a tensor: [rows, cols], vectors [cols]."""
    import torch

    if spec.dtype >= len(capi.DTYPES):
        kind = capi.WEIGHT_DTYPES[spec.dtype]
        raise NotImplementedError(f"{name}: {kind} is no type of Torch's")
    dtype = (torch.bfloat16, torch.float16, torch.float32, torch.float64)[spec.dtype]
    row, column = _strides(name, spec, dtype.itemsize)
    on = f"cuda:{device.ordinal}" if device.backend else "cpu"
    if spec.rows * spec.cols == 0:
        tensor = torch.empty(spec.rows, spec.cols, dtype=dtype, device=on)
    else:
        if device.backend:
            interface = {"shape": (spec.extent_bytes,), "typestr": "|u1", "strides": None,
                         "data": (address, False), "version": 3}  # fmt: skip
            memory = SimpleNamespace(__cuda_array_interface__=interface)
            flat = torch.as_tensor(memory, device=on).view(dtype)
        else:
            flat = torch.frombuffer((c_char * spec.extent_bytes).from_address(address), dtype=dtype)
        strides = (row // dtype.itemsize, column // dtype.itemsize)
        tensor = flat.as_strided((spec.rows, spec.cols), strides)
    return tensor[0] if name in _VECTORS else tensor


def _tensors(problem: Any, operands: capi.COperands, device: capi.CDevice) -> SimpleNamespace:
    """A tensor for each operand with an address, by its name; ``None`` for the others."""
    found: dict[str, Any] = {}
    spec, error = capi.COperandSpec(), capi.CError()
    for index, name in enumerate(_OPERANDS):
        address = getattr(operands, name)
        found[name] = None
        if address is None:
            continue
        capi._check(
            capi.library().sluice_operand_query(
                problem, index, byref(spec), sizeof(spec), byref(error)
            ),
            error,
        )
        found[name] = _tensor(name, spec, address, device)
    return SimpleNamespace(**found)


@contextlib.contextmanager
def _on(device: capi.CDevice, stream: int | None):
    """The harness's stream as Torch's current one."""
    if not device.backend:
        yield
        return
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(stream or 0, device=device.ordinal)):
        yield


class _Calls:
    """Makes C functions of Python's. ``stopped`` is what ended the run from within one."""

    def __init__(self) -> None:
        self.stopped: BaseException | None = None
        self._traced = False

    def function(self, kernel: Callable[[Problem, SimpleNamespace], None]) -> Any:
        def call(problem: Any, operands: Any, device: Any, stream: int | None, error: Any) -> int:
            try:
                if self.stopped is not None:
                    raise self.stopped
                tensors = _tensors(problem, operands.contents, device.contents)
                with _on(device.contents, stream):
                    kernel(_problem(problem.contents), tensors)
                return 0
            except NotImplementedError as reason:
                return _told(error, _UNSUPPORTED, str(reason))
            except Exception as reason:
                if not self._traced:
                    traceback.print_exc()
                self._traced = True
                return _told(error, _INTERNAL, f"{type(reason).__name__}: {reason}")
            except BaseException as reason:  # C code cannot pass it on: main() raises it
                self.stopped = reason
                return _told(error, _INTERNAL, type(reason).__name__)

        return _FUNCTION(call)


def _told(error: Any, code: int, message: str) -> int:
    line = message.strip().split("\n")[0].encode()[: capi.CError.message.size - 1]
    error.contents.message = line.decode(errors="ignore").encode()
    return code


def _kernels(name: str) -> ModuleType:
    """The module of this dotted name or file. Raises ``ImportError``."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise ImportError(f"{name}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where Triton looks for a kernel's globals
    spec.loader.exec_module(module)
    return module


def verify(kernels: Any, arguments: Sequence[str] = (), command: str = "sluice.foreign") -> int:
    """Checks the functions of ``kernels`` (a module, a namespace) that are named as operators;
    ``arguments`` are cases and options of ``sluice verify --foreign``, ``command`` is what reports
    name to repeat a case. Prints reports and returns the exit status: 0 where all that was not
    skipped passed, 1 where a case failed, 2 for wrong arguments, 3 where every case was skipped.
    Raises ``ImportError`` where the package has no ``libsluice_verify.so``."""
    capi.library()  # which the other one needs
    path = capi.library_folder() / LIBRARY
    try:
        entry = ctypes.CDLL(str(path)).sluice_foreign_verify
    except OSError as error:
        raise ImportError(f"{path}: {error}") from error
    entry.restype = c_int32
    entry.argtypes = [c_int32, POINTER(c_char_p), POINTER(_Functions)]
    calls = _Calls()
    functions = _Functions(struct_size=sizeof(_Functions))
    for op in capi.OPS:
        if callable(kernel := getattr(kernels, op, None)):
            setattr(functions, op, calls.function(kernel))
    words = [command, *arguments]
    sys.stdout.flush()
    status = entry(
        len(words), (c_char_p * len(words))(*(word.encode() for word in words)), byref(functions)
    )
    if calls.stopped is not None:
        raise calls.stopped
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m sluice.foreign``; returns the exit status."""
    end_with_reader()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        print(__doc__, file=sys.stdout if words[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    try:
        kernels = _kernels(words[0])
    except ImportError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2
    if not any(callable(getattr(kernels, op, None)) for op in capi.OPS):
        print(f"sluice: {words[0]}: defines no operator, such as mlp", file=sys.stderr)
        return 2
    return verify(kernels, words[1:], f"python -m sluice.foreign {words[0]}")


if __name__ == "__main__":
    sys.exit(main())
