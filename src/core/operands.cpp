// SPDX-License-Identifier: Apache-2.0
// Which operator takes which operands, with shape, type and layout (operands.inc): the one place
// that validation, run() and the harness read. Costs are sums over it.
#include "sluice/operands.hpp"

#include <iterator>
#include <limits>

namespace sluice {
namespace {

// Rows and columns; a vector is one row.
struct Shape {
  std::int64_t Problem::*rows;
  std::int64_t Problem::*cols;
};
constexpr Shape kMD{&Problem::m, &Problem::d};
constexpr Shape kMH{&Problem::m, &Problem::h};
constexpr Shape kHD{&Problem::h, &Problem::d};
constexpr Shape kDH{&Problem::d, &Problem::h};
constexpr Shape kVecD{nullptr, &Problem::d};
constexpr Shape kVecH{nullptr, &Problem::h};

struct Row {
  Operand id;
  const char* name;
  Shape shape;
  DType Problem::*dtype;
  Layout Layouts::*layout;  // null for vectors
  const void* Operands::*in;
  void* Operands::*out;
};

// The type of an Operands member says whether the operand is an input.
constexpr Row row(Operand id, const char* name, Shape shape, DType Problem::*dtype,
                  Layout Layouts::*layout, const void* Operands::*in) {
  return {id, name, shape, dtype, layout, in, nullptr};
}
constexpr Row row(Operand id, const char* name, Shape shape, DType Problem::*dtype,
                  Layout Layouts::*layout, void* Operands::*out) {
  return {id, name, shape, dtype, layout, nullptr, out};
}

constexpr Row kRows[] = {
#define SLUICE_MATRIX(id, member, shape, dtype, layout) \
  row(Operand::id, #member, shape, &Problem::dtype, &Layouts::layout, &Operands::member),
#define SLUICE_VECTOR(id, member, shape, dtype) \
  row(Operand::id, #member, shape, &Problem::dtype, nullptr, &Operands::member),
#include "core/operands.inc"
};
static_assert(std::size(kRows) == kOperandCount);

constexpr bool in_order() {
  for (int i = 0; i < kOperandCount; ++i) {
    if (kRows[i].id != static_cast<Operand>(i)) return false;
  }
  return true;
}
static_assert(in_order(), "kRows is indexed by Operand");

struct Use {
  Access access = Access::kUnused;
  bool required = false;
};
constexpr Use kReads{Access::kRead, true};
constexpr Use kWrites{Access::kWrite, true};
constexpr Use kMayWrite{Access::kWrite, false};
constexpr Use kUnused{};

constexpr Use if_set(bool flag, Use use) { return flag ? use : kUnused; }

// How the operator uses the operand.
Use use_of(const Problem& p, Operand id) {
  const bool forward_gemm = p.op == Op::kGateUp || p.op == Op::kMlp;
  const bool norm = (forward_gemm && p.norm.enabled) || p.op == Op::kNorm;
  const bool all_reduce = p.op == Op::kAllReduce;
  const bool writes_y = p.op == Op::kDown || p.op == Op::kMlp || all_reduce;
  const bool grad = p.op == Op::kGateMulGrad || p.op == Op::kGateUpGrad;
  const bool mlp_grad = p.op == Op::kMlpGrad;
  const Use gradient = {p.accumulate_dw ? Access::kReadWrite : Access::kWrite, false};
  switch (id) {
    case Operand::kX:
      return if_set(
          forward_gemm || mlp_grad || p.op == Op::kNorm || p.op == Op::kWeightGrad || all_reduce,
          kReads);
    case Operand::kXResidual:
      return if_set(norm && p.norm.add, kReads);
    case Operand::kXSum:
      return if_set(norm && p.norm.add, kMayWrite);
    case Operand::kNormWeight:
      return if_set(norm, kReads);
    case Operand::kWGate:
    case Operand::kWUp:
      return if_set(forward_gemm || mlp_grad || p.op == Op::kInputGrad, kReads);
    case Operand::kWDown:
      return if_set((writes_y && !all_reduce) || p.op == Op::kGateUpGrad || mlp_grad, kReads);
    case Operand::kBGate:
    case Operand::kBUp:
      return if_set(p.bias_gate_up && (forward_gemm || (mlp_grad && p.recompute)), kReads);
    case Operand::kBDown:
      return if_set(p.bias_down && writes_y, kReads);
    case Operand::kResidual:
      return if_set(writes_y && p.residual == Residual::kOperand, kReads);
    case Operand::kDy:
      return if_set(p.op == Op::kGateUpGrad || mlp_grad, kReads);
    case Operand::kDh:
      return if_set(p.op == Op::kGateMulGrad, kReads);
    case Operand::kG:
    case Operand::kU:
      if (forward_gemm) return if_set(p.save_g_u, kWrites);
      return if_set(p.op == Op::kGateMul || grad || (mlp_grad && !p.recompute), kReads);
    case Operand::kH:
      if (p.op == Op::kDown) return kReads;
      if (grad) return kMayWrite;
      return if_set(p.op == Op::kGateUp || p.op == Op::kGateMul, kWrites);
    case Operand::kY:
      return if_set(writes_y || p.op == Op::kNorm, kWrites);
    case Operand::kDg:
      if (p.op == Op::kWeightGrad || p.op == Op::kColumnSum) return kReads;
      [[fallthrough]];
    case Operand::kDu:
      if (p.op == Op::kInputGrad) return kReads;
      if (p.op == Op::kWeightGrad) return {Access::kRead, false};
      return if_set(grad || (mlp_grad && p.save_dg_du), kWrites);
    case Operand::kDx:
      if (p.op == Op::kInputGrad) return kWrites;
      return if_set(mlp_grad, kMayWrite);
    case Operand::kDwGate:
    case Operand::kDwUp:
      return if_set(mlp_grad || p.op == Op::kWeightGrad, gradient);
    case Operand::kDwDown:
      return if_set(mlp_grad, gradient);
    case Operand::kDbGate:
      if (p.op == Op::kColumnSum) return {gradient.access, true};
      [[fallthrough]];
    case Operand::kDbUp:
      return if_set(mlp_grad && p.bias_gate_up, gradient);
    case Operand::kDbDown:
      return if_set(mlp_grad && p.bias_down, gradient);
    case Operand::kNextNormWeight:
      return if_set(writes_y && p.reduce.norm.enabled, kReads);
    case Operand::kYNorm:
      return if_set(writes_y && p.reduce.norm.enabled, kWrites);
  }
  return kUnused;
}

// validate() resolves layouts before it knows that they are sane: absurd ones must stay absurd.
std::int64_t saturated_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

std::int64_t blocks_of(std::int64_t cols, std::int64_t block) {
  return cols / block + (cols % block == 0 ? 0 : 1);
}

// Of one row the distance to the next means nothing.
Layout resolved(Layout layout, std::int64_t rows, std::int64_t cols, DType dtype) {
  if (layout.row_stride_bytes == kContiguous || (rows <= 1 && layout.block_rows == 0)) {
    // With column blocks up to the end of the last whole block, so that a contiguous interleaved
    // pair is one [rows, 2·cols] buffer.
    layout.row_stride_bytes =
        layout.block_cols == 0
            ? bytes_of(dtype, cols)
            : saturated_multiply(blocks_of(cols, layout.block_cols), layout.col_block_stride_bytes);
  }
  return layout;
}

}  // namespace

OperandSpec operand_spec(const Problem& p, Operand id) noexcept {
  const Row& row = kRows[static_cast<std::size_t>(id)];
  const Use use = use_of(p, id);
  OperandSpec spec;
  spec.id = id;
  spec.name = row.name;
  spec.access = use.access;
  spec.required = use.required;
  spec.dtype = p.*row.dtype;
  // GGUF keeps vectors in fp32 beside weights in blocks.
  const bool vector = row.layout == nullptr;
  if (vector && is_block_type(spec.dtype)) spec.dtype = DType::kF32;
  spec.rows = vector ? 1 : p.*row.shape.rows;
  spec.cols = p.*row.shape.cols;
  spec.layout =
      resolved(vector ? Layout{} : p.layout.*row.layout, spec.rows, spec.cols, spec.dtype);
  return spec;
}

bool is_used(const Problem& p, Operand id) noexcept {
  return use_of(p, id).access != Access::kUnused;
}

std::array<OperandSpec, kOperandCount> operand_specs(const Problem& p) noexcept {
  std::array<OperandSpec, kOperandCount> specs;
  for (const Row& row : kRows) specs[static_cast<std::size_t>(row.id)] = operand_spec(p, row.id);
  return specs;
}

std::int64_t extent_bytes(const OperandSpec& spec) noexcept {
  if (spec.rows == 0 || spec.cols == 0) return 0;
  // In a valid layout offsets grow with the row and with the column.
  return offset_bytes(spec.layout, spec.dtype, spec.rows - 1, spec.cols - 1) +
         size_bytes(spec.dtype);
}

const void* address(const Operands& operands, Operand id) noexcept {
  const Row& row = kRows[static_cast<std::size_t>(id)];
  return row.in != nullptr ? operands.*row.in : operands.*row.out;
}

void set_address(Operands& operands, Operand id, void* pointer) noexcept {
  const Row& row = kRows[static_cast<std::size_t>(id)];
  if (row.in != nullptr) {
    operands.*row.in = pointer;
  } else {
    operands.*row.out = pointer;
  }
}

Layout interleaved_rows(std::int64_t block_rows, std::int64_t d, DType dtype) noexcept {
  const std::int64_t row = saturated_multiply(d / block_elems(dtype), size_bytes(dtype));
  return {.row_stride_bytes = row,
          .block_rows = block_rows,
          .block_stride_bytes = saturated_multiply(saturated_multiply(2, block_rows), row)};
}

Layout interleaved_cols(std::int64_t block_cols, std::int64_t h, DType dtype) noexcept {
  Layout layout{.block_cols = block_cols,
                .col_block_stride_bytes =
                    saturated_multiply(saturated_multiply(2, block_cols), size_bytes(dtype))};
  return resolved(layout, 2, h, dtype);
}

double flops(const Problem& p) noexcept {
  const double gemm =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.d) * static_cast<double>(p.h);
  switch (p.op) {
    case Op::kMlp:
      return 3 * gemm;
    case Op::kDown:
    case Op::kGateUpGrad:
      return gemm;
    case Op::kMlpGrad:
      return (p.recompute ? 8 : 6) * gemm;  // dh; dx: 2; dw: 3; recompute: 2
    case Op::kGateUp:
    case Op::kInputGrad:
    case Op::kWeightGrad:
      return 2 * gemm;
    case Op::kGateMul:
    case Op::kGateMulGrad:
    case Op::kNorm:
    case Op::kColumnSum:
    case Op::kAllReduce:
      return 0;
  }
  return 0;
}

double bytes_moved(const Problem& p) noexcept {
  double total = 0;
  for (const OperandSpec& spec : operand_specs(p)) {
    if (spec.access == Access::kUnused) continue;
    const double bytes =
        static_cast<double>(spec.rows) * static_cast<double>(bytes_of(spec.dtype, spec.cols));
    total += spec.access == Access::kReadWrite ? 2 * bytes : bytes;
  }
  return total;
}

}  // namespace sluice
