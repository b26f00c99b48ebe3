// SPDX-License-Identifier: Apache-2.0
// The recipes: which kernels compute which steps, what is preferred where, and why.
#include "core/choices.hpp"
#include "cpu/kernel_rows.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/kernel_rows.hpp"
#endif

namespace sluice::detail {
namespace {

using KernelList = std::span<const Kernel* const>;

// A recipe of one step.
template <const Kernel& kKernel>
KernelList whole(Role role) noexcept {
  static constexpr const Kernel* kOnly[] = {&kKernel};
  return role == Role::kWhole ? KernelList(kOnly) : KernelList{};
}

#if defined(SLUICE_WITH_CUDA)

constexpr const Kernel* kNorms[] = {&cuda::kNorm};
constexpr const Kernel* kColumnSums[] = {&cuda::kColumnSum};
constexpr const Kernel* kAllReduces[] = {&cuda::kAllReduce};

KernelList decode(Role role) noexcept {
  static constexpr const Kernel* kDecode[] = {&cuda::kSm90Decode};
  if (role == Role::kNorm) return kNorms;
  if (role == Role::kAllReduce) return kAllReduces;
  return role == Role::kGateUp || role == Role::kDown ? KernelList(kDecode) : KernelList{};
}

KernelList sm90(Role role) noexcept {
  static constexpr const Kernel* kOwn[] = {&cuda::kSm90Gemm};
  static constexpr const Kernel* kPlain[] = {&cuda::kCublasLt, &cuda::kSm90Gemm};
  switch (role) {
    case Role::kWhole:
      return {};
    case Role::kNorm:
      return kNorms;
    case Role::kGateUpGrad:
      return kOwn;
    case Role::kGateUp:
    case Role::kDown:
    case Role::kInputGrad:
    case Role::kWeightGrad:
    case Role::kWeightGradDown:
      return kPlain;
    case Role::kColumnSumGate:
    case Role::kColumnSumUp:
    case Role::kColumnSumDown:
      return kColumnSums;
    case Role::kAllReduce:
      return kAllReduces;
  }
  return {};
}

KernelList sm80(Role role) noexcept {
  static constexpr const Kernel* kOwn[] = {&cuda::kSm80Decode, &cuda::kSm80Gemm};
  if (role == Role::kNorm) return kNorms;
  if (role == Role::kAllReduce) return kAllReduces;
  return role == Role::kGateUp || role == Role::kDown ? KernelList(kOwn) : KernelList{};
}

KernelList norm(Role role) noexcept {
  return role == Role::kNorm ? KernelList(kNorms) : KernelList{};
}

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
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .kernels = decode,
     .norm_yields = cuda::deferred_norm_yields,
     .pairs = cuda::decode_pairs},
    // Hopper's tensor cores; plain products by cuBLASLt where that is faster.
    {.name = "cuda.sm90",
     .backend = Backend::kCuda,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateUpGrad, Op::kMlpGrad, Op::kInputGrad,
             Op::kWeightGrad},
     .kernels = sm90,
     .yields = sm90_yields},
    // mma.sync, on Ampere and newer: up to 64 tokens a stream of weights, else tiles.
    {.name = "cuda.sm80",
     .backend = Backend::kCuda,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .kernels = sm80,
     .yields = sm80_yields},
    {.name = "cuda.norm", .backend = Backend::kCuda, .ops = {Op::kNorm}, .kernels = norm},
    {.name = "cuda.elementwise",
     .backend = Backend::kCuda,
     .ops = {Op::kGateMul, Op::kGateMulGrad},
     .kernels = whole<cuda::kElementwise>},
    // Any GPU, every operator.
    {.name = "cuda.simt",
     .backend = Backend::kCuda,
     .ops = OpSet::all(),
     .kernels = whole<cuda::kSimt>},
#endif
    {.name = "cpu.simd",
     .backend = Backend::kCpu,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul, Op::kGateMulGrad, Op::kGateUpGrad,
             Op::kMlpGrad, Op::kNorm},
     .kernels = whole<cpu::kSimd>},
    {.name = "cpu.reference",
     .backend = Backend::kCpu,
     .ops = OpSet::all(),
     .kernels = whole<cpu::kReference>,
     .for_checking = true},
};

}  // namespace

std::span<const Recipe> recipes() noexcept { return kRecipes; }

}  // namespace sluice::detail
