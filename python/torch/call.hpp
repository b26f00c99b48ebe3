// SPDX-License-Identifier: Apache-2.0
// Call: from tensors to one sluice_run. What an operator takes, in which shape and type, is the
// library's to say (sluice_operand_query); here tensors are described and held against it.
#pragma once

#include <sluice/sluice.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <sluice/operands.hpp>  // Operand: the index that sluice_operand_query takes
#include <vector>

#include "binding/plan_cache.hpp"
#include "place.hpp"

namespace sluice_torch {

using sluice::Operand;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

/// The gate's parameters as the operators' schemas have them; no limit for no clamp.
struct GateArguments {
  std::int64_t activation = SLUICE_SILU;
  double alpha = 1.0;
  std::optional<double> limit;
  double up_offset = 0.0, gate_multiplier = 1.0, output_multiplier = 1.0;
};

/// A rank of a sum over ranks, as the operators' schemas have it.
struct Ranks {
  std::int64_t rank = 0;
  std::vector<std::int64_t> peers;  ///< each rank's buffer, as this device addresses it
  std::int64_t peer_bytes = 0;      ///< of each
};

/// An operand and what is asked of its tensor, read once: each question is a call through the ABI.
struct Bound {
  Operand id{};
  std::int64_t rows = 0;  ///< leading dimensions together
  std::int64_t cols = 0;  ///< the last dimension
  sluice_dtype dtype = 0;
  std::int64_t elem_bytes = 0;
  bool written = false;
  void* data = nullptr;
  const Tensor* tensor = nullptr;  ///< the caller's
  MaybeTensor copy;                ///< what is read in its place
};

/// Rows of a matrix: of [H, D] also where it comes as blocks of rows. Throws for a scalar.
std::int64_t rows_of(const char* name, const Tensor& tensor);

/// An uninitialised contiguous tensor in the shape of `like`, or in that shape with another last
/// dimension, or a vector; on its device and in its type.
Tensor empty_like(const Tensor& like);
Tensor empty_with_width(const Tensor& like, std::int64_t width);
Tensor empty_vector(const Tensor& like, std::int64_t width);

/// Throws std::runtime_error where one of the tensors wants a gradient, which would be lost: for
/// .out forms where gradients are recorded.
void refuse_gradients(const std::vector<Tensor>& tensors);

/// Counts a write to a tensor, so that autograd refuses to read what it had saved of it: nobody
/// does that for operators behind the stable ABI. Throws for a leaf that wants a gradient.
void count_write(const Tensor& written);

class Call {
 public:
  explicit Call(sluice_op op);

  /// M tokens, model width D, hidden width H; what the operator does not read may stay 0.
  Call& dims(std::int64_t m, std::int64_t d, std::int64_t h);
  /// Types of the activations and of the weights; y has the activations' unless the problem says
  /// otherwise.
  Call& types(sluice_dtype x, sluice_dtype w);
  Call& gate(const GateArguments& gate);

  /// Gives an operand that is read its tensor, which lives as long as this; the first says where
  /// the call runs. Leading dimensions are rows, the last is contiguous, a matrix of gate or up may
  /// come as blocks of rows, and both have the same strides: what is otherwise is copied, and on a
  /// GPU a weight that is gate and up both, and by run() rows that tensor cores cannot be fed from.
  /// Throws std::invalid_argument where the device is another one.
  const Bound& in(Operand id, const Tensor& tensor);
  /// Null for none.
  const Bound* in(Operand id, const MaybeTensor& tensor);
  /// The same for one that is written, whose strides must be such. Its copy-on-write ends.
  const Bound& out(Operand id, const Tensor& tensor);
  const Bound* out(Operand id, const MaybeTensor& tensor);

  /// Flags of the problem.
  sluice_problem& problem() { return problem_; }

  /// Plans, holds every operand against the plan's wishes, and runs. Throws std::invalid_argument
  /// naming the operand, else as binding/errors.hpp says.
  void run();
  /// The same for y summed over ranks. Returns the bytes that each peer buffer needs; where there
  /// are fewer, nothing has run.
  std::int64_t run(const Ranks& ranks);

 private:
  Bound& bind(Operand id, const Tensor& tensor);
  const sluice_binding::Prepared& prepare();
  [[nodiscard]] bool is_its_partner(const Bound& bound) const;
  void copy(Bound& bound, const char* why);
  void copy_with_partner(Bound& bound, const char* why);
  void copy_split_units();
  // False where its partner has another one.
  bool take_layout(Operand id, const sluice_layout& layout);

  Place place_;
  sluice_problem problem_;  // zeroed first: the plan cache compares its bytes
  sluice_operands operands_{};
  std::array<Bound, sluice::kOperandCount> bound_;
  std::size_t count_ = 0;
  std::array<bool, 14> layout_set_{};  // one a member of sluice_layouts
};

}  // namespace sluice_torch
