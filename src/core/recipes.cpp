// SPDX-License-Identifier: Apache-2.0
// The recipes: which kernels compute which steps, what is preferred where, and why.
#include "core/choices.hpp"
#include "cpu/kernel_rows.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/kernel_rows.hpp"
#endif

namespace sluice::detail {
namespace {

template <const Kernel& kKernel>
constexpr const Kernel* kOnly[] = {&kKernel};

#if defined(SLUICE_WITH_CUDA)

constexpr const Kernel* kDecode[] = {&cuda::kSm90Decode, &cuda::kNorm, &cuda::kAllReduce};
constexpr const Kernel* kSm90[] = {&cuda::kCublasLt, &cuda::kSm90Gemm, &cuda::kNorm,
                                   &cuda::kColumnSum, &cuda::kAllReduce};
constexpr const Kernel* kSm80[] = {&cuda::kSm80Decode, &cuda::kSm80Gemm, &cuda::kNorm,
                                   &cuda::kAllReduce};

// A GEMM of this library's beside cuBLASLt's of the same step.
Reason sm90_yields(const Problem& p, const Problem& step, const Device& device,
                   const Kernel& kernel) noexcept {
  return &kernel == &cuda::kCublasLt ? cuda::cublaslt_yields(p, step, device) : Reason{};
}

// The decode kernel beside the tiles.
Reason sm80_yields(const Problem&, const Problem& /*step*/, const Device& device,
                   const Kernel& kernel) noexcept {
  return &kernel == &cuda::kSm80Decode ? cuda::sm80_decode_yields(device) : Reason{};
}

#endif

constexpr Recipe kRecipes[] = {
#if defined(SLUICE_WITH_CUDA)
    // Up to 64 tokens on Hopper: a stream of weights, mlp in two launches that overlap.
    {.name = "cuda.sm90_decode",
     .backend = Backend::kCuda,
     .kernels = kDecode,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .norm_yields = cuda::deferred_norm_yields,
     .pairs = cuda::decode_pairs},
    // Hopper's tensor cores; plain products by cuBLASLt where that is faster.
    {.name = "cuda.sm90",
     .backend = Backend::kCuda,
     .kernels = kSm90,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateUpGrad, Op::kMlpGrad, Op::kInputGrad,
             Op::kWeightGrad},
     .yields = sm90_yields},
    // mma.sync, on Ampere and newer: up to 64 tokens a stream of weights, else tiles.
    {.name = "cuda.sm80",
     .backend = Backend::kCuda,
     .kernels = kSm80,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .yields = sm80_yields},
    {.name = "cuda.norm", .backend = Backend::kCuda, .kernels = kOnly<cuda::kNorm>},
    {.name = "cuda.elementwise", .backend = Backend::kCuda, .kernels = kOnly<cuda::kElementwise>},
    // Any GPU, every operator.
    {.name = "cuda.simt", .backend = Backend::kCuda, .kernels = kOnly<cuda::kSimt>},
#endif
    {.name = "cpu.simd", .backend = Backend::kCpu, .kernels = kOnly<cpu::kSimd>},
    {.name = "cpu.reference",
     .backend = Backend::kCpu,
     .kernels = kOnly<cpu::kReference>,
     .for_checking = true},
};

}  // namespace

std::span<const Recipe> recipes() noexcept { return kRecipes; }

}  // namespace sluice::detail
