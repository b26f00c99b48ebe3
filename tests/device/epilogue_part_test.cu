// SPDX-License-Identifier: Apache-2.0
// How a part joins the epilogue: a functor that a config names. Main loops know nothing of it.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda/sm90/gemm/launch.cuh"
#include "cuda/sm90/gemm/products.hpp"
#include "job.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

constexpr float kLimit = 0.125F;  // a number of bf16: to clamp and to round may change places

struct Clamp {
  __device__ Pair operator()(Pair h) const {
    return {fminf(fmaxf(h.lo, -kLimit), kLimit), fminf(fmaxf(h.hi, -kLimit), kLimit)};
  }
};

struct Clamped : GemmConfig<GemmKind::kGateUp, __nv_bfloat16, kGateUpTilings[0]> {
  using EpiloguePart = Clamp;
};

float number(const std::string& bits, std::size_t i) {
  std::uint16_t word = 0;
  std::memcpy(&word, bits.data() + 2 * i, 2);
  return std::bit_cast<float>(std::uint32_t{word} << 16);
}

TEST(GpuEpiloguePart, AClampOfHIsAFunctor) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  const gpu::Job job = gpu::make_job("300x512x1096:gate_up",
                                     {.variant = "cuda.sm90", .config = "gate_up=pp128x192c2g8"});
  ASSERT_OK(job.run(gpu::rig().stream()));
  ASSERT_OK(gpu::rig().synchronize());
  const std::string plain = gpu::bits_of(*job.set);
  ASSERT_OK(job.set->reset_outputs());
  const Device& device = job.plan.device;
  const Operands operands = job.set->operands();
  const Stream stream = gpu::rig().stream();
  GemmParams params;
  ASSERT_OK(encode_gate_up({.problem = job.plan.problem,
                            .operands = operands,
                            .device = device,
                            .config = job.plan.steps[0].config,
                            .stream = stream},
                           kGateUpTilings[0], params));
  ASSERT_OK(launch_config<Clamped>(
      {kGateUpTilings[0], DType::kBF16, device.ordinal, device.sm_count, stream}, params));
  ASSERT_OK(gpu::rig().synchronize());
  const std::string clamped = gpu::bits_of(*job.set);
  for (std::size_t i = 0; i < plain.size() / 2; ++i) {
    ASSERT_EQ(number(clamped, i), std::clamp(number(plain, i), -kLimit, kLimit)) << i;
  }
  EXPECT_NE(plain, clamped);
}

}  // namespace
}  // namespace sluice::cuda::sm90::gemm
