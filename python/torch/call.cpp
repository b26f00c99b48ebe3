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

// Torch's tensors may have any number; a result's sizes and strides lie on the stack here.
constexpr std::size_t kMaxDims = 64;

// A tensor's shape as it lies in memory; the pointers are the tensor's.
struct Shape {
  std::size_t dims = 0;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* strides = nullptr;

  [[nodiscard]] std::int64_t width() const { return sizes[dims - 1]; }
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t product = 1;
    for (std::size_t i = 0; i + 1 < dims; ++i) product *= sizes[i];
    return product;
  }
};

Shape shape_of(const char* name, const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  if (sizes.empty()) refuse(name, "expected at least one dimension, got a scalar");
  if (sizes.size() > kMaxDims) {
    refuse(name, "expected at most %zu dimensions, got %zu", kMaxDims, sizes.size());
  }
  return {sizes.size(), sizes.data(), tensor.strides().data()};
}

std::int32_t torch_dtype_of(const Tensor& tensor) {
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

sluice_dtype dtype_of(const char* name, const Tensor& tensor) {
  struct Pair {
    std::int32_t torch;
    sluice_dtype ours;
  };
  static const Pair known[] = {{aoti_torch_dtype_bfloat16(), SLUICE_BF16},
                               {aoti_torch_dtype_float16(), SLUICE_FP16},
                               {aoti_torch_dtype_float32(), SLUICE_FP32},
                               {aoti_torch_dtype_float64(), SLUICE_FP64}};
  const std::int32_t dtype = torch_dtype_of(tensor);
  for (const Pair& pair : known) {
    if (pair.torch == dtype) return pair.ours;
  }
  refuse(name, "expected bfloat16, float16, float32 or float64");
}

std::int64_t size_bytes(sluice_dtype dtype) {
  return dtype == SLUICE_FP64 ? 8 : dtype == SLUICE_FP32 ? 4 : 2;
}

// Is it one of the matrices that may come as blocks of rows?
bool is_gate_up_weight(Operand id) {
  const auto layout = description(id).layout;
  return layout == &L::w_gate_up || layout == &L::dw_gate_up;
}

// The rows of a tensor whose last dimension is contiguous, in bytes. What needs no stride gets
// none, so that equal problems are equal bytes.
sluice_layout layout_of(Operand id, const Shape& shape, sluice_dtype dtype) {
  const char* const name = description(id).name;
  const std::size_t last = shape.dims - 1;
  const std::int64_t elem = size_bytes(dtype);
  if (shape.width() > 1 && shape.strides[last] != 1) {
    refuse(name, "expected a contiguous last dimension, got a stride of %lld; call .contiguous()",
           ll{shape.strides[last]});
  }
  sluice_layout layout{};
  layout.row_stride_bytes = SLUICE_CONTIGUOUS;
  if (shape.rows() * shape.width() == 0) return layout;
  // From the innermost leading dimension outwards: `rows` rows `stride` elements apart.
  std::int64_t rows = 1;
  std::int64_t stride = shape.width();
  for (std::size_t i = last; i-- > 0;) {
    if (shape.sizes[i] == 1) continue;
    if (rows == 1) {
      stride = shape.strides[i];
    } else if (shape.strides[i] != stride * rows) {
      if (!is_gate_up_weight(id) || layout.block_rows != 0) {
        refuse(name, "its leading dimensions are no rows at one distance; call .contiguous()");
      }
      layout.block_rows = rows;
      layout.block_stride_bytes = shape.strides[i] * elem;
    }
    rows *= shape.sizes[i];
  }
  if (stride != shape.width() || layout.block_rows != 0) layout.row_stride_bytes = stride * elem;
  return layout;
}

// Contiguous, in the shape of `like` but for the last dimension, in its type.
Tensor empty(const Tensor& like, const Shape& shape, std::int64_t width) {
  std::array<std::int64_t, kMaxDims> sizes;
  std::array<std::int64_t, kMaxDims> strides;
  std::int64_t stride = 1;
  for (std::size_t i = shape.dims; i-- > 0;) {
    sizes[i] = i + 1 == shape.dims ? width : shape.sizes[i];
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  std::int32_t device_type = 0;
  std::int32_t device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<std::int64_t>(shape.dims), sizes.data(), strides.data(),
                               torch_dtype_of(like), device_type, device_index, &handle));
  return Tensor(handle);
}

// A problem as sluice_problem_init makes it, with zeros between its members.
const sluice_problem& new_problem() {
  static const sluice_problem made = [] {
    sluice_problem problem;
    std::memset(&problem, 0, sizeof(problem));
    sluice_error error{};
    check(sluice_problem_init(&problem, sizeof(problem), &error), error);
    problem.weights_static = 0;
    return problem;
  }();
  return made;
}

}  // namespace

std::int64_t rows_of(const char* name, const Tensor& tensor) {
  return shape_of(name, tensor).rows();
}

Tensor empty_like(const Tensor& like) {
  const Shape shape = shape_of("x", like);
  return empty(like, shape, shape.width());
}

Tensor empty_with_width(const Tensor& like, std::int64_t width) {
  return empty(like, shape_of("x", like), width);
}

Tensor empty_vector(const Tensor& like, std::int64_t width) {
  return empty(like, {.dims = 1}, width);
}

void count_write(const Tensor& written) {
  Tensor same = written;  // a copy of a tensor to itself is counted, and copies nothing
  torch::stable::copy_(same, written);
}

Call::Call(sluice_op op) {
  std::memcpy(&problem_, &new_problem(), sizeof(problem_));  // an assignment may leave gaps out
  problem_.op = op;
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

Call& Call::types(sluice_dtype x, sluice_dtype w) {
  problem_.x_dtype = problem_.y_dtype = x;
  problem_.w_dtype = w;
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

const Bound& Call::bind(Operand id, const Tensor& tensor) {
  const Description& about = description(id);
  const Place place = place_of(about.name, tensor);
  if (count_ == 0) place_ = place;
  if (!(place == place_)) refuse(about.name, "expected a tensor on the device of the others");
  const Shape shape = shape_of(about.name, tensor);
  Bound& bound = bound_[count_++];
  bound.id = id;
  bound.rows = shape.rows();
  bound.cols = shape.width();
  bound.dtype = dtype_of(about.name, tensor);
  bound.data = const_cast<void*>(tensor.const_data_ptr());
  const sluice_layout layout = layout_of(id, shape, bound.dtype);
  if (about.layout != nullptr) set_layout(id, layout);
  return bound;
}

const Bound* Call::bind(Operand id, const MaybeTensor& tensor) {
  return tensor ? &bind(id, *tensor) : nullptr;
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
  const Prepared& prepared = prepare(problem_, place_, threads);
  for (std::size_t i = 0; i < count_; ++i) {
    const Bound& bound = bound_[i];
    const sluice_operand_spec& wanted = prepared.operands[static_cast<std::size_t>(bound.id)];
    if (bound.rows != wanted.rows || bound.cols != wanted.cols) {
      refuse(wanted.name, "expected shape [%lld, %lld], got [%lld, %lld]", ll{wanted.rows},
             ll{wanted.cols}, ll{bound.rows}, ll{bound.cols});
    }
    if (bound.dtype != wanted.dtype) {
      refuse(wanted.name, "expected %s, got %s", sluice_dtype_name(wanted.dtype),
             sluice_dtype_name(bound.dtype));
    }
  }
  run_with_workspace(prepared.plan, operands_, prepared.workspace_bytes, place_);
}

}  // namespace sluice_torch
