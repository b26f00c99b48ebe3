# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in: the gated MLPs of vLLM's models, and the add + RMSNorms around them, by Sluice.

vLLM finds ``register`` through the entry point group ``vllm.general_plugins`` and calls it in each of its
processes; nothing has to be imported or changed. ``SLUICE_VLLM`` in the environment says what it does:

``auto``   the default: Sluice serves the token counts at which it measured itself to be faster than
           vLLM's own kernels, when the model was started, alone or with cuBLAS; vLLM's serve the others
``force``  Sluice serves every token count: the same choice in every run
``off``    vLLM stays as it is

Which classes and when: ``classes``. The operators that vLLM's compiled graphs call: ``operators``.
"""

from __future__ import annotations

import logging
import os

from sluice import capi

MODES = ("auto", "force", "off")
VERSIONS = ("0.23.",)  # whose classes were read; `force` tries others too
CACHE_TAG = "SLUICE_CACHE_TAG"
OPERATORS_REVISION = 2  # of schemas and traced code: compiled graphs of another one are no use

_log = logging.getLogger("vllm.sluice")  # below vLLM's own logger, which has the handlers
_registered = False


class Unavailable(RuntimeError):
    """Why vLLM stays as it is."""


def mode() -> str:
    """What ``SLUICE_VLLM`` asks for. Raises ``Unavailable`` for a word that means nothing."""
    word = os.environ.get("SLUICE_VLLM") or "auto"
    if word not in MODES:
        raise Unavailable(f"SLUICE_VLLM: got {word!r}, wanted one of {', '.join(MODES)}")
    return word


def check_fit(wanted: str, version: str) -> None:
    """Raises ``Unavailable`` where this package is none for vLLM of that version, in that mode."""
    if wanted != "force" and not version.startswith(VERSIONS):
        raise Unavailable(f"made for vLLM {', '.join(v + 'x' for v in VERSIONS)}, this is "
                          f"{version}; SLUICE_VLLM=force tries it")  # fmt: skip
    if not capi.variants("cuda"):
        raise Unavailable("this Sluice was built without CUDA")


def register() -> None:
    """The entry point. Does what it does once a process, raises nothing (vLLM would end), says in one
    line what it did, and does not touch the GPU (vLLM may fork after it)."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        wanted = mode()
        if wanted != "off":
            _log.info("Sluice: %s", _register(wanted))
    except Unavailable as reason:
        _log.warning("Sluice: not used: %s", reason)
    except Exception as error:  # noqa: BLE001
        _log.warning("Sluice: not used: %s: %s", type(error).__name__, error)


def _register(wanted: str) -> str:
    import vllm
    from vllm import envs
    from vllm.platforms import current_platform

    check_fit(wanted, vllm.__version__)
    if not (current_platform.is_cuda() and current_platform.has_device_capability(80)):
        raise Unavailable("no GPU of compute capability 8.0 or later")
    if envs.VLLM_BATCH_INVARIANT:
        raise Unavailable("VLLM_BATCH_INVARIANT is set, and the choice of kernels goes by the batch")

    from sluice.vllm import classes, operators

    operators.set_mode(wanted)
    patched = classes.patch()
    # vLLM keys its compiled graphs by the model's own source and by these.
    tag = f"{capi.version()} {wanted} {OPERATORS_REVISION}"
    envs.environment_variables[CACHE_TAG] = lambda: tag
    return f"{capi.version()}, {wanted}: {', '.join(patched)}"
