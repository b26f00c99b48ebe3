// SPDX-License-Identifier: Apache-2.0
// Is a problem well-formed? Device and variant limits are not checked here: `supports` says those.
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "sluice/device.hpp"
#include "sluice/operands.hpp"

namespace sluice {
namespace {

using ll = long long;

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
// Offsets are computed in int64 and the parts of one (block, row, column) are added.
constexpr std::int64_t kMaxOffset = std::int64_t{1} << 60;

bool multiply(std::int64_t a, std::int64_t b, std::int64_t* out) {
  return !__builtin_mul_overflow(a, b, out) && *out <= kMaxOffset;
}

Status check_dim(const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return {};
  return make_error(kBad, "%s: got %lld, wanted at least %lld", name, ll{value}, ll{least});
}

Status check_dims(const Problem& p) {
  const bool uses_d = p.op != Op::kGateMul && p.op != Op::kGateMulGrad && p.op != Op::kColumnSum;
  SLUICE_TRY(check_dim("m", p.m, 0));
  SLUICE_TRY(check_dim("d", p.d, uses_d ? 1 : 0));
  SLUICE_TRY(check_dim("h", p.h, p.op == Op::kNorm ? 0 : 1));
  std::int64_t elems = 0;
  // Each alone too: biases and norm weights have rows though m is 0.
  for (const auto& [rows, cols, what] :
       {std::tuple{p.m, p.d, "m * d"}, std::tuple{p.m, p.h, "m * h"}, std::tuple{p.h, p.d, "h * d"},
        std::tuple{std::int64_t{1}, p.d, "d"}, std::tuple{std::int64_t{1}, p.h, "h"}}) {
    if (!multiply(rows, cols, &elems) || !multiply(elems, 16, &elems)) {
      return make_error(kBad, "%s: %lld * %lld elements overflow 64-bit offsets", what, ll{rows},
                        ll{cols});
    }
  }
  return {};
}

Status check_enum(const char* name, int value, int count) {
  if (value >= 0 && value < count) return {};
  return make_error(kBad, "%s: got %d, wanted 0 to %d", name, value, count - 1);
}

Status check_finite(const char* name, float value) {
  if (std::isfinite(value)) return {};
  return make_error(kBad, "%s: got %f, wanted a finite number", name, static_cast<double>(value));
}

Status check_gate(const Gate& gate) {
  SLUICE_TRY(check_enum("gate.activation", static_cast<int>(gate.activation), kActivationCount));
  SLUICE_TRY(check_finite("gate.alpha", gate.alpha));
  SLUICE_TRY(check_finite("gate.up_offset", gate.up_offset));
  SLUICE_TRY(check_finite("gate.gate_multiplier", gate.gate_multiplier));
  SLUICE_TRY(check_finite("gate.output_multiplier", gate.output_multiplier));
  if (!(gate.limit > 0)) {  // also NaN
    return make_error(kBad, "gate.limit: got %f, wanted more than 0 (infinity for no clamp)",
                      static_cast<double>(gate.limit));
  }
  const bool has_alpha =
      gate.activation == Activation::kSilu || gate.activation == Activation::kSigmoid;
  if (!has_alpha && gate.alpha != 1.0F) {
    return make_error(kBad, "gate.alpha: got %f, but %s has no alpha; wanted 1",
                      static_cast<double>(gate.alpha), to_string(gate.activation));
  }
  return {};
}

Status check_norm(const char* name, const Norm& norm) {
  if (!(norm.eps > 0) || !std::isfinite(norm.eps)) {
    return make_error(kBad, "%s.eps: got %g, wanted a finite number above 0", name,
                      static_cast<double>(norm.eps));
  }
  if (std::isfinite(norm.weight_offset)) return {};
  return make_error(kBad, "%s.weight_offset: got %f, wanted a finite number", name,
                    static_cast<double>(norm.weight_offset));
}

Status check_flags(const Problem& p) {
  const bool prologue = p.op == Op::kGateUp || p.op == Op::kMlp;
  const bool epilogue = p.op == Op::kDown || p.op == Op::kMlp;
  const bool backward = p.op == Op::kMlpGrad;
  const bool accumulates = backward || p.op == Op::kWeightGrad || p.op == Op::kColumnSum;
  const auto misplaced = [&](const char* flag, const char* wanted) {
    return make_error(kBad, "%s: set for %s, wanted only for %s", flag, to_string(p.op), wanted);
  };
  if (p.norm.enabled && !prologue && p.op != Op::kNorm) {
    return misplaced("norm", "norm, gate_up and mlp");
  }
  if (p.op == Op::kNorm && !p.norm.enabled) {
    return make_error(kBad, "norm.enabled: not set for the operator norm");
  }
  if (p.op == Op::kNorm && p.y_dtype != p.x_dtype) {
    return make_error(kBad, "y_dtype: got %s, wanted x's %s for norm", to_string(p.y_dtype),
                      to_string(p.x_dtype));
  }
  if (p.norm.add && !p.norm.enabled) {
    return make_error(kBad, "norm.add: set without norm.enabled");
  }
  if (p.norm.enabled) SLUICE_TRY(check_norm("norm", p.norm));
  SLUICE_TRY(check_enum("residual", static_cast<int>(p.residual), 3));
  if (p.residual != Residual::kNone && !epilogue) return misplaced("residual", "down and mlp");
  if (p.residual == Residual::kNormInput && !p.norm.enabled) {
    return make_error(kBad, "residual: the norm's input needs norm.enabled");
  }
  if (p.save_g_u && !prologue) return misplaced("save_g_u", "gate_up and mlp");
  if (p.recompute && !backward) return misplaced("recompute", "mlp_grad");
  if (p.accumulate_dw && !accumulates) {
    return misplaced("accumulate_dw", "mlp_grad, weight_grad and column_sum");
  }
  if (p.save_dg_du && !backward) return misplaced("save_dg_du", "mlp_grad");
  if (p.round_gate && p.op != Op::kGateMul && p.op != Op::kGateMulGrad) {
    return misplaced("round_gate", "gate_mul and gate_mul_grad");
  }
  if (p.bias_gate_up && !prologue && !backward) {
    return misplaced("bias_gate_up", "gate_up, mlp and mlp_grad");
  }
  if (p.bias_down && !epilogue && !backward) {
    return misplaced("bias_down", "down, mlp and mlp_grad");
  }
  return {};
}

// Of no collective all is zero, as an older caller's.
Status check_reduce(const Problem& p) {
  const Reduce& r = p.reduce;
  SLUICE_TRY(check_enum("reduce.kind", static_cast<int>(r.kind), 2));
  if (r.kind == ReduceKind::kNone) {
    if (r.rank == 0 && r.world == 0 && !r.norm.enabled) return {};
    return make_error(kBad, "reduce.kind: got none beside rank %d, world %d%s, wanted all_reduce",
                      r.rank, r.world, r.norm.enabled ? " and a norm" : "");
  }
  if (p.op != Op::kDown && p.op != Op::kMlp) {
    return make_error(kBad, "reduce: set for %s, wanted only for down and mlp", to_string(p.op));
  }
  if (r.world != 2 && r.world != 4 && r.world != 8) {
    return make_error(kBad, "reduce.world: got %d, wanted 2, 4 or 8", r.world);
  }
  if (r.rank < 0 || r.rank >= r.world) {
    return make_error(kBad, "reduce.rank: got %d, wanted 0 to %d", r.rank, r.world - 1);
  }
  if (!r.norm.enabled) return {};
  if (r.norm.add) {
    return make_error(kBad, "reduce.norm.add: set, wanted false: residual is what y adds");
  }
  return check_norm("reduce.norm", r.norm);
}

bool may_have_row_blocks(Operand id) {
  return id == Operand::kWGate || id == Operand::kWUp || id == Operand::kDwGate ||
         id == Operand::kDwUp;
}

bool may_have_col_blocks(Operand id) {
  return id == Operand::kG || id == Operand::kU || id == Operand::kDg || id == Operand::kDu;
}

Status check_stride(const OperandSpec& spec, const char* what, std::int64_t value,
                    std::int64_t least) {
  const std::int64_t unit = alignment_of(spec.dtype);
  if (value < least) {
    return make_error(kBad, "%s: %s is %lld bytes, wanted at least %lld", spec.name, what,
                      ll{value}, ll{least});
  }
  if (value % unit != 0) {
    return make_error(kBad, "%s: %s is %lld bytes, wanted a multiple of the %s's %lld", spec.name,
                      what, ll{value}, is_block_type(spec.dtype) ? "scale" : "element", ll{unit});
  }
  return {};
}

// Weights in blocks are rows of whole blocks.
Status check_blocks(const OperandSpec& spec) {
  if (spec.cols % block_elems(spec.dtype) == 0) return {};
  const bool columns_are_d = spec.id != Operand::kWDown;
  return make_error(kBad, "%s: got %lld, wanted a multiple of %lld: %s is in blocks of %s",
                    columns_are_d ? "d" : "h", ll{spec.cols}, ll{kBlockElems}, spec.name,
                    to_string(spec.dtype));
}

Status check_layout(const OperandSpec& spec) {
  const Layout& l = spec.layout;
  const std::int64_t elem = size_bytes(spec.dtype);
  if (l.block_rows < 0 || l.block_cols < 0) {
    return make_error(kBad, "%s: block_rows %lld, block_cols %lld, wanted 0 or more", spec.name,
                      ll{l.block_rows}, ll{l.block_cols});
  }
  if (l.block_rows > 0 && !may_have_row_blocks(spec.id)) {
    return make_error(kBad,
                      "%s: block_rows is %lld, wanted 0 (only gate and up weights have row "
                      "blocks)",
                      spec.name, ll{l.block_rows});
  }
  if (l.block_cols > 0 && !may_have_col_blocks(spec.id)) {
    return make_error(kBad,
                      "%s: block_cols is %lld, wanted 0 (only g, u, dg and du have column "
                      "blocks)",
                      spec.name, ll{l.block_cols});
  }
  std::int64_t row_bytes = bytes_of(spec.dtype, spec.cols);
  if (l.block_cols > 0) {
    std::int64_t block_bytes = 0;
    if (!multiply(l.block_cols, elem, &block_bytes)) {
      return make_error(kBad, "%s: block_cols %lld overflows 64-bit offsets", spec.name,
                        ll{l.block_cols});
    }
    SLUICE_TRY(check_stride(spec, "col_block_stride", l.col_block_stride_bytes, block_bytes));
    const std::int64_t last_block = (spec.cols - 1) / l.block_cols;
    std::int64_t last = 0;
    if (!multiply(last_block, l.col_block_stride_bytes, &last)) {
      return make_error(kBad, "%s: column offsets overflow 64 bits", spec.name);
    }
    row_bytes = last + ((spec.cols - 1) % l.block_cols + 1) * elem;
  }
  // One row has no stride to check; a contiguous one is whatever its width makes it.
  const bool one_row = spec.rows <= 1;
  const bool broadcast = l.row_stride_bytes == 0 && spec.access == Access::kRead;
  if (!one_row && !broadcast) {
    SLUICE_TRY(check_stride(spec, "row_stride", l.row_stride_bytes, row_bytes));
  }
  std::int64_t extent = 0;
  if (!multiply(spec.rows, l.row_stride_bytes, &extent)) {
    return make_error(kBad, "%s: row_stride of %lld bytes times %lld rows overflows 64 bits",
                      spec.name, ll{l.row_stride_bytes}, ll{spec.rows});
  }
  if (l.block_rows > 0) {
    std::int64_t in_block = 0;
    if (!multiply(l.block_rows - 1, l.row_stride_bytes, &in_block)) {
      return make_error(kBad, "%s: block_rows %lld times row_stride %lld overflows 64-bit offsets",
                        spec.name, ll{l.block_rows}, ll{l.row_stride_bytes});
    }
    SLUICE_TRY(check_stride(spec, "block_stride", l.block_stride_bytes, in_block + row_bytes));
    if (!multiply(spec.rows / l.block_rows + 1, l.block_stride_bytes, &extent)) {
      return make_error(kBad, "%s: block_stride of %lld bytes overflows 64-bit offsets", spec.name,
                        ll{l.block_stride_bytes});
    }
  }
  return {};
}

}  // namespace

Status validate(const Problem& p) noexcept {
  SLUICE_TRY(check_enum("op", static_cast<int>(p.op), kOpCount));
  for (const auto& [name, dtype] :
       {std::pair{"x_dtype", p.x_dtype}, std::pair{"w_dtype", p.w_dtype},
        std::pair{"y_dtype", p.y_dtype}, std::pair{"dw_dtype", p.dw_dtype}}) {
    SLUICE_TRY(check_enum(name, static_cast<int>(dtype), kDTypeCount));
  }
  for (const auto& [name, dtype] :
       {std::pair{"x_dtype", p.x_dtype}, std::pair{"y_dtype", p.y_dtype},
        std::pair{"dw_dtype", p.dw_dtype}}) {
    if (!is_block_type(dtype)) continue;
    return make_error(kBad, "%s: got %s, wanted bf16, fp16, fp32 or fp64: only weights have blocks",
                      name, to_string(dtype));
  }
  SLUICE_TRY(check_dims(p));
  SLUICE_TRY(check_gate(p.gate));
  SLUICE_TRY(check_flags(p));
  SLUICE_TRY(check_reduce(p));
  const std::int64_t align = p.alignment_bytes;
  if (align < 1 || align > 4096 || (align & (align - 1)) != 0) {
    return make_error(kBad, "alignment_bytes: got %lld, wanted a power of two from 1 to 4096",
                      ll{align});
  }
  for (const OperandSpec& spec : operand_specs(p)) {
    if (spec.access == Access::kUnused) continue;
    SLUICE_TRY(check_blocks(spec));
    SLUICE_TRY(check_layout(spec));
  }
  return {};
}

Status validate(const Device& device) noexcept {
  SLUICE_TRY(check_enum("device.backend", static_cast<int>(device.backend), 2));
  const bool cpu = device.backend == Backend::kCpu;
  struct Count {
    const char* name;
    std::int64_t given, least, most;
  };
  constexpr std::int64_t kManyUnits = 65536;
  constexpr std::int64_t kAny = std::numeric_limits<int>::max();
  constexpr std::int64_t kManyBytes = std::int64_t{1} << 60;
  for (const Count& c : {
           Count{"ordinal", device.ordinal, 0, kAny},
           Count{"compute_capability", device.compute_capability, 0, kAny},
           Count{"cublaslt_version", device.cublaslt_version, 0, kAny},
           Count{"driver_version", device.driver_version, 0, kAny},
           Count{"runtime_version", device.runtime_version, 0, kAny},
           Count{"threads", device.threads, 0, kMaxThreads},
           Count{"sm_count", device.sm_count, cpu ? 0 : 1, kManyUnits},
           Count{"smem_per_block_bytes", device.smem_per_block_bytes, 0, 1 << 30},
           Count{"l1d_bytes", device.l1d_bytes, 0, kManyBytes},
           Count{"l2_bytes", device.l2_bytes, 0, kManyBytes},
           Count{"l3_bytes", device.l3_bytes, 0, kManyBytes},
           Count{"memory_bytes", device.memory_bytes, 0, kManyBytes},
           Count{"memory_bytes_per_second", device.memory_bytes_per_second, 0, kManyBytes},
       }) {
    if (c.given >= c.least && c.given <= c.most) continue;
    return make_error(kBad, "device.%s: got %lld, wanted %lld to %lld", c.name, ll{c.given},
                      ll{c.least}, ll{c.most});
  }
  if (cpu && (device.simd_targets & 1U) == 0) {
    return make_error(kBad, "device.simd_targets: got %u, wanted bit 0 set, which any CPU can run",
                      device.simd_targets);
  }
  return {};
}

}  // namespace sluice
