// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "errors.hpp"
#include "plan_cache.hpp"
#include "workspace.hpp"

namespace sluice_torch {
namespace {

using ll = long long;
using torch::headeronly::ScalarType;

// Torch aligns allocations to 64 bytes and more; the kernels ask for 16 at most.
constexpr std::uintptr_t kBestAlignment = 16;

static_assert(sizeof(sluice_operands) ==
                  sizeof(std::size_t) + sluice::kOperandCount * sizeof(void*),
              "pointers of sluice_operands lie in the order of Operand, after struct_size");
static_assert(sizeof(sluice_layouts) % sizeof(sluice_layout) == 0);

// An operand's name, for messages before there is a plan to ask, and its member of sluice_layouts:
// none for vectors, one for the two of a gate and up pair.
struct Description {
  const char* name;
  sluice_layout sluice_layouts::*layout;
};
using L = sluice_layouts;
constexpr std::array<Description, sluice::kOperandCount> kDescriptions = {{
    {"x", &L::x},
    {"x_residual", &L::x},
    {"norm_weight", nullptr},
    {"w_gate", &L::w_gate_up},
    {"w_up", &L::w_gate_up},
    {"w_down", &L::w_down},
    {"b_gate", nullptr},
    {"b_up", nullptr},
    {"b_down", nullptr},
    {"residual", &L::residual},
    {"dy", &L::dy},
    {"dh", &L::dh},
    {"g", &L::g_u},
    {"u", &L::g_u},
    {"h", &L::h},
    {"y", &L::y},
    {"x_sum", &L::x_sum},
    {"dg", &L::dg_du},
    {"du", &L::dg_du},
    {"dx", &L::dx},
    {"dw_gate", &L::dw_gate_up},
    {"dw_up", &L::dw_gate_up},
    {"dw_down", &L::dw_down},
    {"db_gate", nullptr},
    {"db_up", nullptr},
    {"db_down", nullptr},
}};

const Description& description(Operand id) { return kDescriptions[static_cast<std::size_t>(id)]; }

sluice_dtype dtype_of(const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16:
      return SLUICE_BF16;
    case ScalarType::Half:
      return SLUICE_FP16;
    case ScalarType::Float:
      return SLUICE_FP32;
    case ScalarType::Double:
      return SLUICE_FP64;
    default:
      refuse(name, "expected bfloat16, float16, float32 or float64");
  }
}

// Is it one of the matrices that may come as blocks of rows?
bool is_gate_up_weight(Operand id) {
  const auto layout = description(id).layout;
  return layout == &L::w_gate_up || layout == &L::dw_gate_up;
}

// The rows of a tensor whose last dimension is contiguous, in bytes. What needs no stride gets
// none, so that equal problems are equal bytes.
sluice_layout layout_of(Operand id, const Tensor& tensor) {
  const char* const name = description(id).name;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const auto last = sizes.size() - 1;
  const auto elem = static_cast<std::int64_t>(tensor.element_size());
  if (sizes[last] > 1 && strides[last] != 1) {
    refuse(name, "expected a contiguous last dimension, got a stride of %lld; call .contiguous()",
           ll{strides[last]});
  }
  sluice_layout layout{};
  layout.row_stride_bytes = SLUICE_CONTIGUOUS;
  if (tensor.numel() == 0) return layout;
  // From the innermost leading dimension outwards: `rows` rows `stride` elements apart.
  std::int64_t rows = 1;
  std::int64_t stride = sizes[last];
  for (std::size_t i = last; i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (rows == 1) {
      stride = strides[i];
    } else if (strides[i] != stride * rows) {
      if (!is_gate_up_weight(id) || layout.block_rows != 0) {
        refuse(name, "its leading dimensions are no rows at one distance; call .contiguous()");
      }
      layout.block_rows = rows;
      layout.block_stride_bytes = strides[i] * elem;
    }
    rows *= sizes[i];
  }
  if (stride != sizes[last] || layout.block_rows != 0) layout.row_stride_bytes = stride * elem;
  return layout;
}

Tensor empty(const Tensor& like, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  }
  std::int32_t dtype = 0;
  std::int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()),
                                                  sizes.data(), strides.data(), dtype, device_type,
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}

std::vector<std::int64_t> sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

}  // namespace

std::int64_t width_of(const char* name, const Tensor& tensor) {
  const std::int64_t dims = tensor.dim();
  if (dims == 0) refuse(name, "expected at least one dimension, got a scalar");
  return tensor.size(dims - 1);
}

std::int64_t rows_of(const char* name, const Tensor& tensor) {
  static_cast<void>(width_of(name, tensor));
  const auto sizes = tensor.sizes();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
  return rows;
}

Tensor empty_like(const Tensor& like) { return empty(like, sizes_of(like)); }

Tensor empty_with_width(const Tensor& like, std::int64_t width) {
  std::vector<std::int64_t> sizes = sizes_of(like);
  sizes.back() = width;
  return empty(like, sizes);
}

Tensor empty_vector(const Tensor& like, std::int64_t width) { return empty(like, {width}); }

Call::Call(sluice_op op, Operand id, const Tensor& first)
    : place_(place_of(description(id).name, first)) {
  std::memset(&problem_, 0, sizeof(problem_));
  sluice_error error{};
  check(sluice_problem_init(&problem_, sizeof(problem_), &error), error);
  problem_.op = op;
  problem_.weights_static = 0;
  operands_.struct_size = sizeof(operands_);
}

Call& Call::dims(std::int64_t m, std::int64_t d, std::int64_t h) {
  problem_.m = m;
  problem_.d = d;
  problem_.h = h;
  return *this;
}

Call& Call::gate(const GateArguments& gate) {
  if (gate.activation < 0 || gate.activation > std::numeric_limits<std::int32_t>::max()) {
    refuse("activation", "got %lld, wanted 0 or more", ll{gate.activation});
  }
  problem_.gate.activation = static_cast<sluice_activation>(gate.activation);
  problem_.gate.alpha = static_cast<float>(gate.alpha);
  problem_.gate.limit = static_cast<float>(gate.limit.value_or(HUGE_VAL));
  problem_.gate.up_offset = static_cast<float>(gate.up_offset);
  problem_.gate.gate_multiplier = static_cast<float>(gate.gate_multiplier);
  problem_.gate.output_multiplier = static_cast<float>(gate.output_multiplier);
  return *this;
}

Call& Call::x_type(const char* name, const Tensor& tensor) {
  problem_.x_dtype = dtype_of(name, tensor);
  return *this;
}
Call& Call::w_type(const char* name, const Tensor& tensor) {
  problem_.w_dtype = dtype_of(name, tensor);
  return *this;
}
Call& Call::y_type(const char* name, const Tensor& tensor) {
  problem_.y_dtype = dtype_of(name, tensor);
  return *this;
}
Call& Call::dw_type(const char* name, const Tensor& tensor) {
  problem_.dw_dtype = dtype_of(name, tensor);
  return *this;
}

void Call::set_layout(Operand id, const sluice_layout& layout) {
  const auto member = description(id).layout;
  sluice_layout& stored = problem_.layout.*member;
  const auto index = static_cast<std::size_t>(&stored - &problem_.layout.x);
  if (layout_set_[index] && std::memcmp(&stored, &layout, sizeof(layout)) != 0) {
    refuse(description(id).name, "expected the strides of its partner");
  }
  layout_set_[index] = true;
  stored = layout;
}

Call& Call::bind(Operand id, const Tensor& tensor) {
  const Description& about = description(id);
  if (!(place_of(about.name, tensor) == place_)) {
    refuse(about.name, "expected a tensor on the device of the others");
  }
  Bound bound{.id = id, .rows = rows_of(about.name, tensor), .cols = width_of(about.name, tensor)};
  bound.dtype = dtype_of(about.name, tensor);
  const sluice_layout layout = layout_of(id, tensor);
  if (about.layout != nullptr) set_layout(id, layout);
  bound.data = const_cast<void*>(tensor.const_data_ptr());
  bound_[count_++] = bound;
  return *this;
}

Call& Call::bind(Operand id, const MaybeTensor& tensor) {
  return tensor ? bind(id, *tensor) : *this;
}

void Call::run() {
  std::uintptr_t addresses = kBestAlignment;
  for (std::size_t i = 0; i < count_; ++i) {
    addresses |= reinterpret_cast<std::uintptr_t>(bound_[i].data);
    std::memcpy(reinterpret_cast<char*>(&operands_) + offsetof(sluice_operands, x) +
                    static_cast<std::size_t>(bound_[i].id) * sizeof(void*),
                &bound_[i].data, sizeof(void*));
  }
  problem_.alignment_bytes = static_cast<std::int64_t>(addresses & (~addresses + 1));
  const auto threads =
      place_.cuda ? 0 : static_cast<std::int32_t>(torch::stable::get_num_threads());
  const auto prepared = prepare(problem_, place_, threads);
  for (std::size_t i = 0; i < count_; ++i) {
    const Bound& bound = bound_[i];
    const sluice_operand_spec& wanted = prepared->operands[static_cast<std::size_t>(bound.id)];
    if (bound.rows != wanted.rows || bound.cols != wanted.cols) {
      refuse(wanted.name, "expected shape [%lld, %lld], got [%lld, %lld]", ll{wanted.rows},
             ll{wanted.cols}, ll{bound.rows}, ll{bound.cols});
    }
    if (bound.dtype != wanted.dtype) {
      refuse(wanted.name, "expected %s, got %s", sluice_dtype_name(wanted.dtype),
             sluice_dtype_name(bound.dtype));
    }
  }
  run_with_workspace(prepared->plan, operands_, prepared->workspace_bytes, place_);
}

}  // namespace sluice_torch
