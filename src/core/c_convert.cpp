// SPDX-License-Identifier: Apache-2.0
// Member by member between C and C++; the assertions say where bytes may be copied instead.
#include "core/c_convert.hpp"

#include <bit>
#include <type_traits>
#include <utility>

namespace sluice::c_api {
namespace {

template <class E>
constexpr bool same(int c, E cpp) {
  return c == static_cast<int>(cpp);
}

static_assert(same(SLUICE_INVALID_ARGUMENT, ErrorCode::kInvalidArgument) &&
              same(SLUICE_UNSUPPORTED, ErrorCode::kUnsupported) &&
              same(SLUICE_OUT_OF_MEMORY, ErrorCode::kOutOfMemory) &&
              same(SLUICE_DEVICE_ERROR, ErrorCode::kDevice) &&
              same(SLUICE_INTERNAL, ErrorCode::kInternal));
static_assert(same(SLUICE_BF16, DType::kBF16) && same(SLUICE_FP16, DType::kF16) &&
              same(SLUICE_FP32, DType::kF32) && same(SLUICE_FP64, DType::kF64) &&
              same(SLUICE_Q8_0, DType::kQ8_0) && same(SLUICE_Q4_0, DType::kQ4_0) &&
              same(SLUICE_Q4_1, DType::kQ4_1));
static_assert(same(SLUICE_GATE_UP, Op::kGateUp) && same(SLUICE_DOWN, Op::kDown) &&
              same(SLUICE_MLP, Op::kMlp) && same(SLUICE_GATE_MUL, Op::kGateMul) &&
              same(SLUICE_GATE_MUL_GRAD, Op::kGateMulGrad) &&
              same(SLUICE_GATE_UP_GRAD, Op::kGateUpGrad) && same(SLUICE_MLP_GRAD, Op::kMlpGrad) &&
              same(SLUICE_NORM, Op::kNorm) && same(SLUICE_INPUT_GRAD, Op::kInputGrad) &&
              same(SLUICE_WEIGHT_GRAD, Op::kWeightGrad) &&
              same(SLUICE_COLUMN_SUM, Op::kColumnSum) && same(SLUICE_LINEAR, Op::kLinear));
static_assert(same(SLUICE_SILU, Activation::kSilu) &&
              same(SLUICE_GELU_TANH, Activation::kGeluTanh) &&
              same(SLUICE_GELU_ERF, Activation::kGeluErf) && same(SLUICE_RELU, Activation::kRelu) &&
              same(SLUICE_SIGMOID, Activation::kSigmoid) &&
              same(SLUICE_IDENTITY, Activation::kIdentity));
static_assert(same(SLUICE_RESIDUAL_NONE, Residual::kNone) &&
              same(SLUICE_RESIDUAL_OPERAND, Residual::kOperand) &&
              same(SLUICE_RESIDUAL_NORM_INPUT, Residual::kNormInput));
static_assert(same(SLUICE_CPU, Backend::kCpu) && same(SLUICE_CUDA_DEVICE, Backend::kCuda));
static_assert(same(SLUICE_HEURISTIC, ChoiceSource::kHeuristic) &&
              same(SLUICE_FORCED, ChoiceSource::kForced) &&
              same(SLUICE_TUNE_TABLE, ChoiceSource::kTuneTable) &&
              same(SLUICE_NEAREST_ENTRY, ChoiceSource::kNearestEntry) &&
              same(SLUICE_SHIPPED_TABLE, ChoiceSource::kShippedTable));
static_assert(same(SLUICE_UNUSED, Access::kUnused) && same(SLUICE_READ, Access::kRead) &&
              same(SLUICE_WRITE, Access::kWrite) && same(SLUICE_READ_WRITE, Access::kReadWrite));
static_assert(same(SLUICE_PACK_GATE_UP, PackOrder::kGateUp) &&
              same(SLUICE_PACK_UP_GATE, PackOrder::kUpGate));
static_assert(SLUICE_OPERAND_COUNT == kOperandCount && SLUICE_MAX_NAME == kMaxName &&
              SLUICE_MAX_CONFIG == kMaxConfig && SLUICE_CONTIGUOUS == kContiguous);
// These are copied as bytes.
static_assert(sizeof(sluice_layout) == sizeof(Layout) &&
              offsetof(sluice_layout, col_block_stride_bytes) ==
                  offsetof(Layout, col_block_stride_bytes) &&
              std::is_trivially_copyable_v<Layout>);
static_assert(sizeof(sluice_layouts) == sizeof(Layouts) &&
              offsetof(sluice_layouts, dw_down) == offsetof(Layouts, dw_down));
static_assert(sizeof(sluice_operands) == sizeof(std::size_t) + sizeof(Operands) &&
              offsetof(sluice_operands, y_norm) ==
                  sizeof(std::size_t) + offsetof(Operands, y_norm));
static_assert(same(SLUICE_REDUCE_NONE, ReduceKind::kNone) &&
              same(SLUICE_ALL_REDUCE, ReduceKind::kAllReduce) && SLUICE_MAX_RANKS == kMaxRanks &&
              SLUICE_PEER_HEADER_BYTES == kPeerHeaderBytes);
static_assert(sizeof(sluice_error::message) == Error::kMaxMessage &&
              sizeof(sluice_device::name) == sizeof(Device::name));

// The members that C and C++ both have, once for both ways: `put` takes C's, C++'s and the count of
// an enumerator; what may be refused has its name in front.
template <class C, class Cpp, class Put>
void each_norm_member(C& c, Cpp& n, const char* enabled, const char* add, Put& put) {
  put(enabled, c.enabled, n.enabled);
  put(add, c.add, n.add);
  put(c.eps, n.eps);
  put(c.weight_offset, n.weight_offset);
}

template <class C, class Cpp, class Put>
void each_problem_member(C& c, Cpp& p, Put& put) {
  put("op", c.op, p.op, kOpCount);
  put("x_dtype", c.x_dtype, p.x_dtype, kDTypeCount);
  put("w_dtype", c.w_dtype, p.w_dtype, kDTypeCount);
  put("y_dtype", c.y_dtype, p.y_dtype, kDTypeCount);
  put("dw_dtype", c.dw_dtype, p.dw_dtype, kDTypeCount);
  put("residual", c.residual, p.residual, 3);
  put(c.m, p.m);
  put(c.d, p.d);
  put(c.h, p.h);
  put("gate.activation", c.gate.activation, p.gate.activation, kActivationCount);
  put(c.gate.alpha, p.gate.alpha);
  put(c.gate.limit, p.gate.limit);
  put(c.gate.up_offset, p.gate.up_offset);
  put(c.gate.gate_multiplier, p.gate.gate_multiplier);
  put(c.gate.output_multiplier, p.gate.output_multiplier);
  each_norm_member(c.norm, p.norm, "norm.enabled", "norm.add", put);
  put("bias_gate_up", c.bias_gate_up, p.bias_gate_up);
  put("bias_down", c.bias_down, p.bias_down);
  put("save_g_u", c.save_g_u, p.save_g_u);
  put("recompute", c.recompute, p.recompute);
  put("accumulate_dw", c.accumulate_dw, p.accumulate_dw);
  put("save_dg_du", c.save_dg_du, p.save_dg_du);
  put("weights_static", c.weights_static, p.weights_static);
  put("round_gate", c.round_gate, p.round_gate);
  put(c.alignment_bytes, p.alignment_bytes);
  put("reduce.kind", c.reduce.kind, p.reduce.kind, 2);
  put(c.reduce.rank, p.reduce.rank);
  put(c.reduce.world, p.reduce.world);
  each_norm_member(c.reduce.norm, p.reduce.norm, "reduce.norm.enabled", "reduce.norm.add", put);
}

template <class C, class Cpp, class Put>
void each_device_member(C& c, Cpp& d, Put& put) {
  put("device.backend", c.backend, d.backend, 2);
  put("device.arch", c.arch, d.arch, static_cast<int>(Arch::kBlackwell) + 1);
  put(c.ordinal, d.ordinal);
  put(c.compute_capability, d.compute_capability);
  put(c.sm_count, d.sm_count);
  put(c.smem_per_block_bytes, d.smem_per_block_bytes);
  put("device.cooperative_launch", c.cooperative_launch, d.cooperative_launch);
  put(c.cublaslt_version, d.cublaslt_version);
  put(c.driver_version, d.driver_version);
  put(c.runtime_version, d.runtime_version);
  put(c.threads, d.threads);
  put(c.simd_targets, d.simd_targets);
  put("device.slow_bf16_products", c.slow_bf16_products, d.slow_bf16_products);
  put(c.l1d_bytes, d.l1d_bytes);
  put(c.l2_bytes, d.l2_bytes);
  put(c.l3_bytes, d.l3_bytes);
  put(c.memory_bytes, d.memory_bytes);
  put(c.memory_bytes_per_second, d.memory_bytes_per_second);
}

// From C to C++; keeps the first refusal.
struct FromC {
  Status status;

  template <class T>
  void operator()(const T& c, T& cpp) {
    cpp = c;
  }
  void operator()(const char* name, std::int32_t c, bool& cpp) {
    if (status) status = convert(name, c, &cpp);
  }
  template <class E>
  void operator()(const char* name, std::int32_t c, E& cpp, int count) {
    if (status) status = convert(name, c, count, &cpp);
  }
};

struct ToC {
  template <class T>
  void operator()(T& c, const T& cpp) const {
    c = cpp;
  }
  void operator()(const char* /*name*/, std::int32_t& c, bool cpp) const { c = cpp; }
  template <class E>
  void operator()(const char* /*name*/, std::int32_t& c, E cpp, int /*count*/) const {
    c = static_cast<std::int32_t>(cpp);
  }
};

// Where there is none its numbers are an older caller's zeros, and the defaults in C++.
bool has_norm(const Reduce& reduce) { return reduce.norm.enabled || reduce.norm.add; }

}  // namespace

Expected<Problem> to_cpp(const sluice_problem* given) noexcept {
  const auto read_problem = read(given, "problem");
  if (!read_problem) return read_problem.error();
  Problem p;
  FromC put;
  each_problem_member(*read_problem, p, put);
  if (!put.status) return put.status.error();
  if (!has_norm(p.reduce)) p.reduce.norm = {};
  p.layout = std::bit_cast<Layouts>(read_problem->layout);
  return p;
}

Expected<Device> to_cpp(const sluice_device* given) noexcept {
  const auto read_device = read(given, "device");
  if (!read_device) return read_device.error();
  const sluice_device& c = *read_device;
  Device d;
  FromC put;
  each_device_member(c, d, put);
  if (!put.status) return put.status.error();
  std::memcpy(d.name, c.name, sizeof(d.name));
  d.name[sizeof(d.name) - 1] = '\0';
  return d;
}

sluice_operand_spec to_c(const OperandSpec& s) noexcept {
  sluice_operand_spec c{};
  c.name = s.name;
  c.access = static_cast<sluice_access>(s.access);
  c.required = s.required;
  c.dtype = static_cast<sluice_dtype>(s.dtype);
  c.rows = s.rows;
  c.cols = s.cols;
  c.extent_bytes = s.access == Access::kUnused ? 0 : extent_bytes(s);
  c.layout = std::bit_cast<sluice_layout>(s.layout);
  return c;
}

Expected<Operands> to_cpp(const sluice_operands* given) noexcept {
  const auto c = read(given, "operands");
  if (!c) return c.error();
  Operands operands;
  std::memcpy(&operands, reinterpret_cast<const unsigned char*>(&*c) + sizeof(std::size_t),
              sizeof(operands));
  return operands;
}

Expected<Peers> to_cpp(const sluice_peers* given) noexcept {
  const auto c = read(given, "peers");
  if (!c) return c.error();
  if (c->reserved != 0) {
    return make_error(ErrorCode::kInvalidArgument, "peers.reserved: got %d, wanted 0", c->reserved);
  }
  Peers peers;
  std::memcpy(peers.buffers, c->buffers, sizeof(peers.buffers));
  peers.bytes = c->bytes;
  peers.time_limit_us = c->time_limit_us;
  SLUICE_TRY(convert("peers.share_device", c->share_device, &peers.share_device));
  return peers;
}

Expected<Packing> to_cpp(const sluice_packing* given) noexcept {
  const auto c = read(given, "packing");
  if (!c) return c.error();
  return Packing{.h = c->h,
                 .d = c->d,
                 .element_bytes = c->element_bytes,
                 .block_rows = c->block_rows,
                 .order = static_cast<PackOrder>(c->order),
                 .gate_stride_bytes = c->gate_stride_bytes,
                 .up_stride_bytes = c->up_stride_bytes,
                 .packed_stride_bytes = c->packed_stride_bytes};
}

}  // namespace sluice::c_api

namespace sluice {

sluice_problem to_c(const Problem& p) noexcept {
  sluice_problem c{};
  c.struct_size = sizeof(c);
  c_api::ToC put;
  c_api::each_problem_member(c, p, put);
  if (!c_api::has_norm(p.reduce)) c.reduce.norm = {};
  c.layout = std::bit_cast<sluice_layouts>(p.layout);
  return c;
}

sluice_device to_c(const Device& d) noexcept {
  sluice_device c{};
  c.struct_size = sizeof(c);
  c_api::ToC put;
  c_api::each_device_member(c, d, put);
  std::memcpy(c.name, d.name, sizeof(c.name));
  return c;
}

sluice_operands to_c(const Operands& operands) noexcept {
  sluice_operands c{};
  c.struct_size = sizeof(c);
  std::memcpy(reinterpret_cast<unsigned char*>(&c) + sizeof(std::size_t), &operands,
              sizeof(operands));
  return c;
}

}  // namespace sluice
