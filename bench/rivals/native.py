# SPDX-License-Identifier: Apache-2.0
"""Sluice on the memory of tensors, through its C ABI."""

from __future__ import annotations

from ctypes import byref, pointer, sizeof
from typing import Any

import torch
from rivals.case import Candidate, Case, Run, Tensors
from sluice import capi


class Operator:
    """One operator, planned; `bind` gives a run on tensors."""

    def __init__(
        self, op: str, case: Case, row_strides: dict[str, int] | None = None,
        config: str | None = None, **flags: bool,
    ) -> None:  # fmt: skip
        """`row_strides`: bytes from row to row where they are not dense, by member of ``sluice_layouts``."""
        self.lib, self.error, self.plan = capi.library(), capi.CError(), capi.CPlan()
        self.cuda = case.device == "cuda"
        problem = capi._problem(op, case.m, case.d, case.h, case.dtype, None, case.gate, flags)
        for name, stride in (row_strides or {}).items():
            getattr(problem.layout, name).row_stride_bytes = stride
        device = capi._device("cuda:0" if self.cuda else "cpu")
        plan, options = byref(self.plan), capi._options(case.variant, config)
        self.check(
            self.lib.sluice_plan_init(
                plan, byref(problem), byref(device), byref(options), byref(self.error)
            )
        )
        self.variant = self.lib.sluice_plan_variant(plan).decode()
        self.config = self.lib.sluice_plan_config(plan).decode()
        self.workspace_bytes = int(self.lib.sluice_plan_workspace_bytes(plan))
        self.memory = torch.zeros(self.workspace_bytes + 256, dtype=torch.uint8, device=case.device)

    def check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self.error.message.decode())

    def bind(self, **tensors: torch.Tensor | None) -> Run:
        operands = capi.COperands(struct_size=sizeof(capi.COperands))
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(operands, name, tensor.data_ptr())
        start = (self.memory.data_ptr() + 255) // 256 * 256
        workspace = capi.CWorkspace(start, self.workspace_bytes)
        args = capi.CRunArgs(sizeof(capi.CRunArgs), pointer(operands), workspace)

        def run(_keep: Any = (tensors, self.memory)) -> None:
            args.stream = torch.cuda.current_stream().cuda_stream if self.cuda else None
            self.check(self.lib.sluice_run(byref(self.plan), byref(args), byref(self.error)))

        return run

    def candidate(self, runs: list[Run], outputs: Tensors) -> Candidate:
        return Candidate(
            "sluice", runs, lambda: outputs, self.variant, self.config, self.workspace_bytes
        )
