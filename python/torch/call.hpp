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

#include "place.hpp"

namespace sluice_torch {

using sluice::Operand;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

/// The gate's parameters as the operators' schemas have them; no limit for no clamp.
struct GateArguments {
  std::int64_t activation;
  double alpha;
  std::optional<double> limit;
  double up_offset, gate_multiplier, output_multiplier;
};

/// Elements of the last dimension, and of all the others together.
std::int64_t width_of(const char* name, const Tensor& tensor);
std::int64_t rows_of(const char* name, const Tensor& tensor);

/// An uninitialised contiguous tensor in the shape of `like`, or in that shape with another last
/// dimension, on its device, in its type or another tensor's.
Tensor empty_like(const Tensor& like);
Tensor empty_with_width(const Tensor& like, std::int64_t width);
Tensor empty_vector(const Tensor& like, std::int64_t width);

class Call {
 public:
  /// `first` says where the call runs.
  Call(sluice_op op, Operand id, const Tensor& first);

  /// M tokens, model width D, hidden width H; what the operator does not read may stay 0.
  Call& dims(std::int64_t m, std::int64_t d, std::int64_t h);
  Call& gate(const GateArguments& gate);

  /// Types from tensors: of the activations, the weights, y and the weights' gradients.
  Call& x_type(const char* name, const Tensor& tensor);
  Call& w_type(const char* name, const Tensor& tensor);
  Call& y_type(const char* name, const Tensor& tensor);
  Call& dw_type(const char* name, const Tensor& tensor);

  /// Gives an operand its tensor: leading dimensions are its rows, the last is contiguous, and a
  /// matrix of weights may have three, the first being blocks of rows. Throws std::invalid_argument
  /// where that does not hold, or where the pair of a gate and an up matrix differs in strides.
  Call& bind(Operand id, const Tensor& tensor);
  Call& bind(Operand id, const MaybeTensor& tensor);

  /// Flags of the problem.
  sluice_problem& problem() { return problem_; }

  /// Plans, holds every operand against the plan's wishes, and runs. Throws std::invalid_argument
  /// naming the operand, else as errors.hpp says.
  void run();

 private:
  struct Bound {
    Operand id{};
    std::int64_t rows = 0, cols = 0;
    sluice_dtype dtype = 0;
    void* data = nullptr;
  };

  void set_layout(Operand id, const sluice_layout& layout);

  Place place_;
  sluice_problem problem_;  // zeroed first: the plan cache compares its bytes
  sluice_operands operands_{};
  std::array<Bound, sluice::kOperandCount> bound_{};
  std::size_t count_ = 0;
  std::array<bool, 14> layout_set_{};  // one a member of sluice_layouts
};

}  // namespace sluice_torch
