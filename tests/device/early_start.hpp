// SPDX-License-Identifier: Apache-2.0
// Whether the Hopper GEMMs of a plan start while the kernel before them ends, which grids that fill
// the SMs alone do: a test of such starts that uses another shape tests nothing.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/lower.hpp"
#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/params.hpp"
#include "sluice/plan.hpp"

namespace sluice::gpu {

inline void expect_starts_early(const Plan& plan) {
  using cuda::sm90::gemm::GemmKind;
  const int sm_count = plan.device.sm_count;
  const std::span steps(plan.steps.data(), static_cast<std::size_t>(plan.step_count));
  int gemms = 0;
  for (const PlannedStep& step : steps) {
    if (std::string_view(step.kernel->name) != "cuda.sm90_gemm") continue;
    ++gemms;
    const Problem p =
        detail::lower(plan.problem, step.role, detail::has_norm_step(steps), nullptr, {}).problem;
    const auto tiling = detail::config_as<cuda::sm90::gemm::Tiling>(step.config);
    const auto expect_early = [&](GemmKind kind, std::int64_t m, std::int64_t n, std::int64_t k) {
      cuda::sm90::gemm::GemmParams params{};
      params.m = static_cast<int>(m);
      params.n = static_cast<int>(n);
      params.k = static_cast<int>(k);
      const int ctas =
          cuda::sm90::gemm::set_order({.tiling = tiling, .sm_count = sm_count}, kind, params);
      EXPECT_FALSE(tiling.is_stream_k()) << plan.config_name();
      EXPECT_TRUE(cuda::sm90::gemm::starts_early(tiling, ctas, sm_count))
          << plan.config_name() << " kind " << static_cast<int>(kind) << " ctas " << ctas;
    };
    switch (p.op) {
      case Op::kGateUp:
        expect_early(GemmKind::kGateUp, p.m, p.h, p.d);
        break;
      case Op::kDown:
        expect_early(GemmKind::kDown, p.m, p.d, p.h);
        break;
      case Op::kGateUpGrad:
        expect_early(GemmKind::kGateUpGrad, p.m, p.h, p.d);
        break;
      case Op::kInputGrad:
        expect_early(GemmKind::kInputGrad, p.m, p.d, p.h);
        break;
      default:
        expect_early(GemmKind::kWeightGrad, p.h, p.d, p.m);
    }
  }
  EXPECT_GT(gemms, 0) << plan.config_name();
}

}  // namespace sluice::gpu
