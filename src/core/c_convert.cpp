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

Norm norm_of(const sluice_norm& c, bool enabled, bool add) {
  return {.enabled = enabled, .add = add, .eps = c.eps, .weight_offset = c.weight_offset};
}

// Where there is none its numbers are an older caller's zeros: they stay the defaults.
Status convert_reduce(const sluice_reduce& c, Reduce* out) {
  bool enabled = false;
  bool add = false;
  SLUICE_TRY(convert("reduce.kind", c.kind, 2, &out->kind));
  SLUICE_TRY(convert("reduce.norm.enabled", c.norm.enabled, &enabled));
  SLUICE_TRY(convert("reduce.norm.add", c.norm.add, &add));
  out->rank = c.rank;
  out->world = c.world;
  if (enabled || add) out->norm = norm_of(c.norm, enabled, add);
  return {};
}

}  // namespace

Expected<Problem> to_cpp(const sluice_problem* given) noexcept {
  const auto read_problem = read(given, "problem");
  if (!read_problem) return read_problem.error();
  const sluice_problem& c = *read_problem;
  Problem p;
  SLUICE_TRY(convert("op", c.op, kOpCount, &p.op));
  SLUICE_TRY(convert("x_dtype", c.x_dtype, kDTypeCount, &p.x_dtype));
  SLUICE_TRY(convert("w_dtype", c.w_dtype, kDTypeCount, &p.w_dtype));
  SLUICE_TRY(convert("y_dtype", c.y_dtype, kDTypeCount, &p.y_dtype));
  SLUICE_TRY(convert("dw_dtype", c.dw_dtype, kDTypeCount, &p.dw_dtype));
  SLUICE_TRY(convert("residual", c.residual, 3, &p.residual));
  SLUICE_TRY(convert("gate.activation", c.gate.activation, kActivationCount, &p.gate.activation));
  p.m = c.m;
  p.d = c.d;
  p.h = c.h;
  p.gate.alpha = c.gate.alpha;
  p.gate.limit = c.gate.limit;
  p.gate.up_offset = c.gate.up_offset;
  p.gate.gate_multiplier = c.gate.gate_multiplier;
  p.gate.output_multiplier = c.gate.output_multiplier;
  bool norm_enabled = false;
  bool norm_add = false;
  SLUICE_TRY(convert("norm.enabled", c.norm.enabled, &norm_enabled));
  SLUICE_TRY(convert("norm.add", c.norm.add, &norm_add));
  p.norm = norm_of(c.norm, norm_enabled, norm_add);
  SLUICE_TRY(convert("bias_gate_up", c.bias_gate_up, &p.bias_gate_up));
  SLUICE_TRY(convert("bias_down", c.bias_down, &p.bias_down));
  SLUICE_TRY(convert("save_g_u", c.save_g_u, &p.save_g_u));
  SLUICE_TRY(convert("recompute", c.recompute, &p.recompute));
  SLUICE_TRY(convert("accumulate_dw", c.accumulate_dw, &p.accumulate_dw));
  SLUICE_TRY(convert("save_dg_du", c.save_dg_du, &p.save_dg_du));
  SLUICE_TRY(convert("weights_static", c.weights_static, &p.weights_static));
  SLUICE_TRY(convert("round_gate", c.round_gate, &p.round_gate));
  p.alignment_bytes = c.alignment_bytes;
  p.layout = std::bit_cast<Layouts>(c.layout);
  SLUICE_TRY(convert_reduce(c.reduce, &p.reduce));
  return p;
}

Expected<Device> to_cpp(const sluice_device* given) noexcept {
  const auto read_device = read(given, "device");
  if (!read_device) return read_device.error();
  const sluice_device& c = *read_device;
  Device d;
  SLUICE_TRY(convert("device.backend", c.backend, 2, &d.backend));
  SLUICE_TRY(convert("device.arch", c.arch, static_cast<int>(Arch::kBlackwell) + 1, &d.arch));
  if (c.cublaslt_version < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "device.cublaslt_version: got %d, wanted 0 or more", c.cublaslt_version);
  }
  d.ordinal = c.ordinal;
  d.compute_capability = c.compute_capability;
  d.sm_count = c.sm_count;
  d.smem_per_block_bytes = c.smem_per_block_bytes;
  SLUICE_TRY(convert("device.cooperative_launch", c.cooperative_launch, &d.cooperative_launch));
  d.cublaslt_version = c.cublaslt_version;
  d.driver_version = c.driver_version;
  d.runtime_version = c.runtime_version;
  d.threads = c.threads;
  d.simd_targets = c.simd_targets;
  SLUICE_TRY(convert("device.slow_bf16_products", c.slow_bf16_products, &d.slow_bf16_products));
  d.l1d_bytes = c.l1d_bytes;
  d.l2_bytes = c.l2_bytes;
  d.l3_bytes = c.l3_bytes;
  d.memory_bytes = c.memory_bytes;
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
namespace {

sluice_norm c_norm(const Norm& n) { return {n.enabled, n.add, n.eps, n.weight_offset}; }

}  // namespace

sluice_problem to_c(const Problem& p) noexcept {
  sluice_problem c{};
  c.struct_size = sizeof(c);
  c.op = static_cast<sluice_op>(p.op);
  c.x_dtype = static_cast<sluice_dtype>(p.x_dtype);
  c.w_dtype = static_cast<sluice_dtype>(p.w_dtype);
  c.y_dtype = static_cast<sluice_dtype>(p.y_dtype);
  c.dw_dtype = static_cast<sluice_dtype>(p.dw_dtype);
  c.residual = static_cast<sluice_residual>(p.residual);
  c.m = p.m;
  c.d = p.d;
  c.h = p.h;
  c.gate = {static_cast<sluice_activation>(p.gate.activation),
            p.gate.alpha,
            p.gate.limit,
            p.gate.up_offset,
            p.gate.gate_multiplier,
            p.gate.output_multiplier};
  c.norm = c_norm(p.norm);
  c.bias_gate_up = p.bias_gate_up;
  c.bias_down = p.bias_down;
  c.save_g_u = p.save_g_u;
  c.recompute = p.recompute;
  c.accumulate_dw = p.accumulate_dw;
  c.save_dg_du = p.save_dg_du;
  c.weights_static = p.weights_static;
  c.round_gate = p.round_gate;
  c.alignment_bytes = p.alignment_bytes;
  c.layout = std::bit_cast<sluice_layouts>(p.layout);
  c.reduce = {static_cast<sluice_reduce_kind>(p.reduce.kind), p.reduce.rank, p.reduce.world, {}};
  if (p.reduce.norm.enabled || p.reduce.norm.add) c.reduce.norm = c_norm(p.reduce.norm);
  return c;
}

sluice_device to_c(const Device& d) noexcept {
  sluice_device c{};
  c.struct_size = sizeof(c);
  c.backend = static_cast<sluice_backend>(d.backend);
  c.arch = static_cast<std::int32_t>(d.arch);
  c.ordinal = d.ordinal;
  c.compute_capability = d.compute_capability;
  c.sm_count = d.sm_count;
  c.smem_per_block_bytes = d.smem_per_block_bytes;
  c.cooperative_launch = d.cooperative_launch;
  c.cublaslt_version = d.cublaslt_version;
  c.driver_version = d.driver_version;
  c.runtime_version = d.runtime_version;
  c.threads = d.threads;
  c.simd_targets = d.simd_targets;
  c.slow_bf16_products = d.slow_bf16_products;
  c.l1d_bytes = d.l1d_bytes;
  c.l2_bytes = d.l2_bytes;
  c.l3_bytes = d.l3_bytes;
  c.memory_bytes = d.memory_bytes;
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
