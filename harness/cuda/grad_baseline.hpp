// SPDX-License-Identifier: Apache-2.0
// The rivals of gate_up_grad: cuBLASLt for dh = dy·Wd, alone and followed by the gate's gradient.
#pragma once

#include <memory>
#include <vector>

#include "harness/baseline.hpp"
#include "harness/cuda/cublaslt.hpp"

namespace sluice::harness {

/// Appends "cublaslt+act" and "cublaslt_gemm" for a kGateUpGrad case of bf16 or fp16 whose strides
/// are multiples of 16 bytes. The gradient kernel is the library's own gate_mul_grad, in its own
/// choice of variant. Errors: those of plan() and the device.
Status add_grad_baselines(const Case& test_case, Rig& rig, const std::shared_ptr<CublasLt>& library,
                          std::vector<std::unique_ptr<Baseline>>& out);

}  // namespace sluice::harness
