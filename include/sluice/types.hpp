// SPDX-License-Identifier: Apache-2.0
// The small words of the API: data types, operators, gates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "sluice/export.hpp"

namespace sluice {

/// Element type of an operand. kF64 is served by the reference variant only (gradient checks).
///
/// kQ8_0, kQ4_0 and kQ4_1 are GGUF's block types, byte for byte, for weights only
/// (Problem::w_dtype). kBlockElems consecutive columns of a row share a block:
///
///   kQ8_0   34 bytes   fp16 d, int8 q[32]           w[j] = d · q[j]
///   kQ4_0   18 bytes   fp16 d, nibbles q[32]        w[j] = d · (q[j] - 8)
///   kQ4_1   20 bytes   fp16 d, fp16 m, nibbles q[32]  w[j] = d · q[j] + m, rounded to fp32
///
/// with q[j] of the nibbles the low half of byte j for j < 16, else the high half of byte j - 16.
/// Only the last rounds: the products are exact in fp32. Source: block_q8_0, block_q4_0 and
/// block_q4_1 of ggml-common.h (llama.cpp).
enum class DType : std::uint8_t {
  kBF16 = 0,
  kF16 = 1,
  kF32 = 2,
  kF64 = 3,
  kQ8_0 = 4,
  kQ4_0 = 5,
  kQ4_1 = 6,
};
inline constexpr int kDTypeCount = 7;
/// The first so many are floating-point types: what an operand that is no weight may be.
inline constexpr int kFloatDTypeCount = 4;

/// Columns of one block of a block type. A row is whole blocks.
inline constexpr std::int64_t kBlockElems = 32;

/// The facts of a type.
struct DTypeTraits {
  const char* name;              ///< as the command line spells it
  std::int64_t elems;            ///< columns that size_bytes holds: kBlockElems or 1
  std::int64_t size_bytes;       ///< of one element; of one block of a block type
  std::int64_t alignment_bytes;  ///< of pointers and strides; a block begins with an fp16
  double epsilon;                ///< from 1 to the next number of a floating-point type
};

/// The one row of each type: a switch without a default, so that a new one does not compile before
/// it has its row.
[[nodiscard]] constexpr DTypeTraits traits(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return {"bf16", 1, 2, 2, 0x1p-7};
    case DType::kF16:
      return {"fp16", 1, 2, 2, 0x1p-10};
    case DType::kF32:
      return {"fp32", 1, 4, 4, 0x1p-23};
    case DType::kF64:
      return {"fp64", 1, 8, 8, 0x1p-52};
    case DType::kQ8_0:
      return {"q8_0", kBlockElems, 34, 2, 1};
    case DType::kQ4_0:
      return {"q4_0", kBlockElems, 18, 2, 1};
    case DType::kQ4_1:
      return {"q4_1", kBlockElems, 20, 2, 1};
  }
  return {"invalid dtype", 1, 0, 1, 1};
}

[[nodiscard]] constexpr bool is_block_type(DType dtype) noexcept { return traits(dtype).elems > 1; }

/// Columns that size_bytes() holds: kBlockElems for a block type, else 1.
[[nodiscard]] constexpr std::int64_t block_elems(DType dtype) noexcept {
  return traits(dtype).elems;
}

/// Bytes of one element; of one block of a block type.
[[nodiscard]] constexpr std::int64_t size_bytes(DType dtype) noexcept {
  return traits(dtype).size_bytes;
}

/// Bytes of `cols` columns that begin and end with a block. Offset of column `cols`, or of the
/// block that holds it.
[[nodiscard]] constexpr std::int64_t bytes_of(DType dtype, std::int64_t cols) noexcept {
  return (is_block_type(dtype) ? cols / kBlockElems : cols) * size_bytes(dtype);
}

/// What pointers and strides are multiples of: the element's size; 2 for blocks.
[[nodiscard]] constexpr std::int64_t alignment_of(DType dtype) noexcept {
  return traits(dtype).alignment_bytes;
}

/// Distance from 1 to the next number of this floating-point type; the unit roundoff is half of it.
[[nodiscard]] constexpr double epsilon(DType dtype) noexcept { return traits(dtype).epsilon; }

/// What to compute. M tokens, D model width, H hidden width; operands and shapes in operands.hpp.
enum class Op : std::uint8_t {
  kGateUp = 0,       ///< h = act(x·Wgᵀ + bg) ⊙ (x·Wuᵀ + bu); optionally stores g and u
  kDown = 1,         ///< y = h·Wdᵀ + bd (+ residual)
  kLinear = kDown,   ///< the same by its general name: K is H and N is D
  kMlp = 2,          ///< y from x: gate_up, then down
  kGateMul = 3,      ///< h = act(g) ⊙ u
  kGateMulGrad = 4,  ///< dg, du (and h again) from g, u, dh
  kGateUpGrad = 5,   ///< dg, du (and h again) from g, u, dy with dh = dy·Wd
  kMlpGrad = 6,      ///< dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down from x, g, u, dy
  kNorm = 7,         ///< y = RMSNorm(x), or of x + x_residual, which x_sum then takes; see Norm
  kInputGrad = 8,    ///< dx = dg·Wg + du·Wu
  kWeightGrad = 9,   ///< dw_gate = dgᵀ·x, and dw_up = duᵀ·x if it is given
  kColumnSum = 10,   ///< db_gate = the sum of dg over tokens
  kAllReduce = 11,   ///< the step behind kDown that Reduce adds, from its y as x; no problem's own
};
/// Operators that a problem may have: all but kAllReduce.
inline constexpr int kOpCount = 11;

/// act() of the gate. Every formula is in src/math/gate.hpp, once for all backends.
enum class Activation : std::uint8_t {
  kSilu = 0,      ///< v · sigmoid(alpha · v)
  kGeluTanh = 1,  ///< v/2 · (1 + tanh(sqrt(2/pi) · (v + 0.044715 v³)))
  kGeluErf = 2,   ///< v/2 · (1 + erf(v / sqrt 2))
  kRelu = 3,      ///< max(v, 0)
  kSigmoid = 4,   ///< sigmoid(alpha · v)
  kIdentity = 5,  ///< v
};
inline constexpr int kActivationCount = 6;

/// The gate and its run-time parameters, equal on every path:
///
///   v = min(gate_multiplier · g, limit)
///   w = clamp(u, -limit, limit) + up_offset
///   h = output_multiplier · act(v) · w
///
/// Numerics: evaluated in the accumulator's type (fp32, or fp64 in the reference) and rounded once,
/// to h's type (but see Problem::round_gate). NaN in g or u gives NaN, also through the clamps. An
/// element on the clamp's boundary (v or |u| equal to limit) counts as inside: its gradient passes.
struct Gate {
  Activation activation = Activation::kSilu;
  float alpha = 1.0F;  ///< finite; only kSilu and kSigmoid may differ from 1
  float limit = std::numeric_limits<float>::infinity();  ///< > 0, or infinity for no clamp
  float up_offset = 0.0F;                                ///< finite
  float gate_multiplier = 1.0F;                          ///< finite
  float output_multiplier = 1.0F;                        ///< finite

  /// The clamped SwiGLU of gpt-oss: silu with alpha 1.702, limit 7, up + 1.
  [[nodiscard]] static constexpr Gate clamped_swiglu() noexcept {
    return {.activation = Activation::kSilu, .alpha = 1.702F, .limit = 7.0F, .up_offset = 1.0F};
  }

  friend bool operator==(const Gate&, const Gate&) = default;
};

/// Names as the command line and results spell them: "bf16", "gate_up", "silu".
[[nodiscard]] SLUICE_EXPORT const char* to_string(DType dtype) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(Op op) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(Activation activation) noexcept;

}  // namespace sluice
