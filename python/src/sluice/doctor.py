# SPDX-License-Identifier: Apache-2.0
"""``python -m sluice doctor``: what of Sluice works in this Python, and what it found to work with.

One line a fact: ``ok``, ``no`` (not there, and not needed) or ``BAD``. Exit status 0, or 1 where a
line is BAD: the library does not load, or a part of the package that is installed does not work.
Engines and Torch are looked up by their metadata; Torch is imported only where the package carries
the operators for it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice import capi, serving, sglang, vllm
from sluice.pipe import end_with_reader, print_lines

ENGINES = ("transformers", "vllm", "sglang")
# Of each engine the entry points' group, the variable that limits which are loaded, and the plug-in.
PLUGINS = (
    ("vllm.general_plugins", "VLLM_PLUGINS", vllm.PLUGIN),
    ("sglang.srt.plugins", "SGLANG_PLUGINS", sglang.PLUGIN),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    state: str  # ok, no, BAD
    subject: str
    text: str


def _library() -> Iterator[Finding]:
    try:
        found = capi.info()
    except (ImportError, capi.SluiceError) as error:
        yield Finding("BAD", "library", str(error))
        return
    yield Finding("ok", "library", f"{found.version}, {found.library}")
    for device in found.devices:
        if device.index == "cpu":
            text = f"{device.threads} threads, SIMD {' '.join(device.simd_targets)}"
        else:
            text = f"compute capability {device.compute_capability / 10}, {device.sm_count} SMs"
        yield Finding("ok", device.index, f"{device.name}, {text}")
    for backend, names in found.variants.items():
        state = "ok" if names else "no"
        yield Finding(
            state, f"{backend} variants", ", ".join(names) or "none: built without this backend"
        )


def _driver() -> Finding:
    """The CUDA driver, asked without initialising it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding("no", "CUDA driver", "none (libcuda.so.1)")
    number = ctypes.c_int()
    code = driver.cuDriverGetVersion(ctypes.byref(number))
    if code != 0:
        return Finding("no", "CUDA driver", f"cuDriverGetVersion returned {code}")
    return Finding("ok", "CUDA driver", f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}")


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Iterator[Finding]:
    version = _installed("torch")
    yield Finding("ok" if version else "no", "Torch", version or "not installed")
    operators = capi.library_folder() / "sluice_torch.so"
    if not operators.is_file():
        yield Finding("no", "Torch operators", f"{operators} is not there: {capi.without_operators()}")
    elif version:
        try:
            from sluice import torch_operators
        except (ImportError, OSError) as error:
            yield Finding("BAD", "Torch operators", str(error))
        else:
            yield Finding("ok", "Torch operators", ", ".join(torch_operators.OPERATORS))


def _engines() -> Iterator[Finding]:
    for name in ENGINES:
        version = _installed(name)
        yield Finding("ok" if version else "no", name, version or "not installed")


def _asks(name: str, limit: str, plugin: serving.Plugin) -> str:
    """What the plug-in would do in its engine; starts with "off" where the engine stays as it is."""
    allowed = os.environ.get(limit)
    limited = bool(allowed) if plugin.engine == "SGLang" else allowed is not None  # "": vLLM loads none
    if limited and name not in (word.strip() for word in str(allowed).split(",")):
        return f"off: {limit}={allowed}"
    try:
        wanted = plugin.mode()
        if wanted != "off":
            if _installed(plugin.engine.lower()) is None:
                return f"off: {plugin.engine} is not installed"
            serving.check_fit()
    except (serving.Unavailable, ImportError, capi.SluiceError) as reason:
        return f"off: {reason}"
    said = wanted
    for part in plugin.parts:
        try:
            plugin.part_mode(part)
        except serving.Unavailable as reason:
            said += f", no {serving.PARTS[part]}: {reason}"
    return said


def _plugins() -> Iterator[Finding]:
    for group, limit, plugin in PLUGINS:
        for point in importlib.metadata.entry_points(group=group):
            if point.value.startswith("sluice"):
                asked = _asks(point.name, limit, plugin)
                state = "no" if asked.startswith("off") else "ok"
                yield Finding(state, "plug-in", f"{group}: {point.name} = {point.value}, {asked}")


def _program() -> Finding:
    program = Path(__file__).parent / "bin" / "sluice"
    if program.is_file():
        return Finding("ok", "command line", str(program))
    return Finding("no", "command line", "not in this package (run from a source tree)")


def findings() -> Iterator[Finding]:
    """Everything that ``doctor`` prints, in order."""
    yield Finding("ok", "Python", f"{platform.python_version()}, {sys.executable}")
    yield from _library()
    yield _driver()
    yield _program()
    yield from _torch()
    yield from _engines()
    yield from _plugins()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    argparse.ArgumentParser(
        prog="python -m sluice doctor", description="Check this installation of Sluice."
    ).parse_args(arguments)
    bad = False

    def lines() -> Iterator[str]:
        nonlocal bad
        for finding in findings():
            bad = bad or finding.state == "BAD"
            yield f"{finding.state:<4} {finding.subject:<15} {finding.text}"

    return int(not print_lines("sluice doctor", lines()) or bad)


if __name__ == "__main__":
    end_with_reader()
    sys.exit(main())
