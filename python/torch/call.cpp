// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "binding/errors.hpp"
#include "binding/problem.hpp"
#include "threads.hpp"
#include "workspace.hpp"

namespace sluice_torch {
namespace {

using ll = long long;
using sluice_binding::new_problem;
using sluice_binding::Prepared;
using sluice_binding::refuse;

// Torch aligns allocations to 64 bytes and more; the kernels ask for 16 at most.
constexpr std::uintptr_t kBestAlignment = 16;

static_assert(sizeof(sluice_layouts) % sizeof(sluice_layout) == 0);

// An operand's name, for messages before there is a plan to ask, and its member of sluice_layouts:
// none for vectors, one for the two of a gate and up pair.
struct Description {
  const char* name;
  sluice_layout sluice_layouts::*layout;
};
using L = sluice_layouts;
constexpr Description kDescriptions[] = {
#define SLUICE_MATRIX(id, member, shape, dtype, layout) {#member, &L::layout},
#define SLUICE_VECTOR(id, member, shape, dtype) {#member, nullptr},
#include "core/operands.inc"
};

const Description& description(Operand id) { return kDescriptions[static_cast<std::size_t>(id)]; }

// Of a rank that waits for another, before it gives NaN: Torch's own limit for NCCL.
constexpr std::int64_t kPeerLimitUs = 600'000'000;

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
  if (!tensor.defined()) refuse(name, "got none");
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

struct Type {
  std::int32_t torch;
  sluice_dtype ours;
  std::int64_t bytes;
};

const Type& type_of(const char* name, const Tensor& tensor) {
  static const Type known[] = {{aoti_torch_dtype_bfloat16(), SLUICE_BF16, 2},
                               {aoti_torch_dtype_float16(), SLUICE_FP16, 2},
                               {aoti_torch_dtype_float32(), SLUICE_FP32, 4},
                               {aoti_torch_dtype_float64(), SLUICE_FP64, 8}};
  const std::int32_t dtype = torch_dtype_of(tensor);
  for (const Type& type : known) {
    if (type.torch == dtype) return type;
  }
  refuse(name, "expected bfloat16, float16, float32 or float64");
}

// Is it one of the matrices that may come as blocks of rows?
bool is_gate_up_weight(Operand id) {
  const auto layout = description(id).layout;
  return layout == &L::w_gate_up || layout == &L::dw_gate_up;
}

// What needs no stride gets none, so that equal problems are equal bytes.
constexpr sluice_layout kContiguous = {SLUICE_CONTIGUOUS, 0, 0, 0, 0};

// A tensor's strides as a layout, or why they are none.
struct Rows {
  sluice_layout layout = kContiguous;
  const char* obstacle = nullptr;
};

Rows layout_of(const Bound& bound, const Shape& shape) {
  const std::size_t last = shape.dims - 1;
  const std::int64_t elem = bound.elem_bytes;
  if (shape.rows() * shape.width() == 0) return {};
  if (shape.width() > 1 && shape.strides[last] != 1) {
    return {.obstacle = "expected a contiguous last dimension; call .contiguous()"};
  }
  // From the innermost leading dimension outwards: `rows` rows `stride` elements apart, then blocks
  // of them.
  std::int64_t rows = 1;
  std::int64_t stride = shape.width();
  std::int64_t block_rows = 0;
  std::int64_t block_stride = 0;
  for (std::size_t i = last; i-- > 0;) {
    const std::int64_t distance = shape.strides[i];
    if (shape.sizes[i] == 1) continue;
    if (rows == 1) {
      stride = distance;
    } else if (block_rows == 0 && distance != stride * rows && is_gate_up_weight(bound.id)) {
      block_rows = rows;
      block_stride = distance;
    } else if (distance != (block_rows == 0 ? stride * rows : block_stride * (rows / block_rows))) {
      return {.obstacle = "its leading dimensions are no rows at one distance; call .contiguous()"};
    }
    rows *= shape.sizes[i];
  }
  // One row read again and again is fine.
  if ((stride != 0 && stride < shape.width()) ||
      (block_rows != 0 && block_stride < (block_rows - 1) * stride + shape.width())) {
    return {.obstacle = "its rows overlap; call .contiguous()"};
  }
  if (stride == shape.width() && block_rows == 0) return {};
  return {.layout = {stride * elem, block_rows, block_stride * elem, 0, 0}};
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

// Torch's C ABI cannot say whether a tensor wants a gradient; Python does (torch_operators.py).
void refuse_gradients(const std::vector<Tensor>& tensors) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(tensors)};
  if (torch_call_dispatcher("sluice::_wants_gradient", "", stack.data(), TORCH_ABI_VERSION) ==
          AOTI_TORCH_SUCCESS &&
      torch::stable::detail::to<bool>(stack[0])) {
    throw std::runtime_error(
        "sluice: functions with out=... arguments don't support automatic differentiation, but one "
        "of the arguments requires grad.");
  }
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

bool Call::take_layout(Operand id, const sluice_layout& layout) {
  const auto member = description(id).layout;
  if (member == nullptr) return true;
  sluice_layout& stored = problem_.layout.*member;
  const auto index = static_cast<std::size_t>(&stored - &problem_.layout.x);
  if (layout_set_[index] && std::memcmp(&stored, &layout, sizeof(layout)) != 0) return false;
  layout_set_[index] = true;
  stored = layout;
  return true;
}

Bound& Call::bind(Operand id, const Tensor& tensor) {
  const char* const name = description(id).name;
  const Shape shape = shape_of(name, tensor);
  const Place place = place_of(name, tensor);
  if (count_ == 0) place_ = place;
  if (!(place == place_)) refuse(name, "expected a tensor on the device of the others");
  Bound& bound = bound_[count_++];
  bound.id = id;
  bound.rows = shape.rows();
  bound.cols = shape.width();
  const Type& type = type_of(name, tensor);
  bound.dtype = type.ours;
  bound.elem_bytes = type.bytes;
  bound.tensor = &tensor;
  return bound;
}

// On a GPU a weight that is gate and up both: kernels walk from one to the other by their distance,
// which a tensor map wants above 0 (make_pair_view).
bool Call::is_its_partner(const Bound& bound) const {
  if (!place_.cuda || description(bound.id).layout != &L::w_gate_up) return false;
  return std::any_of(bound_.begin(), bound_.begin() + count_, [&](const Bound& other) {
    return other.id != bound.id && other.data == bound.data &&
           description(other.id).layout == &L::w_gate_up;
  });
}

void Call::copy(Bound& bound, const char* why) {
  if (bound.copy) return;
  if (!may_borrow(place_)) {
    refuse(description(bound.id).name,
           "%s wants a copy, which a graph captured outside of Torch does not keep", why);
  }
  // contiguous() gives back a tensor that already is, and two of one weight want two places.
  bound.copy = bound.tensor->is_contiguous() ? torch::stable::clone(*bound.tensor)
                                             : torch::stable::contiguous(*bound.tensor);
  bound.data = const_cast<void*>(bound.copy->const_data_ptr());
}

// They share one layout.
void Call::copy_with_partner(Bound& bound, const char* why) {
  copy(bound, why);
  const auto member = description(bound.id).layout;
  if (member == nullptr) return;
  for (std::size_t i = 0; i < count_; ++i) {
    if (description(bound_[i].id).layout == member) copy(bound_[i], why);
  }
  problem_.layout.*member = kContiguous;
}

const Bound& Call::in(Operand id, const Tensor& tensor) {
  Bound& bound = bind(id, tensor);
  const Rows rows = layout_of(bound, shape_of(description(id).name, tensor));
  const char* why = "its layout";
  if (rows.obstacle == nullptr && take_layout(id, rows.layout)) {
    bound.data = const_cast<void*>(tensor.const_data_ptr());
    if (!is_its_partner(bound)) return bound;
    why = "one weight as gate and up";
  }
  if (take_layout(id, kContiguous)) {
    copy(bound, why);
  } else {
    copy_with_partner(bound, why);
  }
  return bound;
}

const Bound* Call::in(Operand id, const MaybeTensor& tensor) {
  return tensor ? &in(id, *tensor) : nullptr;
}

const Bound& Call::out(Operand id, const Tensor& tensor) {
  Bound& bound = bind(id, tensor);
  const char* const name = description(id).name;
  const Rows rows = layout_of(bound, shape_of(name, tensor));
  if (rows.obstacle != nullptr) refuse(name, "%s", rows.obstacle);
  if (!take_layout(id, rows.layout)) refuse(name, "expected the strides of its partner");
  bound.data = tensor.mutable_data_ptr();
  bound.written = true;
  return bound;
}

const Bound* Call::out(Operand id, const MaybeTensor& tensor) {
  return tensor ? &out(id, *tensor) : nullptr;
}

// Rows of 16-bit elements that begin inside the units of 16 bytes which tensor cores are fed by, on
// a GPU, where copies let them be used. An input of a forward GEMM at odd distances the library
// copies itself, while weights are fetched.
void Call::copy_split_units() {
  const sluice_problem& p = problem_;
  const bool elementwise = p.op == SLUICE_GATE_MUL || p.op == SLUICE_GATE_MUL_GRAD;
  const bool forward = p.op == SLUICE_GATE_UP || p.op == SLUICE_DOWN || p.op == SLUICE_MLP;
  if (!place_.cuda || elementwise || p.x_dtype != p.w_dtype || p.d % 8 != 0 || p.h % 8 != 0) return;
  const auto splits = [](std::uint64_t bytes) { return bytes % kBestAlignment != 0; };
  const auto is_split = [&](const Bound& bound) {
    if (bound.elem_bytes != 2) return false;
    if (splits(reinterpret_cast<std::uintptr_t>(bound.data))) return true;
    const auto member = description(bound.id).layout;
    if (member == nullptr) return false;
    const sluice_layout& layout = p.layout.*member;
    const bool anywhere =
        member == &L::x || member == &L::h || member == &L::residual || member == &L::y;
    if (anywhere && forward && p.norm.enabled == 0) return false;
    return (layout.row_stride_bytes != SLUICE_CONTIGUOUS &&
            splits(static_cast<std::uint64_t>(layout.row_stride_bytes))) ||
           splits(static_cast<std::uint64_t>(layout.block_stride_bytes));
  };
  const auto end = bound_.begin() + count_;
  if (std::any_of(bound_.begin(), end, [&](const Bound& b) { return b.written && is_split(b); }) ||
      std::none_of(bound_.begin(), end, is_split) || !may_borrow(place_)) {
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    if (is_split(bound_[i])) copy_with_partner(bound_[i], "its place");
  }
}

const Prepared& Call::prepare() {
  copy_split_units();
  std::uintptr_t addresses = kBestAlignment;
  for (std::size_t i = 0; i < count_; ++i) {
    addresses |= reinterpret_cast<std::uintptr_t>(bound_[i].data);
    sluice_binding::set_operand(operands_, bound_[i].id, bound_[i].data);
  }
  problem_.alignment_bytes = static_cast<std::int64_t>(addresses & (~addresses + 1));
  const auto threads =
      place_.cuda ? 0 : static_cast<std::int32_t>(torch::stable::get_num_threads());
  const Prepared& prepared = sluice_binding::prepare(problem_, place_, threads, on_torch_threads);
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
    if (wanted.access != SLUICE_UNUSED && bound.written != (wanted.access != SLUICE_READ)) {
      throw std::logic_error(std::string(wanted.name) + ": bound as what it is not");
    }
    // Sums over no tokens, which run() leaves alone.
    if (problem_.m == 0 && wanted.access == SLUICE_WRITE) torch::stable::fill_(*bound.tensor, 0.0);
  }
  return prepared;
}

void Call::run() {
  const Prepared& prepared = prepare();
  run_with_workspace({prepared.plan, operands_, nullptr}, prepared.workspace_bytes, place_);
}

std::int64_t Call::run(const Ranks& ranks) {
  const std::size_t world = ranks.peers.size();
  if (world > SLUICE_MAX_RANKS) refuse("peers", "got %zu, wanted 2, 4 or 8", world);
  problem_.reduce.kind = SLUICE_ALL_REDUCE;
  problem_.reduce.rank = static_cast<std::int32_t>(ranks.rank);
  problem_.reduce.world = static_cast<std::int32_t>(world);
  const Prepared& prepared = prepare();
  const auto wanted = static_cast<std::int64_t>(sluice_plan_peer_bytes(&prepared.plan));
  if (wanted > ranks.peer_bytes) return wanted;
  sluice_peers peers{};
  peers.struct_size = sizeof(peers);
  static_assert(sizeof(ranks.peers[0]) == sizeof(peers.buffers[0]));
  std::memcpy(peers.buffers, ranks.peers.data(), world * sizeof(peers.buffers[0]));
  peers.bytes = static_cast<std::size_t>(ranks.peer_bytes);
  peers.time_limit_us = kPeerLimitUs;
  run_with_workspace({prepared.plan, operands_, &peers}, prepared.workspace_bytes, place_);
  return wanted;
}

}  // namespace sluice_torch
