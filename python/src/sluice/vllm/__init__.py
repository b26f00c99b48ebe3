# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in: the gated MLPs of vLLM's models, and the add + RMSNorms around them, by Sluice.

vLLM finds ``register`` through the entry point group ``vllm.general_plugins`` and calls it in each of its
processes; nothing has to be imported or changed. ``SLUICE_VLLM`` in the environment says what it does:

``auto``   the default: Sluice serves the token counts at which it measured itself, alone or with
           cuBLAS, to be faster than stand-ins of vLLM's kernels when the model was started; these
           serve the others
``force``  Sluice serves every token count: the same choice in every run
``off``    vLLM stays as it is

``SLUICE_VLLM_LINEARS`` does the same for QKV, output projection, router and head at up to 64 tokens, and
``SLUICE_VLLM_SUMS`` for the sums over tensor-parallel ranks: ``auto``, the default, or ``off``.

Any version of vLLM whose classes have the form is served; which and when: ``classes``. What it shares with
SGLang's plug-in: ``sluice.serving``.
"""

from __future__ import annotations

import logging

from sluice import capi
from sluice.serving import Plugin, Unavailable

CACHE_TAG = "SLUICE_CACHE_TAG"
OPERATORS_REVISION = 6  # of schemas and traced code: compiled graphs of another one are no use


def _start(wanted: str) -> str:
    from vllm import envs
    from vllm.distributed import get_tp_group
    from vllm.platforms import current_platform

    if not (current_platform.is_cuda() and current_platform.has_device_capability(80)):
        raise Unavailable("no GPU of compute capability 8.0 or later")
    if envs.VLLM_BATCH_INVARIANT:
        raise Unavailable("VLLM_BATCH_INVARIANT is set, and the choice of kernels goes by the batch")

    from sluice.serving import operators
    from sluice.vllm import classes

    linears, sums = PLUGIN.serves("LINEARS"), PLUGIN.serves("SUMS")
    operators.configure(wanted, PLUGIN.log, get_tp_group)
    classes.patch(linears, sums)
    # vLLM keys its compiled graphs by the model's own source and by these.
    tag = f"{capi.version()} {wanted} {OPERATORS_REVISION}" + " linears" * linears + " sums" * sums
    envs.environment_variables[CACHE_TAG] = lambda: tag
    return f"{capi.version()}, {wanted}{classes.ENGINE.linears()}"


# The logger is below vLLM's own, which has the handlers.
PLUGIN = Plugin("vLLM", "SLUICE_VLLM", logging.getLogger("vllm.sluice"), _start, ("LINEARS", "SUMS"))


def register() -> None:
    """The entry point. Does what it does once a process, raises nothing (vLLM would end), says in one
    line what it did, and does not touch the GPU (vLLM may fork after it)."""
    PLUGIN.register()
