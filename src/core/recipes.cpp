// SPDX-License-Identifier: Apache-2.0
// The recipes: which kernels compute which steps, what is preferred where, and why.
#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "core/choices.hpp"
#include "core/lower.hpp"
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
constexpr const Kernel* kSm90[] = {&cuda::kCublasLt, &cuda::kSm90Gemm,  &cuda::kNorm,
                                   &cuda::kNormAny,  &cuda::kColumnSum, &cuda::kAllReduce};
constexpr const Kernel* kSm80[] = {&cuda::kSm80Decode, &cuda::kSm80Gemm,  &cuda::kNorm,
                                   &cuda::kNormAny,    &cuda::kColumnSum, &cuda::kAllReduce};

constexpr const Kernel* kCublasLtAny[] = {&cuda::kCublasLtAny, &cuda::kNorm, &cuda::kNormAny,
                                          &cuda::kColumnSum, &cuda::kAllReduce};

constexpr const Kernel* kSm100[] = {&cuda::kSm100, &cuda::kNorm};

// The decode kernel beside tiles.
Reason decode_outrun(const Problem& p, const Device& device) noexcept {
  const bool is_mlp = p.op == Op::kMlp;
  const bool norm_step = p.norm.enabled;
  const std::array steps{step_problem(p, is_mlp ? Role::kGateUp : role_of(p.op), norm_step),
                         step_problem(p, Role::kDown, norm_step)};
  return cuda::decode_outrun(std::span(steps).first(is_mlp ? 2 : 1), device);
}

// A GEMM of this library's beside cuBLASLt's of the same step.
Reason sm90_yields(const Problem& p, const Problem& step, const Device& device,
                   const Kernel& kernel) noexcept {
  if (&kernel != &cuda::kCublasLt) return {};
  if (p.op != Op::kMlp) return cuda::cublaslt_yields(p, step, device);
  const bool norm_step = p.norm.enabled;
  return cuda::cublaslt_yields_in_mlp(step_problem(p, Role::kGateUp, norm_step),
                                      step_problem(p, Role::kDown, norm_step), step.op, device);
}

// The decode kernel beside the tiles.
Reason sm80_yields(const Problem&, const Problem& /*step*/, const Device& device,
                   const Kernel& kernel) noexcept {
  return &kernel == &cuda::kSm80Decode ? cuda::sm80_decode_yields(device) : Reason{};
}

#endif

constexpr Recipe kRecipes[] = {
#if defined(SLUICE_WITH_CUDA)
    {.name = "cuda.sm90_decode",
     .reason = "few tokens on Hopper, 160 at most, are bandwidth-bound or nearly: the weights are "
               "streamed, those of mlp by two launches that overlap",
     .backend = Backend::kCuda,
     .kernels = kDecode,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .norm_yields = cuda::deferred_norm_yields,
     .outrun = decode_outrun,
     .pairs = cuda::decode_pairs},
    {.name = "cuda.sm90",
     .reason = "Hopper's tensor cores; by cuBLASLt where its GEMM is faster",
     .backend = Backend::kCuda,
     .kernels = kSm90,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateUpGrad, Op::kMlpGrad, Op::kInputGrad,
             Op::kWeightGrad},
     .yields = sm90_yields},
    {.name = "cuda.sm100",
     .reason = "Blackwell's tensor cores by CUTLASS; compiled, never run",
     .backend = Backend::kCuda,
     .kernels = kSm100,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp},
     .experimental = true},
    {.name = "cuda.sm80",
     .reason = "mma.sync, on Ampere and newer: tiles, or a stream of weights for up to 64 tokens "
               "on GPUs other than Hopper",
     .backend = Backend::kCuda,
     .kernels = kSm80,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateUpGrad, Op::kMlpGrad, Op::kInputGrad,
             Op::kWeightGrad},
     .yields = sm80_yields},
    {.name = "cuda.cublaslt",
     .reason = "widths and rows that are no multiples of 16 bytes, and fp32: cuBLASLt's products",
     .backend = Backend::kCuda,
     .kernels = kCublasLtAny,
     .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateUpGrad, Op::kMlpGrad, Op::kInputGrad,
             Op::kWeightGrad},
     .leaves = cuda::in_units},
    {.name = "cuda.norm",
     .reason = "RMSNorm by itself, a CTA a row",
     .backend = Backend::kCuda,
     .kernels = kOnly<cuda::kNorm>},
    {.name = "cuda.elementwise",
     .reason = "the gate by itself and its gradient, at the speed of memory",
     .backend = Backend::kCuda,
     .kernels = kOnly<cuda::kElementwise>},
    {.name = "cuda.simt",
     .reason = "any GPU, every operator, on CUDA cores",
     .backend = Backend::kCuda,
     .kernels = kOnly<cuda::kSimt>},
#endif
    {.name = "cpu.simd",
     .reason = "the CPU's threads and SIMD instructions, with sums in fp32",
     .backend = Backend::kCpu,
     .kernels = kOnly<cpu::kSimd>},
    {.name = "cpu.reference",
     .reason = "fp64, obviously right and slow: for checking, and for what no other recipe takes",
     .backend = Backend::kCpu,
     .kernels = kOnly<cpu::kReference>,
     .for_checking = true},
};
static_assert(std::all_of(std::begin(kRecipes), std::end(kRecipes),
                          [](const Recipe& recipe) { return recipe.reason != nullptr; }),
              "every recipe says why it is there");

}  // namespace

std::span<const Recipe> recipes() noexcept { return kRecipes; }

}  // namespace sluice::detail
