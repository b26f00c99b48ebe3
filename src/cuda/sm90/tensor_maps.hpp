// SPDX-License-Identifier: Apache-2.0
// The tensor maps of both Hopper kernels: of a step's operand, and of gate and up as one.
#pragma once

#include <cuda.h>

#include "core/kernel.hpp"
#include "cuda/sm90/boxes.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda::sm90 {

/// The map of an operand without blocks, under the widest swizzle that a box's rows fill. Errors:
/// those of make_matrix_view() and encode().
Status encode_boxes(const detail::Step& step, Operand id, const Box& box,
                    CUtensorMap& out) noexcept;

/// The view of w_gate and w_up whose copies bring 64 columns of up to `groups` groups of eight rows
/// of each. Errors: those of make_pair_view() and encode().
struct PairMap {
  CUtensorMap map;
  PairWalk walk;
  int up_first;  // the view starts with up
};
[[nodiscard]] Expected<PairMap> encode_pairs(const detail::Step& step, int groups,
                                             int longest_run) noexcept;

}  // namespace sluice::cuda::sm90
