// SPDX-License-Identifier: Apache-2.0
// kVariants: every kernel of the library, best first. One row a kernel; this file is the only place
// where core names a backend.
#include "cpu/variants.hpp"

#include "core/variant.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/variants.hpp"
#endif

namespace sluice::detail {
namespace {

constexpr Variant kVariants[] = {
#if defined(SLUICE_WITH_CUDA)
    cuda::kSm90DecodeChain,      // Hopper, mlp in two launches; bf16's norm up to 8 tokens
    cuda::kSm90DecodeChainNorm,  // the same behind a launch of the norm: any norm
    cuda::kSm90Decode,           // mlp in one launch, with norm; gate_up, down
    cuda::kSm90CublasLt,         // the next with cuBLASLt's plain products, where those are faster
    cuda::kSm90,                 // Hopper's tensor cores: prefill, training
    cuda::kSm90CublasLtNorm,     // both behind a launch of the norm
    cuda::kSm90Norm,
    cuda::kSm80,         // mma.sync: prefill
    cuda::kSm80Norm,     // the same behind a launch of the norm
    cuda::kElementwise,  // the gate alone, at the speed of memory
    cuda::kSimt,         // any GPU, every operator
#endif
    cpu::kSimd,       // every operator but fp64
    cpu::kReference,  // everything, in fp64
};

}  // namespace

std::span<const Variant> variants() noexcept { return kVariants; }

}  // namespace sluice::detail
