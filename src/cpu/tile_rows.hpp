// SPDX-License-Identifier: Apache-2.0
// Finished blocks of C as rows of columns: taking paired panels apart.
#pragma once

#include <cstring>

#include "cpu/engine.hpp"

namespace sluice::cpu {

/// Takes `panels` pairs of kLanes columns apart; a fixed size makes the copies plain moves.
template <std::size_t kLanes>
void split_panels(const float* c_row, std::int64_t panels, float* g, float* u) noexcept {
  for (std::int64_t p = 0; p < panels; ++p, c_row += 2 * kLanes, g += kLanes, u += kLanes) {
    std::memcpy(g, c_row, kLanes * sizeof(float));
    std::memcpy(u, c_row + kLanes, kLanes * sizeof(float));
  }
}

/// g[i], u[i] of one row of a block with paired panels, `lanes` columns a panel, plus the biases.
inline void split_pair(const Engine& e, const float* c_row, std::int64_t panels,
                       const float* b_gate, const float* b_up, float* g, float* u) noexcept {
  const std::int64_t lanes = e.lanes();
  if (lanes == 16) {
    split_panels<16>(c_row, panels, g, u);
  } else if (lanes == 8) {
    split_panels<8>(c_row, panels, g, u);
  } else {
    split_panels<4>(c_row, panels, g, u);
  }
  if (!e.problem.bias_gate_up) return;
  e.kernels.row.add(b_gate, panels * lanes, g);
  e.kernels.row.add(b_up, panels * lanes, u);
}

/// Biases of columns [col, col + n), zeros up to `padded`.
inline void load_bias(const Engine& e, Operand id, std::int64_t col, std::int64_t n,
                      std::int64_t padded, float* out) noexcept {
  load_vector(e, id, col, n, out);
  std::fill(out + n, out + padded, 0.0F);
}

}  // namespace sluice::cpu
