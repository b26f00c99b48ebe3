// SPDX-License-Identifier: Apache-2.0
// Case: a problem, how its data lie in memory and what they hold, as one line of text. Tests, the
// command line and benchmarks name their work by it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/fill.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// How a gate matrix and its up matrix lie to each other: w_gate/w_up, g/u, dg/du, dw_gate/dw_up.
enum class Placement : std::uint8_t {
  kSeparate = 0,      ///< two buffers
  kConcatenated = 1,  ///< one buffer: [gate; up] for weights, [gate, up] per row for activations
  kInterleaved = 2,   ///< one buffer: rows (weights) or columns (activations) in turn, by blocks
};

/// One case. `problem.layout` and `problem.alignment_bytes` follow from the other members: call
/// place() after changing one. A test may edit problem.layout afterwards; OperandSet obeys it.
struct Case {
  Problem problem{};
  Placement placement = Placement::kSeparate;
  std::int64_t block_rows = 0;  ///< kInterleaved: rows (weights) or columns (activations) a block
  bool up_first = false;        ///< the up matrix comes first; not for kSeparate
  std::int64_t pad_elems = 0;   ///< elements (blocks, in weights of a block type) added to every
                                ///< row stride
  std::int64_t align = 0;       ///< 0: as aligned as the layout allows, up to 16 bytes. Else every
                                ///< pointer is a multiple of this or its element, not of twice
  bool broadcast = false;       ///< x, x_residual, residual, dy, dh, h if read: one row, stride 0
  bool in_place = false;        ///< dg = g, du = u, y = residual: the same memory
  bool minimal = false;         ///< optional outputs are null
  Fill fill = Fill::kNormal;
  std::uint64_t seed = 1;
};

/// Reads `MxDxH[:token]...`, `MxKxN:linear[:token]...` (down by its general name) or
/// `MxD:norm[:token]...` (or add_norm: the norm alone). Tokens, each at most once, in any order:
///
///   mlp gate_up down linear gate_mul gate_mul_grad gate_up_grad mlp_grad input_grad weight_grad
///   column_sum                                                        operator; default mlp
///   bf16 fp16 fp32 fp64, or x/w/y or x/w/y/dw ("fp32/bf16/fp32")      types; default bf16.
///       dw (weight gradients) is fp32 where not named, fp64 where x is
///   q8_0 q4_0 q4_1                        weights in blocks, x and y of bf16; or as w of x/w/y
///   silu gelu_tanh gelu_erf relu sigmoid identity clamped_swiglu      gate; default silu; with
///       "(alpha=1.7,limit=7,up_offset=1,gate_multiplier=1.3,output_multiplier=2)" or part of it
///   separate concat interleaved1 interleaved8 ...                     placement; default separate;
///       all but separate may end in "+up_first"
///   bias bias_down residual residual_norm_input save recompute save_dg_du accumulate round_gate
///   norm add_norm, with "(eps=1e-6,weight_offset=1)" or part of it
///   broadcast in_place minimal pad=N align=N seed=N fill=normal|integers|special
///
/// Errors: kInvalidArgument; the message names the token, or is validate()'s for the result.
[[nodiscard]] Expected<Case> parse_case(std::string_view text);

/// A line of the grammar above, for who asks the command line.
struct TokenHelp {
  std::string tokens;  ///< "bias", or words that exclude each other: "norm, add_norm"
  const char* meaning;
};

/// All of parse_case()'s tokens.
[[nodiscard]] std::vector<TokenHelp> token_help();

/// The shortest text that parse_case() reads as the same case: parse_case(format_case(c)) == c for
/// every case that parse_case() returns.
[[nodiscard]] std::string format_case(const Case& c);

/// Sets problem.layout and problem.alignment_bytes from the members of the case, then validates.
/// Errors: kInvalidArgument where `align` cannot hold for both matrices of a pair, and
/// validate()'s.
Status place(Case& c);

/// Bytes from the first to the second base pointer of a pair that shares a buffer; 0 for kSeparate.
/// `gate` is the gate half: kWGate, kG, kDg or kDwGate.
[[nodiscard]] std::int64_t pair_offset_bytes(const Case& c, Operand gate);

[[nodiscard]] bool operator==(const Case& a, const Case& b);

[[nodiscard]] const char* to_string(Placement placement) noexcept;

}  // namespace sluice::harness
