// SPDX-License-Identifier: Apache-2.0
// The arithmetic of tensor maps: from layouts to dimensions, strides and boxes, or to the reason
// why the hardware cannot walk them.
#include "cuda/host/tensor_map.hpp"

#include <limits>
#include <numeric>

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using ll = long long;

Error unsupported(const Reason& reason) {
  return make_error(ErrorCode::kUnsupported, "%s", reason.text);
}

Reason check_stride(const OperandSpec& spec, const char* what, std::int64_t bytes) {
  if (bytes <= 0) {
    return refuse("%s: %s is %lld bytes; tensor maps need more than 0", spec.name, what, ll{bytes});
  }
  if (bytes % kTensorStrideMultiple != 0) {
    return refuse("%s: %s of %lld bytes is no multiple of %lld", spec.name, what, ll{bytes},
                  ll{kTensorStrideMultiple});
  }
  if (bytes >= kTensorStrideLimit) {
    return refuse("%s: %s of %lld bytes is not below 2^40", spec.name, what, ll{bytes});
  }
  return {};
}

Reason check_dtype(const OperandSpec& spec) {
  if (spec.dtype != DType::kF64 && !is_block_type(spec.dtype)) return {};
  return refuse("%s: %s has no tensor map here", spec.name, to_string(spec.dtype));
}

Reason check_dims(const OperandSpec& spec) {
  if (spec.rows < kTensorDimLimit && spec.cols < kTensorDimLimit) return {};
  return refuse("%s: [%lld, %lld] has a dimension of 2^32 or more", spec.name, ll{spec.rows},
                ll{spec.cols});
}

Reason check_base(const OperandSpec& spec, const void* base) {
  if (reinterpret_cast<std::uintptr_t>(base) % kTensorStrideMultiple == 0) return {};
  return refuse("%s: pointer %p is no multiple of %lld", spec.name, base,
                ll{kTensorStrideMultiple});
}

Reason check_box(const OperandSpec& spec, std::int32_t extent, const char* what) {
  if (extent >= 1 && extent <= kTensorBoxLimit) return {};
  return refuse("%s: a box of %d %s, wanted 1 to %d", spec.name, extent, what, kTensorBoxLimit);
}

/// The layout without blocks that change nothing: one block, or blocks that follow each other as
/// rows do. Blocks of one row become plain rows at the blocks' stride.
struct RowOrder {
  std::int64_t block_rows = 0;  // 0: rows at row_stride alone
  std::int64_t row_stride = 0;
  std::int64_t block_stride = 0;
};

RowOrder row_order(const OperandSpec& spec) {
  const Layout& l = spec.layout;
  if (l.block_rows == 0 || l.block_rows >= spec.rows ||
      l.block_stride_bytes == l.block_rows * l.row_stride_bytes) {
    return {0, l.row_stride_bytes, 0};
  }
  if (l.block_rows == 1) return {0, l.block_stride_bytes, 0};
  return {l.block_rows, l.row_stride_bytes, l.block_stride_bytes};
}

/// Why one dimension cannot step through blocks by eight rows.
Reason check_blocks(const OperandSpec& spec, const RowOrder& order) {
  const std::int64_t eight_rows = kPairGroupRows * order.row_stride;
  if (order.block_stride % eight_rows != 0) {
    return refuse("%s: block_stride of %lld bytes is no multiple of eight rows, %lld", spec.name,
                  ll{order.block_stride}, ll{eight_rows});
  }
  const std::int64_t steps = spec.rows / order.block_rows * (order.block_stride / eight_rows);
  if (steps > std::numeric_limits<std::int32_t>::max()) {
    return refuse("%s: blocks reach over %lld times eight rows, wanted below 2^31", spec.name,
                  ll{steps});
  }
  const std::int64_t product =
      spec.rows / kPairGroupRows * (order.block_rows / kPairGroupRows);  // PairWalk::reciprocal()
  if (product <= std::numeric_limits<std::uint32_t>::max()) return {};
  return refuse("%s: %lld rows in blocks of %lld, wanted a product below 2^38", spec.name,
                ll{spec.rows}, ll{order.block_rows});
}

void push(TensorView& view, std::int64_t dim, std::int64_t stride_bytes, std::int32_t box) {
  view.dims[view.rank] = dim;
  view.strides_bytes[view.rank] = stride_bytes;
  view.box[view.rank] = box;
  ++view.rank;
}

}  // namespace

Reason pair_view_refusal(const OperandSpec& spec) noexcept {
  if (const Reason reason = check_dtype(spec); !reason.empty()) return reason;
  if (const Reason reason = check_dims(spec); !reason.empty()) return reason;
  if (spec.rows % kPairGroupRows != 0) {
    return refuse("%s: %lld rows are no multiple of %lld, a group would read behind the last one",
                  spec.name, ll{spec.rows}, ll{kPairGroupRows});
  }
  const RowOrder order = row_order(spec);
  if (const Reason reason = check_stride(spec, "row_stride", order.row_stride); !reason.empty()) {
    return reason;
  }
  const std::int64_t b = order.block_rows;
  if (b == 0) return check_stride(spec, "eight rows", kPairGroupRows * order.row_stride);
  if (kPairGroupRows % b != 0 && b % kPairGroupRows != 0) {
    return refuse("%s: blocks of %lld rows neither divide %lld nor are a multiple of it", spec.name,
                  ll{b}, ll{kPairGroupRows});
  }
  if (b > kPairGroupRows && spec.rows % b != 0) {
    return refuse("%s: %lld rows in blocks of %lld leave a short last block", spec.name,
                  ll{spec.rows}, ll{b});
  }
  if (const Reason reason = check_stride(spec, "block_stride", order.block_stride);
      !reason.empty()) {
    return reason;
  }
  if (b < kPairGroupRows) {
    return check_stride(spec, "eight rows", kPairGroupRows / b * order.block_stride);
  }
  return b == kPairGroupRows ? Reason{} : check_blocks(spec, order);
}

bool blocks_alternate(const Layout& l) noexcept {
  return l.block_rows > 0 && l.block_stride_bytes == 2 * l.block_rows * l.row_stride_bytes;
}

Expected<PairView> make_pair_view(const OperandSpec& spec, const void* gate, const void* up,
                                  std::int32_t box_k, std::int32_t box_groups,
                                  std::int32_t longest_run) noexcept {
  if (const Reason reason = pair_view_refusal(spec); !reason.empty()) return unsupported(reason);
  for (const Reason& reason :
       {check_base(spec, gate), check_base(spec, up), check_box(spec, box_k, "columns"),
        check_box(spec, box_groups, "groups of rows")}) {
    if (!reason.empty()) return unsupported(reason);
  }
  const auto gate_at = reinterpret_cast<std::uintptr_t>(gate);
  const auto up_at = reinterpret_cast<std::uintptr_t>(up);
  PairView pair;
  pair.up_first = up_at < gate_at;
  const std::uintptr_t apart = pair.up_first ? gate_at - up_at : up_at - gate_at;
  // Above 2^63 the cast would wrap: such a distance is over the limit anyway.
  const std::int64_t distance = apart > static_cast<std::uintptr_t>(kTensorStrideLimit)
                                    ? kTensorStrideLimit
                                    : static_cast<std::int64_t>(apart);
  if (const Reason reason = check_stride(spec, "the distance of gate and up", distance);
      !reason.empty()) {
    return unsupported(reason);
  }
  const RowOrder order = row_order(spec);
  const std::int64_t b = order.block_rows;
  const std::int64_t groups = spec.rows / kPairGroupRows;
  constexpr auto kGroup = static_cast<std::int32_t>(kPairGroupRows);
  TensorView& view = pair.view;
  view.dtype = spec.dtype;
  push(view, spec.cols, size_bytes(spec.dtype), box_k);
  if (b > kPairGroupRows) {
    const std::int64_t q = b / kPairGroupRows;
    const std::int32_t box_rows = 2 * kGroup * box_groups;
    const bool plain_fits = box_rows <= kTensorBoxLimit && 2 * spec.rows < kTensorDimLimit;
    if (plain_fits && longest_run % q == 0 && blocks_alternate(spec.layout) &&
        distance == b * order.row_stride) {
      pair.a_group = 2 * kGroup;
      pair.groups_a_copy = box_groups;
      pair.groups_a_run = static_cast<int>(q);
      push(view, 2 * spec.rows, order.row_stride, box_rows);
      return pair;
    }
    push(view, kPairGroupRows, order.row_stride, kGroup);
    push(view, 2, distance, 2);
    pair.groups_a_block = q;
    const std::int64_t group_stride = kPairGroupRows * order.row_stride;
    const std::int64_t blocks = spec.rows / b;
    // A copy stays inside a block, or takes whole blocks.
    const auto in_block = static_cast<std::int32_t>(std::gcd(q, std::int64_t{box_groups}));
    const std::int32_t whole_blocks = in_block == q ? box_groups / in_block : 1;
    pair.groups_a_copy = in_block * whole_blocks;
    if (whole_blocks == 1) {
      // One dimension steps over the other matrix's rows too.
      pair.a_block = order.block_stride / group_stride - q;
      push(view, (blocks - 1) * (q + pair.a_block) + q, group_stride, in_block);
      return pair;
    }
    pair.a_group = 0;
    pair.a_block = 1;
    push(view, q, group_stride, in_block);
    push(view, blocks, order.block_stride, whole_blocks);
    return pair;
  }
  std::int64_t group_stride = kPairGroupRows * order.row_stride;
  if (b == 0) {
    push(view, kPairGroupRows, order.row_stride, kGroup);
  } else if (b == kPairGroupRows) {
    push(view, kPairGroupRows, order.row_stride, kGroup);
    group_stride = order.block_stride;
  } else {
    push(view, b, order.row_stride, static_cast<std::int32_t>(b));
    push(view, kPairGroupRows / b, order.block_stride, static_cast<std::int32_t>(kGroup / b));
    group_stride = kPairGroupRows / b * order.block_stride;
  }
  push(view, 2, distance, 2);
  push(view, groups, group_stride, box_groups);
  pair.groups_a_copy = box_groups;
  return pair;
}

Reason matrix_view_refusal(const OperandSpec& spec) noexcept {
  if (const Reason reason = check_dtype(spec); !reason.empty()) return reason;
  if (const Reason reason = check_dims(spec); !reason.empty()) return reason;
  if (row_order(spec).block_rows != 0 || spec.layout.block_cols != 0) {
    return refuse("%s: rows or columns in blocks have no two-dimensional view", spec.name);
  }
  if (spec.rows <= 1) return {};  // no stride is walked
  return check_stride(spec, "row_stride", row_order(spec).row_stride);
}

Expected<TensorView> make_matrix_view(const OperandSpec& spec, const void* base,
                                      std::int32_t box_cols, std::int32_t box_rows) noexcept {
  for (const Reason& reason :
       {matrix_view_refusal(spec), check_base(spec, base), check_box(spec, box_cols, "columns"),
        check_box(spec, box_rows, "rows")}) {
    if (!reason.empty()) return unsupported(reason);
  }
  // A single row has no stride that means anything; the driver still wants a legal one.
  const std::int64_t width = spec.cols * size_bytes(spec.dtype);
  const std::int64_t legal =
      (width + kTensorStrideMultiple - 1) / kTensorStrideMultiple * kTensorStrideMultiple;
  TensorView view;
  view.dtype = spec.dtype;
  push(view, spec.cols, size_bytes(spec.dtype), box_cols);
  push(view, spec.rows, spec.rows <= 1 ? legal : row_order(spec).row_stride, box_rows);
  return view;
}

}  // namespace sluice::cuda
