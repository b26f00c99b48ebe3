// SPDX-License-Identifier: Apache-2.0
// What both Hopper kernels and the host know of tensor maps' boxes.
#pragma once

namespace sluice::cuda::sm90 {

/// What one copy brings or stores, elements.
struct Box {
  int cols;
  int rows;
};

// How the copies of the paired weight view step along its groups; see cuda/host/tensor_map.hpp.
struct PairWalk {
  int rank;
  int groups_a_block;  // 0: the last dimension counts all groups
  int groups_a_copy;
  int groups_a_run;  // 1, or 2 or 4 of the first half before as many of the second
};

}  // namespace sluice::cuda::sm90
