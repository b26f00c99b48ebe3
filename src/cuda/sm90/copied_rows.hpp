// SPDX-License-Identifier: Apache-2.0
// Operands copied to whole lines of L2 before a GEMM that reads their rows again and again, where
// rows that begin inside a line, or a sector, cost it more than the copy; and operands that tensor
// maps do not walk, copied before it or behind it.
#pragma once

#include <cstdint>

#include "core/kernel.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda::sm90 {

/// Whether the rows are best read where they lie. Most launches ask no more.
[[nodiscard]] inline bool lies_in_whole_lines(const OperandSpec& input) noexcept {
  const std::int64_t stride = input.layout.row_stride_bytes;
  return stride > 0 && stride < kTensorStrideLimit &&
         gemm::pitch_of(stride) == gemm::Pitch::kWholeLines;
}

/// Bytes of an operand's copy.
[[nodiscard]] std::int64_t copy_bytes(const OperandSpec& spec) noexcept;

/// Whether a GEMM's input or output may be copied, or must be: rows at distances that are no
/// multiples of 16 bytes or 2^40 bytes and more, or one row that is repeated. For what is only
/// faster 256 MiB of scratch are the most.
[[nodiscard]] gemm::CopyRows copy_of(const OperandSpec& spec) noexcept;

/// Why the rows come by no tensor map, copied or not.
[[nodiscard]] detail::Reason copied_view_refusal(const OperandSpec& spec) noexcept;

/// A step, and what it becomes as operands are copied to its scratch.
class CopiedRows {
 public:
  explicit CopiedRows(const detail::Step& step) noexcept;

  /// Enqueues the copy of x, h or the residual, which is launched programmatically, and whose
  /// reader may be. Errors: of the launch.
  Status copy(Operand id) noexcept;

  /// Gives an output, h or y, its place in scratch.
  void hold(Operand id) noexcept;

  /// Enqueues its way from there, once the step is.
  Status copy_back(Operand id) noexcept;

  /// The step with the copies as its operands, and what is left of its scratch. It refers to this
  /// object.
  [[nodiscard]] detail::Step step() const noexcept;

 private:
  const detail::Step& given_;
  Problem problem_;
  Operands operands_;
  char* scratch_;
};

}  // namespace sluice::cuda::sm90
