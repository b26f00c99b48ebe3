// SPDX-License-Identifier: Apache-2.0
// cuda.all_reduce: y summed over ranks, and the next RMSNorm of it.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda/all_reduce/all_reduce.hpp"
#include "cuda/half_types.hpp"
#include "cuda/kernel_rows.hpp"

namespace sluice::cuda {
namespace {

using all_reduce::Form;
using all_reduce::Geometry;
using all_reduce::Rows;
using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using ll = long long;

constexpr std::int64_t kUnit = 16;  // bytes of an access

Reason supports(const Problem& p, const Device& device) noexcept {
  if (device.compute_capability < 75) {
    return refuse("needs compute capability 7.5, the device has %d.%d",
                  device.compute_capability / 10, device.compute_capability % 10);
  }
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  constexpr std::int64_t kMaxCols = std::int64_t{1} << 30;
  if (p.d > kMaxCols || p.d % 8 != 0) {
    return refuse("d is %lld, the sum over ranks takes multiples of 8 up to %lld", ll{p.d},
                  ll{kMaxCols});
  }
  if (p.alignment_bytes < kUnit) {
    return refuse("alignment_bytes is %lld, accesses need %lld", ll{p.alignment_bytes}, ll{kUnit});
  }
  for (const Operand id : {Operand::kResidual, Operand::kY}) {
    if (!is_used(p, id)) continue;
    const OperandSpec spec = operand_spec(p, id);
    if (spec.layout.row_stride_bytes % kUnit != 0) {
      return refuse("%s: a stride of %lld bytes is no multiple of %lld", spec.name,
                    ll{spec.layout.row_stride_bytes}, ll{kUnit});
    }
  }
  return {};
}

Geometry geometry_of(const Problem& p, Form form) {
  return {form, p.reduce.world, std::max<std::int64_t>(p.m, 1), p.d * size_bytes(p.x_dtype)};
}

// Estimates, not measured yet: bytes that leave a GPU by NVLink, of 450 GB/s a direction, and what
// a signal takes from one GPU's stores to another's loads.
double estimated_us(const Geometry& g) {
  constexpr double kLinkBytesAUs = 400e3;
  constexpr double kSignalUs = 2.5;
  const double others = g.world() - 1;
  const bool one = g.form() == Form::kOneShot;
  const double bytes = static_cast<double>(g.rows()) * static_cast<double>(g.row_bytes()) * others;
  return one ? kSignalUs + bytes / kLinkBytesAUs
             : 2 * kSignalUs + 2 * bytes / g.world() / kLinkBytesAUs;
}

std::size_t configs(const Problem& p, const Device&, std::span<KernelConfig> out) noexcept {
  const bool one =
      estimated_us(geometry_of(p, Form::kOneShot)) <= estimated_us(geometry_of(p, Form::kTwoShot));
  const Form forms[] = {one ? Form::kOneShot : Form::kTwoShot,
                        one ? Form::kTwoShot : Form::kOneShot};
  return detail::offer(std::span<const Form>(forms), out);
}

void name_config(const KernelConfig& config, std::span<char> out) noexcept {
  const bool one = detail::config_as<Form>(config) == Form::kOneShot;
  std::snprintf(out.data(), out.size(), "%s", one ? "one_shot" : "two_shot");
}

// All CTAs of all ranks are resident together. Ranks that share a GPU leave three quarters of it for
// what a rank still runs ahead of its own sum, clusters of CTAs too.
int ctas_of(const Geometry& g, const Device& device, bool share_device) {
  const int share = share_device ? 4 * g.world() : 1;
  return std::clamp(device.sm_count / share, 1, g.tiles());
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  const Problem& p = step.problem;
  const auto rows = [&](Operand id) {
    void* const base = step.pointer(id);
    if (base == nullptr) return Rows{};
    return Rows{static_cast<char*>(base), step.spec(id).layout.row_stride_bytes};
  };
  all_reduce::AllReduceParams params;
  params.geometry = geometry_of(p, detail::config_as<Form>(step.config));
  params.rank = p.reduce.rank;
  params.vectors = static_cast<int>(p.d / 8);
  params.part = rows(Operand::kX);
  params.residual = rows(Operand::kResidual);
  params.y = rows(Operand::kY);
  params.y_norm = rows(Operand::kYNorm);
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
  const int ctas = ctas_of(params.geometry, step.device, step.peers->share_device);
  return all_reduce::launch_all_reduce(step.device, ctas, p.x_dtype, params, step.stream);
}

std::size_t peer_bytes(const StepView& s) noexcept {
  const Geometry g = geometry_of(s.problem, detail::config_as<Form>(s.config));
  return kPeerHeaderBytes + 2 * static_cast<std::size_t>(g.half_bytes());
}

std::string describe(const StepView& s) {
  const Geometry g = geometry_of(s.problem, detail::config_as<Form>(s.config));
  const bool one = g.form() == Form::kOneShot;
  char text[200];
  const std::int64_t sent = g.rows() * g.row_bytes() * (g.world() - 1);
  std::snprintf(text, sizeof(text),
                "rank %d of %d; %d tiles of %lld rows, %d CTAs; sends %lld bytes, %d hop%s; about "
                "%.1f us",
                s.problem.reduce.rank, g.world(), g.tiles(), ll{g.tile_rows()},
                ctas_of(g, s.device, false), ll{one ? sent : 2 * sent / g.world()}, one ? 1 : 2,
                one ? "" : "s", estimated_us(g));
  return text;
}

}  // namespace

const detail::Kernel kAllReduce = {
    .name = "cuda.all_reduce",
    .backend = Backend::kCuda,
    .ops = {Op::kAllReduce},
    .supports = supports,
    .configs = configs,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
    .peer_bytes = peer_bytes,
};

}  // namespace sluice::cuda
