// SPDX-License-Identifier: Apache-2.0
// cuda.sm80_decode: gate_up and linear for up to 64 tokens by mma.sync and cp.async, from weights
// as they lie, on Ampere and everything newer.
#include <array>
#include <cstdio>

#include "cuda/kernel_rows.hpp"
#include "cuda/sm80/decode/launch.hpp"
#include "cuda/sm80/operands.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using sm80::decode::Params;
using sm80::decode::Shape;
using sm80::decode::Shares;
using sm80::decode::Tiling;
using ll = long long;

// Every number of tokens has a tiling that fits: 64 rows and 64 tokens need the most of these.
constexpr int kLeastSmem =
    sm80::decode::smem_bytes({.tokens = 64, .rows = 64, .groups = 4, .stages = 1});

// What memory gives an SM of this device over what an H200's gives one of 132; as much if unknown.
double intake_of(const Device& device) {
  constexpr double kH200 = 4917e9 / 132;
  if (device.memory_bytes_per_second == 0) return 1;
  return static_cast<double>(device.memory_bytes_per_second) / device.sm_count / kH200;
}

Shape shape_of(const Problem& p, const Device& device) {
  const bool gated = p.op == Op::kGateUp;
  return {.m = p.m,
          .n = gated ? p.h : p.d,
          .k = gated ? p.d : p.h,
          .gated = gated,
          .sm_count = device.sm_count,
          .smem_per_block_bytes = device.smem_per_block_bytes,
          .intake = intake_of(device)};
}

Shares shares_of(const Tiling& t, const Problem& p, const Device& device) {
  return sm80::decode::make_shares(t, shape_of(p, device));
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = sm80::device_refusal(device, kLeastSmem); !reason.empty()) return reason;
  if (p.m > sm80::decode::kMaxTokens) {
    return refuse("takes up to %d tokens, got %lld", sm80::decode::kMaxTokens, ll{p.m});
  }
  // Columns are counted in bytes, in 32 bits.
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
  if (p.d >= kMaxWidth || p.h >= kMaxWidth) {
    return refuse("d and h are %lld and %lld, wanted less than %lld", ll{p.d}, ll{p.h},
                  ll{kMaxWidth});
  }
  if (p.save_g_u) return refuse("does not store g and u");
  return sm80::operand_refusal(p);
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  std::array<Tiling, detail::kMaxConfigs> tilings;
  const std::size_t count = sm80::decode::ranked(shape_of(p, device), tilings);
  return detail::offer<Tiling>(std::span(tilings).first(count), out);
}

std::size_t scratch_bytes(const StepView& s) noexcept {
  const auto t = detail::config_as<Tiling>(s.config);
  if (t.split == 1) return 0;
  const Shares shares = shares_of(t, s.problem, s.device);
  return static_cast<std::size_t>(sm80::decode::partial_bytes(t) * shares.groups * t.split);
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  const Problem& p = step.problem;
  const bool gate_up = p.op == Op::kGateUp;
  const auto tiling = detail::config_as<Tiling>(step.config);
  Params params{};
  sm80::set_operands(step, params);
  params.stages = tiling.stages;
  params.split = tiling.split;
  params.shares = shares_of(tiling, p, step.device);
  params.partials = static_cast<float*>(step.scratch);
  params.header = static_cast<WorkspaceHeader*>(step.header);
  const sm80::decode::Launch launched{tiling, p.x_dtype, step.device.ordinal, step.stream};
  return gate_up ? sm80::decode::launch_gate_up(launched, params)
                 : sm80::decode::launch_down(launched, params);
}

std::string describe(const StepView& s) {
  const auto t = detail::config_as<Tiling>(s.config);
  const Shares shares = shares_of(t, s.problem, s.device);
  const int rows = shares.units.part(0).size() * (s.problem.op == Op::kGateUp ? 2 : 1);
  char text[240];
  std::snprintf(text, sizeof(text),
                "%d CTAs on %d SMs, %d on the same rows; each streams %d weight rows in %d blocks "
                "through %d rings of %d stages of %d rows by %d columns",
                shares.groups * t.split, s.device.sm_count, t.split, rows, shares.blocks, t.groups,
                t.stages, t.rows, sm80::decode::kUnitColumns);
  return text;
}

}  // namespace

const detail::Kernel kSm80Decode = {
    .name = "cuda.sm80_decode",
    .ops = {Op::kGateUp, Op::kDown},
    .supports = supports,
    .configs = configs,
    .name_config = detail::name_as<Tiling, sm80::decode::name_tiling>,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

Reason sm80_decode_yields(const Device& device) noexcept {
  // cuda.sm90_decode is for Hopper what this kernel is for the others, and was measured there.
  if (device.compute_capability != 90) return {};
  return refuse("is not chosen on 9.0, which has a decode kernel of its own");
}

}  // namespace sluice::cuda
