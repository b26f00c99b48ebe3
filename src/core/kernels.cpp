// SPDX-License-Identifier: Apache-2.0
// kKernels: every kernel of the library, one row each. This file and recipes.cpp are the only
// places where core names a backend.
#include "core/kernels.hpp"

#include "cpu/kernel_rows.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/kernel_rows.hpp"
#endif

namespace sluice::detail {
namespace {

constexpr const Kernel* kKernels[] = {
#if defined(SLUICE_WITH_CUDA)
    &cuda::kSm90Decode,   // Hopper, up to 64 tokens: gate_up (with a deferred norm), down
    &cuda::kSm90Gemm,     // Hopper's tensor cores: gate_up, down, the products of the backward pass
    &cuda::kCublasLt,     // cuBLASLt's plain products: down and gradients
    &cuda::kSm80Decode,   // mma.sync, up to 64 tokens: gate_up, down
    &cuda::kSm80Gemm,     // mma.sync: gate_up, down
    &cuda::kNorm,         // RMSNorm, add + RMSNorm
    &cuda::kAllReduce,    // y summed over ranks, and the next RMSNorm
    &cuda::kElementwise,  // the gate alone, at the speed of memory
    &cuda::kColumnSum,    // biases' gradients
    &cuda::kSimt,         // any GPU, every operator
#endif
    &cpu::kSimd,       // every operator but fp64
    &cpu::kReference,  // everything, in fp64
};

}  // namespace

std::span<const Kernel* const> kernels() noexcept { return kKernels; }

}  // namespace sluice::detail
