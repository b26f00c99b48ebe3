// SPDX-License-Identifier: Apache-2.0
// after_norm<inner>: the variant that launches add + RMSNorm first and then a variant that knows no
// norm, on the normalised rows in the workspace.
#pragma once

#include "core/variant.hpp"

namespace sluice::cuda {

/// The problem that is left once n lies in the workspace: x is n, a residual that was the norm's
/// input is an operand. `p` has a norm.
[[nodiscard]] Problem without_norm(const Problem& p) noexcept;

/// Why the norm by itself does not take the problem.
[[nodiscard]] detail::Reason norm_refusal(const Problem& p) noexcept;

/// Of n, and of r where down adds it.
[[nodiscard]] std::size_t norm_payload_bytes(const Problem& p) noexcept;

/// Launches the norm, then `inner` with `payload` behind the norm's part.
Status launch_after_norm(const detail::Variant& inner, const Plan& plan, const Operands& operands,
                         void* payload, void* header, Stream stream) noexcept;

template <const detail::Variant& kInner>
struct AfterNorm {
  static detail::Reason supports(const Problem& p, const Device& device) noexcept {
    if (const detail::Reason reason = norm_refusal(p); !reason.empty()) return reason;
    return kInner.supports(without_norm(p), device);
  }
  static std::size_t configs(const Problem& p, const Device& device,
                             std::span<Config> out) noexcept {
    return kInner.configs(without_norm(p), device, out);
  }
  static std::size_t payload_bytes(const Plan& plan) noexcept {
    Plan rest = plan;
    rest.problem = without_norm(plan.problem);
    return norm_payload_bytes(plan.problem) + kInner.payload_bytes(rest);
  }
  static Status launch(const Plan& plan, const Operands& operands, void* payload, void* header,
                       Stream stream) noexcept {
    return launch_after_norm(kInner, plan, operands, payload, header, stream);
  }
  static detail::Reason yields(const Problem& p, const Device& device) noexcept {
    return kInner.yields == nullptr ? detail::Reason{} : kInner.yields(without_norm(p), device);
  }
};

/// The row for the table.
template <const detail::Variant& kInner>
constexpr detail::Variant after_norm(const char* name) {
  using Row = AfterNorm<kInner>;
  return {.name = name,
          .backend = kInner.backend,
          .supports = Row::supports,
          .configs = Row::configs,
          .payload_bytes = Row::payload_bytes,
          .launch = Row::launch,
          .yields = Row::yields};
}

}  // namespace sluice::cuda
