// SPDX-License-Identifier: Apache-2.0
// Whether the Hopper GEMMs of a plan start while the kernel before them ends, which grids that fill
// the SMs alone do: a test of such starts that uses another shape tests nothing.
#pragma once

#include <gtest/gtest.h>

#include "cuda/prefill.hpp"
#include "cuda/sm90/gemm.hpp"
#include "cuda/sm90/gemm_params.hpp"
#include "sluice/plan.hpp"

namespace sluice::gpu {

inline void expect_starts_early(const Plan& plan) {
  using cuda::sm90::GemmKind;
  using cuda::sm90::Tiling;
  const Problem& p = plan.problem;
  const int sm_count = plan.device.sm_count;
  const auto tilings = detail::payload_as<cuda::TilingPair<Tiling>>(plan.config);
  const auto expect_early = [&](GemmKind kind, const Tiling& tiling, std::int64_t m, std::int64_t n,
                                std::int64_t k) {
    cuda::sm90::GemmParams params{};
    params.m = static_cast<int>(m);
    params.n = static_cast<int>(n);
    params.k = static_cast<int>(k);
    const int ctas = cuda::sm90::set_order({.tiling = tiling, .sm_count = sm_count}, kind, params);
    EXPECT_FALSE(tiling.stream_k) << plan.config.name;
    EXPECT_TRUE(cuda::sm90::starts_early(ctas, sm_count))
        << plan.config.name << " kind " << static_cast<int>(kind) << " ctas " << ctas;
  };
  if (cuda::has_gate_up(p)) expect_early(GemmKind::kGateUp, tilings.gate_up, p.m, p.h, p.d);
  if (cuda::has_down(p)) expect_early(GemmKind::kDown, tilings.down, p.m, p.d, p.h);
  if (p.op != Op::kGateUpGrad && p.op != Op::kMlpGrad) return;
  expect_early(GemmKind::kGateUpGrad, tilings.gate_up, p.m, p.h, p.d);
  if (p.op != Op::kMlpGrad) return;
  expect_early(GemmKind::kInputGrad, cuda::sm90::best_input_grad(p.m, p.d, p.h, sm_count), p.m, p.d,
               p.h);
  expect_early(GemmKind::kWeightGrad, tilings.down, p.h, p.d, p.m);
  expect_early(GemmKind::kWeightGrad, tilings.down, p.d, p.h, p.m);
}

}  // namespace sluice::gpu
