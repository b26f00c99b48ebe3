// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/tensor_maps.hpp"

#include "cuda/host/tensor_map.hpp"

namespace sluice::cuda::sm90 {
namespace {

TensorSwizzle swizzle_of(const Box& box) {
  switch (box.cols) {
    case 64:
      return TensorSwizzle::kSwizzle128;
    case 32:
      return TensorSwizzle::kSwizzle64;
    default:
      return TensorSwizzle::kSwizzle32;
  }
}

}  // namespace

Status encode_boxes(const detail::Step& step, Operand id, const Box& box,
                    CUtensorMap& out) noexcept {
  void* const base = step.pointer(id);
  const auto view = make_matrix_view(step.spec(id), base, box.cols, box.rows);
  if (!view) return view.error();
  const auto map = encode(*view, base, swizzle_of(box));
  if (!map) return map.error();
  out = *map;
  return {};
}

Expected<PairMap> encode_pairs(const detail::Step& step, int groups, int longest_run) noexcept {
  constexpr int kColumns = 64;  // 128 bytes: the span of the swizzle
  const void* const gate = step.pointer(Operand::kWGate);
  const void* const up = step.pointer(Operand::kWUp);
  const auto pair =
      make_pair_view(step.spec(Operand::kWGate), gate, up, kColumns, groups, longest_run);
  if (!pair) return pair.error();
  const auto map = encode(pair->view, pair->up_first ? up : gate, TensorSwizzle::kSwizzle128);
  if (!map) return map.error();
  return PairMap{*map,
                 {pair->view.rank, PairWalk::reciprocal(pair->groups_a_block), pair->a_group,
                  static_cast<int>(pair->a_block), pair->groups_a_copy, pair->groups_a_run},
                 pair->up_first ? 1 : 0};
}

}  // namespace sluice::cuda::sm90
