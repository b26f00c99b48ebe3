# SPDX-License-Identifier: Apache-2.0
"""The gate of the MLP: the activation and its run-time parameters, as ``sluice_gate`` has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

# The order is that of SLUICE_SILU and its followers in sluice.h; tests/python holds it to that.
ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "identity")


@dataclass(frozen=True)
class Gate:
    """``h = output_multiplier * act(min(gate_multiplier * g, limit))
    * (clamp(u, -limit, limit) + up_offset)``

    ``activation`` is one of ``ACTIVATIONS``; silu is ``v * sigmoid(alpha * v)``, and only silu and
    sigmoid take an ``alpha`` other than 1. ``limit`` is above 0, or infinity for no clamp. Raises
    ``ValueError`` for an activation that does not exist and for what is no number; the library checks the numbers.
    """

    activation: str = "silu"
    alpha: float = 1.0
    limit: float = math.inf
    up_offset: float = 0.0
    gate_multiplier: float = 1.0
    output_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation: got {self.activation!r}, wanted one of {', '.join(ACTIVATIONS)}"
            )
        for field in fields(self)[1:]:
            if not isinstance(value := getattr(self, field.name), Real):
                raise ValueError(f"{field.name}: got {value!r}, wanted a number")

    @property
    def code(self) -> int:
        """The activation's value in ``sluice_activation``."""
        return ACTIVATIONS.index(self.activation)

    @property
    def arguments(self) -> tuple[int, float, float | None, float, float, float]:
        """As the Torch operators take it; no limit for infinity."""
        limit = None if self.limit == math.inf else self.limit
        return (self.code, self.alpha, limit, self.up_offset, self.gate_multiplier,
                self.output_multiplier)  # fmt: skip

    @staticmethod
    def clamped_swiglu() -> Gate:
        """gpt-oss's: silu with alpha 1.702, limit 7, up + 1."""
        return Gate("silu", alpha=1.702, limit=7.0, up_offset=1.0)


def checked(gate: Gate) -> Gate:
    """``gate``; raises ``TypeError`` for what is none, as the name of an activation."""
    if not isinstance(gate, Gate):
        raise TypeError(f"gate: got {gate!r}, wanted a sluice.Gate")
    return gate
