// SPDX-License-Identifier: Apache-2.0
// What the tensor-core variants of gate_up, down and mlp have in common: which types they take and
// how a forced pair of tilings is offered.
#pragma once

#include <array>
#include <cstdio>
#include <span>

#include "core/variant.hpp"
#include "sluice/operands.hpp"

namespace sluice::cuda {

[[nodiscard]] inline bool has_gate_up(const Problem& p) noexcept {
  return p.op == Op::kGateUp || p.op == Op::kMlp;
}
[[nodiscard]] inline bool has_down(const Problem& p) noexcept {
  return p.op == Op::kDown || p.op == Op::kMlp;
}

[[nodiscard]] inline const OperandSpec& spec_of(const std::array<OperandSpec, kOperandCount>& specs,
                                                Operand id) noexcept {
  return specs[static_cast<std::size_t>(id)];
}

/// bf16 or fp16, the same for all; gate_up alone has neither y nor dy.
[[nodiscard]] inline detail::Reason half_type_refusal(const Problem& p) noexcept {
  const bool half = p.x_dtype == DType::kBF16 || p.x_dtype == DType::kF16;
  if (!half || p.w_dtype != p.x_dtype || (p.op != Op::kGateUp && p.y_dtype != p.x_dtype)) {
    return detail::refuse("takes bf16 or fp16, the same for x, weights, y and dy; got %s, %s, %s",
                          to_string(p.x_dtype), to_string(p.w_dtype), to_string(p.y_dtype));
  }
  return {};
}

/// Of each GEMM of the operator; an operator of one GEMM leaves the other alone.
template <class Tiling>
struct TilingPair {
  Tiling gate_up;
  Tiling down;
};

/// Configs "<prefix>.<op>.<tiling>", for operators of two kinds of GEMM
/// "<prefix>.mlp.<gate_up>+<down>": each tiling of the first with the best of the second, then each
/// of the second with the best of the first. The spans are cheapest first; one may be empty.
template <class Tiling, class NameTiling>
std::size_t offer_tilings(const char* prefix, const Problem& p, std::span<const Tiling> gate_up,
                          std::span<const Tiling> down, const NameTiling& name_tiling,
                          std::span<Config> out) noexcept {
  std::size_t count = 0;
  const auto offer = [&](const Tiling& first, const Tiling& second) {
    if (count < out.size()) {
      std::array<char, 24> names[2]{};
      char name[kMaxName];
      name_tiling(first, names[0]);
      name_tiling(second, names[1]);
      std::snprintf(name, sizeof(name), "%s.%s.%s%s%s", prefix, to_string(p.op),
                    gate_up.empty() ? "" : names[0].data(),
                    gate_up.empty() || down.empty() ? "" : "+",
                    down.empty() ? "" : names[1].data());
      out[count] = detail::make_config(name, TilingPair<Tiling>{first, second});
    }
    ++count;
  };
  const Tiling none{};
  const Tiling& best_gate_up = gate_up.empty() ? none : gate_up[0];
  const Tiling& best_down = down.empty() ? none : down[0];
  if (gate_up.empty()) offer(none, best_down);
  for (const Tiling& tiling : gate_up) offer(tiling, best_down);
  for (std::size_t i = 1; i < down.size(); ++i) offer(best_gate_up, down[i]);
  return count;
}

}  // namespace sluice::cuda
