// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/operands.hpp"

#include <algorithm>
#include <limits>

#include "cuda/half_types.hpp"

namespace sluice::cuda::sm80 {
namespace {

using detail::Reason;
using detail::refuse;

constexpr std::int64_t kUnitBytes = 16;  // of a copy
constexpr std::int64_t kUnit = 8;        // elements of it

// Strides that would move a row's start off a multiple of 16 bytes.
Reason stride_refusal(const OperandSpec& spec) {
  if (spec.access == Access::kUnused || spec.rows == 0) return {};
  const Layout& l = spec.layout;
  if (l.row_stride_bytes % kUnitBytes != 0 || l.block_stride_bytes % kUnitBytes != 0) {
    return refuse(
        "%s: strides of rows and blocks are %lld and %lld bytes, wanted multiples of %lld",
        spec.name, static_cast<long long>(l.row_stride_bytes),
        static_cast<long long>(l.block_stride_bytes), static_cast<long long>(kUnitBytes));
  }
  if (l.block_cols != 0) return refuse("%s: has blocks of columns", spec.name);
  return {};
}

}  // namespace

Reason device_refusal(const Device& device, int least_smem) noexcept {
  if (device.compute_capability >= 80 && device.smem_per_block_bytes >= least_smem) return {};
  return refuse(
      "needs an Ampere or newer GPU (8.0) with %d bytes of shared memory a block, "
      "the device is %d.%d with %d",
      least_smem, device.compute_capability / 10, device.compute_capability % 10,
      device.smem_per_block_bytes);
}

Reason operand_refusal(const Problem& p) noexcept {
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (p.save_g_u) return refuse("does not store g and u");
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (p.alignment_bytes < kUnitBytes) {
    return refuse("alignment_bytes is %lld, copies need %lld",
                  static_cast<long long>(p.alignment_bytes), static_cast<long long>(kUnitBytes));
  }
  if (p.d % kUnit != 0 || p.h % kUnit != 0) {
    return refuse("d is %lld and h %lld, wanted multiples of %lld (16 bytes)",
                  static_cast<long long>(p.d), static_cast<long long>(p.h),
                  static_cast<long long>(kUnit));
  }
  for (const OperandSpec& spec : operand_specs(p)) {
    if (Reason reason = stride_refusal(spec); !reason.empty()) return reason;
  }
  return {};
}

Rows rows_of(const detail::Step& step, Operand id) noexcept {
  const void* const base = step.pointer(id);
  if (base == nullptr) return {};
  const Layout l = step.spec(id).layout;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // more than there are rows
  return {base, l.row_stride_bytes, l.block_stride_bytes,
          static_cast<int>(std::min(l.block_rows, kMost))};
}

}  // namespace sluice::cuda::sm80
