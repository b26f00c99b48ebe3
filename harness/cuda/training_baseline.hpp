// SPDX-License-Identifier: Apache-2.0
// The rival of mlp_grad: what an engine runs that has cuBLASLt and a gradient kernel of the gate.
#pragma once

#include <memory>
#include <vector>

#include "harness/baseline.hpp"
#include "harness/cuda/cublaslt.hpp"

namespace sluice::harness {

/// Appends "cublaslt_chain" for a kMlpGrad case of bf16 or fp16 with the weights as [gate; up], so
/// that every product of gate and up is one GEMM: [g, u] anew where the policy is to recompute, dh,
/// the gate's gradient (the library's own gate_mul_grad), dx, the weights' gradients. Its weights'
/// gradients lie in buffers of its own. Nothing for other cases. Errors: those of plan() and the
/// device.
Status add_training_baseline(const Case& test_case, Rig& rig,
                             const std::shared_ptr<CublasLt>& library,
                             std::vector<std::unique_ptr<Baseline>>& out);

}  // namespace sluice::harness
