# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in: the gated MLPs of SGLang's models, and the add + RMSNorms before them, by Sluice.

SGLang finds ``register`` through the entry point group ``sglang.srt.plugins`` and calls it in each of its
processes; nothing has to be imported or changed. ``SLUICE_SGLANG`` in the environment says what it does:

``auto``   the default: Sluice serves the token counts at which it measured itself to be faster than
           SGLang's own kernels, when the model was started, alone or with cuBLAS; SGLang's serve the others
``force``  Sluice serves every token count: the same choice in every run
``off``    SGLang stays as it is

``SLUICE_SGLANG_LINEARS`` does the same for QKV, output projection and router at up to 64 tokens: ``auto``, the
default, or ``off``.

Any version of SGLang whose classes have the form is served; which and when: ``classes``. What it shares with
vLLM's plug-in: ``sluice.serving``.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import Any

from sluice.serving import Plugin, Unavailable

MODELS = ("sglang.srt.models.",)


def _serve(module: ModuleType) -> None:
    # Imported with the first model, since not every process of SGLang has one.
    importlib.import_module("sluice.sglang.classes").serve(module)


def _tp_group() -> Any:
    """None under data-parallel attention, where ranks have other tokens, or none."""
    from sglang.srt.distributed import get_tp_group
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled

    return None if is_dp_attention_enabled() else get_tp_group()


def _start(wanted: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.utils import is_cuda

    assert HookRegistry
    if not is_cuda():
        raise Unavailable("no NVIDIA GPU")

    from sluice.serving import operators
    from sluice.serving.layers import OnImport

    operators.configure(wanted, PLUGIN.log, _tp_group)
    operators.load()
    OnImport(MODELS, _serve, PLUGIN.log)


PLUGIN = Plugin("SGLang", "SLUICE_SGLANG", logging.getLogger("sluice.sglang"), _start)


def register() -> None:
    """The entry point. Does what it does once a process, raises nothing, and does not touch the GPU. It warns
    where SGLang stays as it is; what is served is said when a model first runs, since SGLang sets its log up
    after its plug-ins."""
    PLUGIN.register()
