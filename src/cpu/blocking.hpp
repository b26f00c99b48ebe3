// SPDX-License-Identifier: Apache-2.0
// How the engine cuts a problem: which path, which blocks, and where everything lies in the
// workspace. Pure arithmetic. Only kBlockK and max_tokens of the
// dot products decide in which order sums are formed; all else may depend on threads and caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.hpp"
#include "sluice/plan.hpp"

namespace sluice::cpu {

/// The most columns of C (gate and up counted apart) of one task.
inline constexpr std::int64_t kMaxBlockCols = 256;
/// Length of the K blocks of a sum of k terms: as even as can be, whole steps of prefetching.
[[nodiscard]] constexpr std::int64_t block_k(std::int64_t k) noexcept {
  const std::int64_t blocks = (k + kBlockK - 1) / kBlockK;
  const std::int64_t each = (k + blocks - 1) / blocks;
  return (each + kAheadSteps - 1) / kAheadSteps * kAheadSteps;
}
/// Tokens of one pass through gate_up and down of a forward GEMM: bounds the packed tokens and h in
/// the workspace, while a widened weight is multiplied by so many tokens.
inline constexpr std::int64_t kMaxPassRows = 256;
/// Weight rows of one task of a forward GEMM (gate and up counted apart): a multiple of every
/// target's tiles. Widened, a K block of them takes 102 KiB of L2.
inline constexpr std::int64_t kMaxForwardRows = 96;

/// Weight rows that are widened into L1 at once: a tile's. 12 by a K block are 13 KiB, which stay
/// there beside the panel that streams from L2, 32 KiB, where twice as many would be pushed out by
/// it, and be written and read through L2. A narrow last panel has tiles of twice the rows.
[[nodiscard]] constexpr std::int64_t strip_rows(const GemmKernels& kernels, bool narrow) noexcept {
  return (narrow ? std::int64_t{2} : std::int64_t{1}) * kernels.tile_rows;
}

/// From here on fp32 weights by one vector of tokens are multiplied in place rather than by dot
/// products, which then need three passes over a group of rows. The time does not depend on how
/// many lanes have tokens: 12 of 16 are faster as dot products.
inline constexpr std::int64_t kMinInPlaceTokens = 13;
/// Columns of rows read in place before the next rows: their tokens take 128 KiB of L2.
inline constexpr std::int64_t kInPlaceCols = 2048;

/// Weight rows of one matrix in a task of dot products, at most, and their bytes: so long a thread
/// reads on. 256 KiB cost 2 %.
inline constexpr std::int64_t kMaxDotRows = 256;
inline constexpr std::int64_t kDotTaskBytes = std::int64_t{1} << 20;
/// Tasks of a phase and thread, at least: memory idles at the end of each, and the fewer there are
/// the longer a thread may wait for the last.
inline constexpr std::int64_t kDotTasksEach = 3;

/// Blocks of one GEMM's C: m_blocks times n_blocks tasks of `rows` rows by `panels` panels.
struct Blocking {
  std::int64_t rows = 0;
  std::int64_t m_blocks = 0;
  std::int64_t panels = 0;
  std::int64_t n_blocks = 0;
  [[nodiscard]] std::int64_t tasks() const noexcept { return m_blocks * n_blocks; }
};

/// Blocks of a forward GEMM, whose C is [weight rows, tokens]: row_blocks * token_blocks tasks of
/// `rows` weight rows (of each of gate and up) by `panels` panels of tokens.
struct ForwardBlocks {
  std::int64_t rows = 0;
  std::int64_t row_blocks = 0;
  std::int64_t panels = 0;
  std::int64_t token_blocks = 0;
  std::int64_t ldc = 0;  ///< floats from one row of C to the next
  [[nodiscard]] std::int64_t tasks() const noexcept { return row_blocks * token_blocks; }
};

/// Blocks for `rows` weight rows, of each of `matrices` (1 or 2) matrices, by `tokens` tokens.
[[nodiscard]] ForwardBlocks choose_forward(std::int64_t rows, int matrices, std::int64_t tokens,
                                           const GemmKernels& kernels, std::int64_t l2_bytes,
                                           int threads) noexcept;

/// C of m rows and `panels` panels; no task takes more than max_panels of them.
[[nodiscard]] Blocking choose_blocking(std::int64_t m, std::int64_t panels, std::int64_t max_panels,
                                       const GemmKernels& kernels, std::int64_t l2_bytes,
                                       int threads) noexcept;

/// Everything that launch needs to know beyond the plan. Offsets are bytes into the scratch.
struct Schedule {
  bool dots = false;             ///< few tokens: dot products, else the GEMM
  bool in_place = false;         ///< GEMM of one narrow panel: weights are read where they lie
  bool pairs = false;            ///< tokens stay bf16, multiplied in pairs
  bool fixed = false;            ///< dot products: tokens in fixed point, multiplied as integers
  int threads = 1;               ///< at most this many share a region
  std::int64_t dot_cols = 0;     ///< dot products: gate and as many up rows of a task
  std::int64_t dot_rows = 0;     ///< w_down's rows of a task
  std::int64_t pass_rows = 0;    ///< tokens of one pass (forward GEMMs)
  std::int64_t pack_chunks = 1;  ///< tasks that pack one panel of tokens
  std::int64_t pack_tasks = 0;
  ForwardBlocks gate_up;
  ForwardBlocks down;
  Blocking dh;  ///< dy·Wd
  Blocking dx;
  Blocking dw_gate_up;  ///< each of dw_gate and dw_up
  Blocking dw_down;
  std::size_t input = 0;   ///< forward, fp32: rows of tokens for dots, panels for the GEMM
  std::size_t hidden = 0;  ///< h: likewise; kMlpGrad: x's type
  std::size_t dg = 0;      ///< kMlpGrad without save_dg_du, x's type
  std::size_t du = 0;
  std::size_t panels = 0;       ///< the first thread's scratch
  std::size_t panels_each = 0;  ///< bytes of a thread's scratch
  std::int64_t a_floats = 0;    ///< of it: packed A, packed B, C, a second C
  std::int64_t b_floats = 0;
  std::int64_t c_floats = 0;
  std::int64_t c2_floats = 0;
  std::size_t bytes = 0;
};

/// Whether kernels of bf16 pairs serve the problem, where a target has them: all that is multiplied
/// is bf16 (h, dg and du are rounded to x's type before they are read), or the integers of q8_0 and
/// q4_0 are, with their scales behind the sum.
[[nodiscard]] bool multiplies_bf16(const Problem& problem) noexcept;

/// Whether they are also the fastest that the device has. Where its products of bf16 are slow, only
/// for one token by weights in bf16, which waits for memory whatever multiplies it: widening is
/// then one instruction more. Of weights in blocks fixed point reads q8_0 faster, q4_0 about as
/// fast.
[[nodiscard]] bool prefers_bf16_products(const Problem& problem, const Device& device) noexcept;

/// Forward operators of up to so many tokens are dot products.
[[nodiscard]] std::int64_t max_dot_tokens(const Problem& problem, SimdTarget target) noexcept;

[[nodiscard]] Schedule make_schedule(const Problem& problem, const Device& device, int threads,
                                     SimdTarget target) noexcept;

/// The type that tokens of `width` columns have for dot products; `pairs` as in Schedule. A wide
/// one that is alone keeps the type that it shares with the weights; others are widened once for
/// all rows.
[[nodiscard]] DType token_dtype(const Problem& problem, bool pairs, std::int64_t width) noexcept;

/// Elements from one row of tokens to the next for dot products: a vector beyond whole ones, so
/// that tokens a power of two apart do not fall into the same sets of L1.
[[nodiscard]] constexpr std::int64_t token_stride(std::int64_t width, bool pairs) noexcept {
  const std::int64_t unit = pairs ? DotKernels::kPairElems : kMaxLanes;
  return (width + unit - 1) / unit * unit + (pairs ? std::int64_t{2} : 1) * kMaxLanes;
}

/// Bytes of L2 that the blocks of a task may take: an eighth is left to the weights passing by.
[[nodiscard]] std::int64_t l2_budget_bytes(std::int64_t l2_bytes) noexcept;

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) noexcept {
  return ceil_div(a, b) * b;
}

}  // namespace sluice::cpu
