// SPDX-License-Identifier: Apache-2.0
// The CPU's rows of the table of kernels. Each makes one step of every operator.
#pragma once

#include "core/kernel.hpp"

namespace sluice::cpu {

// reference.cpp: fp64, slow and obviously right; takes every problem.
extern const detail::Kernel kReference;

// simd.cpp: the threaded engine; bf16, fp16 and fp32 with fp32 accumulation.
extern const detail::Kernel kSimd;
/// describe.cpp
[[nodiscard]] std::string simd_describe(const detail::StepView& step);

}  // namespace sluice::cpu
