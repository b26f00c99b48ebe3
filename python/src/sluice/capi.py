# SPDX-License-Identifier: Apache-2.0
"""``sluice.h`` through ctypes: what the library is, finds and would choose. Nothing is computed
here; tensors go through the Torch operators.

The structs mirror the header member by member; tests/python compiles the two against each other.
The library is the one installed beside this file, or the one in the folder ``SLUICE_LIBRARY_DIR``.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_float, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from functools import cache
from operator import index
from pathlib import Path
from typing import Any

from sluice.gate import Gate

LIBRARY = "libsluice.so.0.2"  # the SONAME whose header is mirrored here

# In the order of sluice.h's enumerators; tests/python holds them to its names.
DTYPES = ("bf16", "fp16", "fp32", "fp64")
WEIGHT_DTYPES = (*DTYPES, "q8_0", "q4_0", "q4_1")
OPS = (
    "gate_up", "down", "mlp", "gate_mul", "gate_mul_grad", "gate_up_grad", "mlp_grad", "norm",
    "input_grad", "weight_grad", "column_sum",
)  # fmt: skip
FLAGS = (
    "bias_gate_up", "bias_down", "save_g_u", "recompute", "save_dg_du", "weights_static",
    "round_gate",
)  # fmt: skip
BACKENDS = ("cpu", "cuda")
ARCHS = ("none", "turing", "ampere", "ada", "hopper", "blackwell")
SIMD_TARGETS = ("emulated", "avx2", "avx512", "avx512_bf16")
SOURCES = ("heuristic", "forced", "tune_table", "nearest_entry", "shipped_table")
_CODES = ("ok", "invalid argument", "unsupported", "out of memory", "device error", "internal")


class CError(Structure):
    """``sluice_error``"""

    _fields_ = [("code", c_int32), ("cuda_code", c_int32), ("message", c_char * 320)]


class CLayout(Structure):
    """``sluice_layout``"""

    _fields_ = [
        (name, c_int64)
        for name in (
            "row_stride_bytes", "block_rows", "block_stride_bytes", "block_cols",
            "col_block_stride_bytes",
        )
    ]  # fmt: skip


class CLayouts(Structure):
    """``sluice_layouts``"""

    _fields_ = [
        (name, CLayout)
        for name in (
            "x", "w_gate_up", "w_down", "g_u", "h", "y", "residual", "x_sum", "dy", "dh", "dg_du",
            "dx", "dw_gate_up", "dw_down",
        )
    ]  # fmt: skip


class CGate(Structure):
    """``sluice_gate``"""

    _fields_ = [("activation", c_int32)] + [
        (name, c_float)
        for name in ("alpha", "limit", "up_offset", "gate_multiplier", "output_multiplier")
    ]


class CNorm(Structure):
    """``sluice_norm``"""

    _fields_ = [
        ("enabled", c_int32),
        ("add", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
    ]


class CReduce(Structure):
    """``sluice_reduce``"""

    _fields_ = [("kind", c_int32), ("rank", c_int32), ("world", c_int32), ("norm", CNorm)]


class CProblem(Structure):
    """``sluice_problem``"""

    _fields_ = [
        ("struct_size", c_size_t),
        *((n, c_int32) for n in ("op", "x_dtype", "w_dtype", "y_dtype", "dw_dtype", "residual")),
        *((n, c_int64) for n in ("m", "d", "h")),
        ("gate", CGate),
        ("norm", CNorm),
        *(
            (name, c_int32)
            for name in (
                "bias_gate_up", "bias_down", "save_g_u", "recompute", "accumulate_dw",
                "save_dg_du", "weights_static", "round_gate",
            )
        ),
        ("alignment_bytes", c_int64),
        ("layout", CLayouts),
        ("reduce", CReduce),
    ]  # fmt: skip


class CDevice(Structure):
    """``sluice_device``"""

    _fields_ = [
        ("struct_size", c_size_t),
        *(
            (name, c_int32)
            for name in (
                "backend", "arch", "ordinal", "compute_capability", "sm_count",
                "smem_per_block_bytes", "cooperative_launch", "driver_version", "runtime_version",
                "threads",
            )
        ),
        ("simd_targets", c_uint32),
        *((n, c_int64) for n in ("l1d_bytes", "l2_bytes", "l3_bytes", "memory_bytes")),
        ("name", c_char * 96),
        ("cublaslt_version", c_int32),
        ("slow_bf16_products", c_int32),
        ("memory_bytes_per_second", c_int64),
    ]  # fmt: skip


class COptions(Structure):
    """``sluice_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("variant", c_char_p),
        ("config", c_char_p),
        ("tune_find", c_void_p),
        ("tune_user", c_void_p),
        ("threads", c_int32),
        ("experimental", c_int32),
        ("log_write", c_void_p),
        ("log_user", c_void_p),
        ("parallel_for", c_void_p),
        ("parallel_user", c_void_p),
    ]


class CPlan(Structure):
    """``sluice_plan``"""

    _fields_ = [("opaque", c_uint64 * 512)]


class COperands(Structure):
    """``sluice_operands``"""

    _fields_ = [
        ("struct_size", c_size_t),
        *(
            (name, c_void_p)
            for name in (
                "x", "x_residual", "norm_weight", "w_gate", "w_up", "w_down", "b_gate", "b_up",
                "b_down", "residual", "dy", "dh", "g", "u", "h", "y", "x_sum", "dg", "du", "dx",
                "dw_gate", "dw_up", "dw_down", "db_gate", "db_up", "db_down", "next_norm_weight",
                "y_norm",
            )
        ),
    ]  # fmt: skip


class COperandSpec(Structure):
    """``sluice_operand_spec``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        *((n, c_int32) for n in ("access", "required", "dtype", "reserved")),
        *((n, c_int64) for n in ("rows", "cols", "extent_bytes")),
        ("layout", CLayout),
    ]


class CWorkspace(Structure):
    """``sluice_workspace``"""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("header", c_void_p)]


class CPeers(Structure):
    """``sluice_peers``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("buffers", c_void_p * 8),
        ("bytes", c_size_t),
        ("time_limit_us", c_int64),
        ("share_device", c_int32),
        ("reserved", c_int32),
    ]


class CRunArgs(Structure):
    """``sluice_run_args``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("operands", POINTER(COperands)),
        ("workspace", CWorkspace),
        ("stream", c_void_p),
        ("peers", POINTER(CPeers)),
    ]


class SluiceError(RuntimeError):
    """The library refused; ``code`` is its ``sluice_status``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message or (_CODES[code] if code < len(_CODES) else f"code {code}"))
        self.code = code


class InvalidArgument(SluiceError, ValueError):
    """A documented rule was broken; the message names the field or operand."""


class Unsupported(SluiceError, NotImplementedError):
    """Legal, but nothing in this build takes it on this device."""


_ERRORS = {1: InvalidArgument, 2: Unsupported}


def library_folder() -> Path:
    """The folder of ``libsluice`` (and of the Torch operators): ``SLUICE_LIBRARY_DIR``, or ``lib``
    beside this file."""
    given = os.environ.get("SLUICE_LIBRARY_DIR")
    return Path(given) if given else Path(__file__).parent / "lib"


def without_operators() -> str:
    """Why there may be no ``sluice_torch.so``."""
    if folder := os.environ.get("SLUICE_LIBRARY_DIR"):
        return f"SLUICE_LIBRARY_DIR names {folder}"
    return (
        "this Sluice was built without Torch operators; in an environment with Torch 2.11 or later: "
        "pip install --no-build-isolation ."
    )


@cache
def library() -> ctypes.CDLL:
    """The library with its functions' types set. Raises ``ImportError`` where it is not there."""
    path = library_folder() / LIBRARY
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"{path}: {error}; install the package (pip install .), or name a build's folder of "
            f"libraries in SLUICE_LIBRARY_DIR"
        ) from error
    device, problem, failure = POINTER(CDevice), POINTER(CProblem), POINTER(CError)
    plan_pointer, options = POINTER(CPlan), POINTER(COptions)
    for name, result, arguments in (
        ("sluice_version", c_char_p, []),
        ("sluice_dtype_name", c_char_p, [c_int32]),
        ("sluice_op_name", c_char_p, [c_int32]),
        ("sluice_activation_name", c_char_p, [c_int32]),
        ("sluice_problem_init", c_int32, [problem, c_size_t, failure]),
        ("sluice_cpu_device", c_int32, [device, c_size_t, failure]),
        ("sluice_limit_simd", c_int32, [device, c_char_p, failure]),
        ("sluice_cuda_device_count", c_int32, []),
        ("sluice_cuda_device", c_int32, [c_int32, device, c_size_t, failure]),
        ("sluice_variant_name", c_char_p, [c_int32, c_int32]),
        ("sluice_validate", c_int32, [problem, failure]),
        (
            "sluice_operand_query",
            c_int32,
            [problem, c_int32, POINTER(COperandSpec), c_size_t, failure],
        ),
        ("sluice_cost", c_int32, [problem, POINTER(c_double), POINTER(c_double), failure]),
        ("sluice_plan_init", c_int32, [plan_pointer, problem, device, options, failure]),
        ("sluice_run", c_int32, [plan_pointer, POINTER(CRunArgs), failure]),
        ("sluice_plan_workspace_bytes", c_size_t, [plan_pointer]),
        ("sluice_plan_peer_bytes", c_size_t, [plan_pointer]),
        ("sluice_plan_variant", c_char_p, [plan_pointer]),
        ("sluice_plan_config", c_char_p, [plan_pointer]),
        ("sluice_plan_source", c_int32, [plan_pointer]),
        ("sluice_plan_threads", c_int32, [plan_pointer]),
        (
            "sluice_explain",
            c_int32,
            [problem, device, options, c_char_p, c_size_t, POINTER(c_size_t), failure],
        ),
    ):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def _check(code: int, error: CError) -> None:
    if code != 0:
        raise _ERRORS.get(code, SluiceError)(code, error.message.decode(errors="replace"))


def version() -> str:
    """The version of the library that is loaded."""
    return library().sluice_version().decode()


@dataclass(frozen=True)
class DeviceInfo:
    """What the library knows of a device; fields as in ``sluice/device.hpp``. Zero where a number
    does not apply or is not known."""

    index: str  # "cpu", "cuda:0"
    name: str
    arch: str
    compute_capability: int
    sm_count: int
    threads: int
    simd_targets: tuple[str, ...]
    l2_bytes: int
    memory_bytes: int
    memory_bytes_per_second: int
    driver_version: int
    runtime_version: int
    cublaslt_version: int
    slow_bf16_products: bool


@dataclass(frozen=True)
class Info:
    """What ``info()`` found."""

    version: str
    library: Path
    devices: tuple[DeviceInfo, ...]
    variants: dict[str, tuple[str, ...]]  # backend -> names, best first


@dataclass(frozen=True)
class PlanInfo:
    """What the library would run for a problem, and its costs."""

    variant: str
    config: str
    source: str  # one of SOURCES
    threads: int
    workspace_bytes: int
    flops: float
    bytes_moved: float


def _fits(field: str, value: int, kind: type[c_int32 | c_int64]) -> int:
    """``value``, which ctypes would cut to the kind's bits without a word."""
    try:
        value = index(value)
    except TypeError:
        raise InvalidArgument(1, f"{field}: got {value!r}, wanted an integer") from None
    if kind(value).value != value:
        raise InvalidArgument(1, f"{field}: got {value}, wanted what {8 * sizeof(kind)} bits hold")
    return value


def _cuda_device(ordinal: int) -> CDevice:
    error = CError()
    _fits("device", ordinal, c_int32)
    found = CDevice()
    _check(
        library().sluice_cuda_device(ordinal, byref(found), sizeof(found), byref(error)),
        error,
    )
    return found


def _cpu_device() -> CDevice:
    """Held to the SIMD target that SLUICE_MAX_SIMD names, as in the command and the Torch operators."""
    error = CError()
    found = CDevice()
    _check(library().sluice_cpu_device(byref(found), sizeof(found), byref(error)), error)
    most = os.environ.get("SLUICE_MAX_SIMD", "").encode()
    _check(library().sluice_limit_simd(byref(found), most, byref(error)), error)
    return found


def _text(field: str, value: str | None) -> bytes | None:
    """``value`` for C, where a zero would end it."""
    if value is None:
        return None
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{field}: got {value!r}, wanted a name")
    return value.encode()


def _device(name: str) -> CDevice:
    backend, _, ordinal = name.partition(":") if isinstance(name, str) else (name, "", "")
    if backend == "cpu" and not ordinal:
        return _cpu_device()
    if backend == "cuda" and (not ordinal or ordinal.isdecimal()):
        return _cuda_device(int(ordinal or 0))
    raise ValueError(f"device: got {name!r}, wanted 'cpu', 'cuda' or 'cuda:N'")


def _described(device: CDevice) -> DeviceInfo:
    backend = BACKENDS[device.backend]
    return DeviceInfo(
        index=backend if backend == "cpu" else f"{backend}:{device.ordinal}",
        name=device.name.decode(),
        arch=ARCHS[device.arch],
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        threads=device.threads,
        simd_targets=tuple(
            target for bit, target in enumerate(SIMD_TARGETS) if device.simd_targets >> bit & 1
        ) if backend == "cpu" else (),
        l2_bytes=device.l2_bytes,
        memory_bytes=device.memory_bytes,
        memory_bytes_per_second=device.memory_bytes_per_second,
        driver_version=device.driver_version,
        runtime_version=device.runtime_version,
        cublaslt_version=device.cublaslt_version,
        slow_bf16_products=device.slow_bf16_products != 0,
    )  # fmt: skip


def variants(backend: str) -> tuple[str, ...]:
    """Names of a backend's variants, best first; none where this build lacks it. Touches no device."""
    index = _one_of("backend", backend, BACKENDS)
    names: list[str] = []
    while name := library().sluice_variant_name(index, len(names)):
        names.append(name.decode())
    return tuple(names)


def info() -> Info:
    """The library, the devices of this machine and the variants of this build.

    Raises ``ImportError`` where the library cannot be loaded."""
    devices = [_cpu_device()]
    devices += [_cuda_device(i) for i in range(library().sluice_cuda_device_count())]
    return Info(
        version=version(),
        library=library_folder() / LIBRARY,
        devices=tuple(_described(device) for device in devices),
        variants={name: variants(name) for name in BACKENDS},
    )


def _one_of(field: str, value: str, names: tuple[str, ...]) -> int:
    if value not in names:
        raise ValueError(f"{field}: got {value!r}, wanted one of {', '.join(names)}")
    return names.index(value)


def _problem(
    op: str, m: int, d: int, h: int, dtype: str, weight_dtype: str | None, gate: Gate,
    flags: dict[str, Any],
) -> CProblem:  # fmt: skip
    if not isinstance(gate, Gate):
        raise ValueError(f"gate: got {gate!r}, wanted a Gate, such as Gate('gelu_tanh')")
    problem = CProblem()
    error = CError()
    _check(library().sluice_problem_init(byref(problem), sizeof(problem), byref(error)), error)
    problem.op = _one_of("op", "down" if op == "linear" else op, OPS)
    problem.norm.enabled = int(op == "norm")
    for field, value in (("m", m), ("d", d), ("h", h)):
        setattr(problem, field, _fits(field, value, c_int64))
    problem.x_dtype = problem.y_dtype = _one_of("dtype", dtype, DTYPES)
    problem.w_dtype = _one_of("weight_dtype", weight_dtype or dtype, WEIGHT_DTYPES)
    if problem.w_dtype < len(DTYPES):  # gradients are never in blocks
        problem.dw_dtype = problem.w_dtype
    for field, _ in CGate._fields_:
        value = gate.code if field == "activation" else getattr(gate, field)
        setattr(problem.gate, field, value)
    for field, value in flags.items():
        if field not in FLAGS:
            raise TypeError(f"{field}: no such flag, wanted one of {', '.join(FLAGS)}")
        setattr(problem, field, _fits(field, int(value), c_int32))
    return problem


def _options(
    variant: str | None, config: str | None, threads: int = 0, experimental: bool = False
) -> COptions:
    options = COptions()
    options.struct_size = sizeof(COptions)
    options.variant = _text("variant", variant)
    options.config = _text("config", config)
    options.threads = _fits("threads", threads, c_int32)
    options.experimental = int(experimental)
    return options


def plan(
    m: int, d: int, h: int, *, op: str = "mlp", dtype: str = "bf16",
    weight_dtype: str | None = None, gate: Gate = Gate(), device: str = "cpu",
    variant: str | None = None, config: str | None = None, threads: int = 0,
    experimental: bool = False, **flags: bool,
) -> PlanInfo:  # fmt: skip
    """What the library would run for M tokens, width D, hidden width H with contiguous operands.

    ``flags``: ``bias_gate_up, bias_down, save_g_u, recompute, save_dg_du, weights_static,
    round_gate``.
    Operator ``norm`` reads no H: pass 0.
    ``variant`` and ``config`` (``"mlp=avx2"``) force a choice, ``experimental`` adds variants that
    nobody has run. Raises ``InvalidArgument`` (a ``ValueError``) for a problem that is not legal or
    a name that does not exist, ``Unsupported`` (a ``NotImplementedError``) where no variant takes
    it or the device is not there.
    """
    problem = _problem(op, m, d, h, dtype, weight_dtype, gate, flags)
    lib, error, made = library(), CError(), CPlan()
    options, where = _options(variant, config, threads, experimental), _device(device)
    _check(
        lib.sluice_plan_init(
            byref(made), byref(problem), byref(where), byref(options), byref(error)
        ),
        error,
    )
    flops, moved = c_double(), c_double()
    _check(lib.sluice_cost(byref(problem), byref(flops), byref(moved), byref(error)), error)
    return PlanInfo(
        variant=lib.sluice_plan_variant(byref(made)).decode(),
        config=lib.sluice_plan_config(byref(made)).decode(),
        source=SOURCES[lib.sluice_plan_source(byref(made))],
        threads=lib.sluice_plan_threads(byref(made)),
        workspace_bytes=lib.sluice_plan_workspace_bytes(byref(made)),
        flops=flops.value,
        bytes_moved=moved.value,
    )


def explain(
    m: int, d: int, h: int, *, op: str = "mlp", dtype: str = "bf16",
    weight_dtype: str | None = None, gate: Gate = Gate(), device: str = "cpu", **flags: bool,
) -> str:  # fmt: skip
    """One line a variant of the device's backend, chosen, or refused with the reason; then what the
    chosen one is there for, and one a step of it: its kernel, its config and its blocks. Arguments
    and errors as ``plan``, but a problem that no variant takes is not an error."""
    problem = _problem(op, m, d, h, dtype, weight_dtype, gate, flags)
    lib, error, where = library(), CError(), _device(device)
    _check(lib.sluice_validate(byref(problem), byref(error)), error)  # else its error is the text
    needed = c_size_t()
    arguments = (byref(problem), byref(where), None)
    _check(lib.sluice_explain(*arguments, None, 0, byref(needed), byref(error)), error)
    text = ctypes.create_string_buffer(needed.value)
    _check(lib.sluice_explain(*arguments, text, needed.value, None, byref(error)), error)
    return text.value.decode()
