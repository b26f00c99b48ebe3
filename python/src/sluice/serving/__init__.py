# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins of vLLM and SGLang share: the switch in the environment and the entry point here, the
recognition of MLPs in ``layers``, the operators and the choice between kernels in ``operators``. This module
imports neither Torch nor an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from sluice import capi

MODES = ("auto", "force", "off")
PARTS = {"LINEARS": "linear layers", "SUMS": "sums over ranks"}  # of what an engine may leave to Sluice


class Unavailable(RuntimeError):
    """Why an engine stays as it is."""


def check_fit() -> None:
    """Raises ``Unavailable`` where this build has nothing for an engine."""
    if not capi.variants("cuda"):
        raise Unavailable("this Sluice was built without CUDA")


@dataclass
class Plugin:
    """The entry point of one engine. ``variable`` is the switch in the environment, ``start`` what registers
    with the engine in a mode other than ``off``; it returns what there is to say about it, if anything."""

    engine: str
    variable: str
    log: logging.Logger
    start: Callable[[str], str | None]
    parts: tuple[str, ...] = ("LINEARS",)
    registered: bool = False

    def mode(self) -> str:
        """What the switch asks for. Raises ``Unavailable`` for an unknown word."""
        word = os.environ.get(self.variable) or "auto"
        if word not in MODES:
            raise Unavailable(f"{self.variable}: got {word!r}, wanted one of {', '.join(MODES)}")
        return word

    def part_mode(self, part: str) -> str:
        """What ``<variable>_<part>`` asks for. Raises ``Unavailable`` for another word than auto and off."""
        variable = f"{self.variable}_{part}"
        word = os.environ.get(variable) or "auto"
        if word not in ("auto", "off"):
            raise Unavailable(f"{variable}: got {word!r}, wanted one of auto, off")
        return word

    def serves(self, part: str) -> bool:
        """Does ``<variable>_<part>`` leave one of ``PARTS`` to Sluice? An unknown word does not, with a line of log."""
        try:
            return self.part_mode(part) == "auto"
        except Unavailable as reason:
            self.log.warning("Sluice: no %s: %s", PARTS[part], reason)
            return False

    def register(self) -> None:
        """Acts once a process and raises nothing; where something fails, one line of log says why."""
        if self.registered:
            return
        self.registered = True
        try:
            wanted = self.mode()
            if wanted != "off":
                check_fit()
                said = self.start(wanted)
                if said:
                    self.log.info("Sluice: %s", said)
        except Unavailable as reason:
            self.log.warning("Sluice: not used: %s", reason)
        except Exception as error:  # noqa: BLE001
            self.log.warning("Sluice: not used: %s: %s", type(error).__name__, error)
