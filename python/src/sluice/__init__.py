# SPDX-License-Identifier: Apache-2.0
"""Sluice in Python: what the library is and would do here, and the door to its other modules.

==========================  =======================================================================
``info, plan, explain``     what the library finds here and chooses for a problem (``capi``)
``Gate``                    the activation and its parameters (``gate``)
``sluice.ops``              the operators on Torch tensors
``sluice.jax``              some of them on JAX arrays
``sluice.nn.GatedMLP``      the MLP as a Torch module
``sluice.liger``            Liger-Kernel's functions of the gate
``patch(model)``            a Hugging Face model's MLPs computed by Sluice (``patching``), and ``unpatch``
``python -m sluice``        the command line; ``python -m sluice doctor`` checks the installation
``sluice.checkpoint``       a real model's MLPs as a checkpoint for the benches
``sluice.report``           a page drawn from results files
==========================  =======================================================================

Importing ``sluice`` loads nothing but the standard library: names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.capi import DeviceInfo, Info, PlanInfo, SluiceError, explain, info, plan
    from sluice.gate import Gate
    from sluice.patching import Patched, patch, unpatch

_HOMES = {
    "DeviceInfo": "sluice.capi",
    "Gate": "sluice.gate",
    "Info": "sluice.capi",
    "Patched": "sluice.patching",
    "PlanInfo": "sluice.capi",
    "SluiceError": "sluice.capi",
    "explain": "sluice.capi",
    "info": "sluice.capi",
    "patch": "sluice.patching",
    "plan": "sluice.capi",
    "unpatch": "sluice.patching",
}

__all__ = [
    "DeviceInfo",
    "Gate",
    "Info",
    "Patched",
    "PlanInfo",
    "SluiceError",
    "explain",
    "info",
    "patch",
    "plan",
    "unpatch",
]


_MODULES = ("checkpoint", "jax", "liger", "nn", "ops", "report")  # `import sluice` is enough to name them


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("sluice.capi").version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"sluice.{name}")
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
