# SPDX-License-Identifier: Apache-2.0
"""Sluice on the memory of tensors, through its C ABI."""

from __future__ import annotations

from ctypes import Structure, byref, c_size_t, c_void_p, sizeof
from typing import Any

import torch
from rivals.case import Candidate, Case, Run, Tensors
from sluice import capi

OPERANDS = (
    "x x_residual norm_weight w_gate w_up w_down b_gate b_up b_down residual dy dh g u h y x_sum dg du dx "
    "dw_gate dw_up dw_down db_gate db_up db_down"
).split()


class COperands(Structure):
    """``sluice_operands``"""

    _fields_ = [("struct_size", c_size_t), *((name, c_void_p) for name in OPERANDS)]


class CWorkspace(Structure):
    """``sluice_workspace``"""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("header", c_void_p)]


class Operator:
    """One operator, planned; `bind` gives a run on tensors."""

    def __init__(
        self, op: str, case: Case, row_strides: dict[str, int] | None = None, **flags: bool
    ) -> None:
        """`row_strides`: bytes from row to row where they are not dense, by member of ``sluice_layouts``."""
        self.lib, self.error, self.plan = capi.library(), capi.CError(), capi.CPlan()
        self.cuda = case.device == "cuda"
        problem = capi._problem(op, case.m, case.d, case.h, case.dtype, None, case.gate, flags)
        for name, stride in (row_strides or {}).items():
            getattr(problem.layout, name).row_stride_bytes = stride
        device = capi._device("cuda:0" if self.cuda else "cpu")
        plan, options = byref(self.plan), capi._options(case.variant, None, 0)
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
        operands = COperands(struct_size=sizeof(COperands))
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(operands, name, tensor.data_ptr())
        start = (self.memory.data_ptr() + 255) // 256 * 256
        work = CWorkspace(start, self.workspace_bytes)

        def run(_keep: Any = (tensors, self.memory)) -> None:
            stream = torch.cuda.current_stream().cuda_stream if self.cuda else None
            self.check(
                self.lib.sluice_run(
                    byref(self.plan), byref(operands), work, c_void_p(stream), byref(self.error)
                )
            )

        return run

    def candidate(self, runs: list[Run], outputs: Tensors) -> Candidate:
        return Candidate(
            "sluice", runs, lambda: outputs, self.variant, self.config, self.workspace_bytes
        )
