// SPDX-License-Identifier: Apache-2.0
// cuda.all_reduce: y summed over ranks, and the next RMSNorm of it.
#include <algorithm>
#include <cstdio>

#include "cuda/all_reduce/all_reduce.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/operands.hpp"
#include "cuda/refusals.hpp"

namespace sluice::cuda {
namespace {

using all_reduce::Form;
using all_reduce::Geometry;
using all_reduce::Grid;
using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using ll = long long;

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = capability_refusal(device); !reason.empty()) return reason;
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  constexpr std::int64_t kMaxCols = std::int64_t{1} << 30;
  if (p.d > kMaxCols || p.d % 8 != 0) {
    return refuse("d is %lld, the sum over ranks takes multiples of 8 up to %lld", ll{p.d},
                  ll{kMaxCols});
  }
  if (Reason reason = alignment_refusal(p); !reason.empty()) return reason;
  for (const Operand id : {Operand::kResidual, Operand::kY}) {
    if (!is_used(p, id)) continue;
    if (Reason reason = stride_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  return {};
}

Geometry geometry_of(const Problem& p, Form form) {
  return {form, p.reduce.world, std::max<std::int64_t>(p.m, 1), p.d * size_bytes(p.x_dtype)};
}

// What a rank sends.
std::int64_t sent_bytes(const Geometry& g) {
  const std::int64_t bytes = g.rows() * g.row_bytes() * (g.world() - 1);
  if (g.form() == Form::kOneShot) return bytes;
  return g.form() == Form::kTwoShot ? 2 * bytes / g.world() : 2 * bytes;
}

// Of one_shot_ll, the CTAs that share a row; the sum of its squares is one CTA's.
int cuts_of(const Problem& p, const Geometry& g) {
  constexpr int kCut = all_reduce::kCutThreads;
  return p.reduce.norm.enabled ? 1 : (g.vectors() + kCut - 1) / kCut;
}

// Estimates from two and four H200s (bench/results/{h200x2,h200x4}/all_reduce.json): what the hops
// take without bytes, and bytes that leave a GPU in a microsecond, of NVLink's 450 GB/s a
// direction.
double estimated_us(const Problem& p, const Geometry& g) {
  const auto bytes = static_cast<double>(sent_bytes(g));
  if (g.form() == Form::kOneShot) return 6.5 + bytes / 210e3;
  if (g.form() == Form::kTwoShot) return 9 + bytes / 250e3;
  // A CTA's second row waits for its first.
  constexpr int kCtas = 132;
  const std::int64_t waits = (g.rows() * cuts_of(p, g) - 1) / kCtas;
  return 3 + bytes / 400e3 + 2.5 * static_cast<double>(waits);
}

std::size_t configs(const Problem& p, const Device&, std::span<KernelConfig> out) noexcept {
  Form forms[] = {Form::kOneShotLl, Form::kOneShot, Form::kTwoShot};
  const auto offered =
      std::span<Form>(forms).subspan(geometry_of(p, Form::kOneShotLl).fits_ll() ? 0 : 1);
  std::sort(offered.begin(), offered.end(), [&](Form a, Form b) {
    return estimated_us(p, geometry_of(p, a)) < estimated_us(p, geometry_of(p, b));
  });
  return detail::offer(std::span<const Form>(offered), out);
}

void name_config(const KernelConfig& config, std::span<char> out) noexcept {
  constexpr const char* kNames[] = {"one_shot", "two_shot", "one_shot_ll"};
  const auto form = static_cast<std::size_t>(detail::config_as<Form>(config));
  std::snprintf(out.data(), out.size(), "%s", kNames[form]);
}

// All CTAs of all ranks are resident together. Ranks that share a GPU leave three quarters of it
// for what a rank still runs ahead of its own sum, clusters of CTAs too.
Grid grid_of(const Problem& p, const Geometry& g, const Device& device, bool share_device) {
  const int share = std::max(device.sm_count / (share_device ? 4 * g.world() : 1), 1);
  if (g.form() != Form::kOneShotLl) return {std::min(share, g.tiles()), 1};
  Grid grid;
  grid.cuts = std::min(cuts_of(p, g), share);
  grid.ctas = static_cast<int>(std::min<std::int64_t>(g.rows(), share / grid.cuts));
  return grid;
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  const Problem& p = step.problem;
  all_reduce::AllReduceParams params;
  params.geometry = geometry_of(p, detail::config_as<Form>(step.config));
  params.rank = p.reduce.rank;
  params.vectors = static_cast<int>(p.d / 8);
  params.part = row_major(step, Operand::kX);
  params.residual = row_major(step, Operand::kResidual);
  params.y = row_major(step, Operand::kY);
  params.y_norm = row_major(step, Operand::kYNorm);
  params.bias = step.pointer(Operand::kBDown);
  params.norm_weight = step.pointer(Operand::kNextNormWeight);
  params.norm_weight_offset = p.reduce.norm.weight_offset;
  params.norm_eps = p.reduce.norm.eps;
  for (int r = 0; r < p.reduce.world; ++r) {
    params.peers[r] = static_cast<char*>(step.peers->buffers[r]);
  }
  params.peer_bytes = step.peers->bytes;
  params.time_limit_ns = step.peers->time_limit_us * 1000;
#if defined(SLUICE_CUDA_DEBUG)
  constexpr std::int64_t kDebugLimitNs = 10'000'000'000;
  if (params.time_limit_ns == 0) params.time_limit_ns = kDebugLimitNs;
#endif
  params.early = !step.peers->share_device;
  const Grid grid = grid_of(p, params.geometry, step.device, step.peers->share_device);
  return all_reduce::launch_all_reduce(step.device, grid, p.x_dtype, params, step.stream);
}

std::size_t peer_bytes(const StepView& s) noexcept {
  const Geometry g = geometry_of(s.problem, detail::config_as<Form>(s.config));
  return kPeerHeaderBytes + 2 * static_cast<std::size_t>(g.half_bytes());
}

std::string describe(const StepView& s) {
  const Geometry g = geometry_of(s.problem, detail::config_as<Form>(s.config));
  const Grid grid = grid_of(s.problem, g, s.device, false);
  const bool two = g.form() == Form::kTwoShot;
  char text[200];
  std::snprintf(text, sizeof(text),
                "rank %d of %d; %d tiles of %lld rows, %d CTAs; sends %lld bytes, %d hop%s; about "
                "%.1f us",
                s.problem.reduce.rank, g.world(), g.tiles(), ll{g.tile_rows()},
                grid.ctas * grid.cuts, ll{sent_bytes(g)}, two ? 2 : 1, two ? "s" : "",
                estimated_us(s.problem, g));
  return text;
}

}  // namespace

const detail::Kernel kAllReduce = {
    .name = "cuda.all_reduce",
    .ops = {Op::kAllReduce},
    .supports = supports,
    .configs = configs,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
    .peer_bytes = peer_bytes,
};

}  // namespace sluice::cuda
