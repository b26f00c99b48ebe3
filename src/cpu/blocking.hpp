// SPDX-License-Identifier: Apache-2.0
// How the engine cuts a problem: which path, which blocks, and where everything lies in the
// workspace. Pure arithmetic on the plan. Only kBlockK and kMaxDotTokens decide in which order sums
// are formed; all else may depend on threads and caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.hpp"
#include "sluice/plan.hpp"

namespace sluice::cpu {

/// A K block: sums of this length start from zero and are added up, which bounds the error of long
/// sums. A panel of B, 256 x 32 fp32, is as large as a usual L1 and streams from L2 at no loss.
inline constexpr std::int64_t kBlockK = 256;
/// The most columns of C (gate and up counted apart) of one task.
inline constexpr std::int64_t kMaxBlockCols = 256;
/// Tokens of one pass through gate_up and down of an mlp: bounds h in the workspace, while weights
/// are read once per so many tokens.
inline constexpr std::int64_t kMaxPassRows = 1024;

/// Blocks of one GEMM's C: m_blocks times n_blocks tasks of `rows` rows by `panels` panels.
struct Blocking {
  std::int64_t rows = 0;
  std::int64_t m_blocks = 0;
  std::int64_t panels = 0;
  std::int64_t n_blocks = 0;
  [[nodiscard]] std::int64_t tasks() const noexcept { return m_blocks * n_blocks; }
};

/// C of m rows and `panels` panels; no task takes more than max_panels of them.
[[nodiscard]] Blocking choose_blocking(std::int64_t m, std::int64_t panels, std::int64_t max_panels,
                                       const GemmKernels& kernels, std::int64_t l2_bytes,
                                       int threads) noexcept;

/// Everything that launch needs to know beyond the plan. Offsets are bytes into the payload.
struct Schedule {
  bool dots = false;           ///< few tokens: dot products, else the GEMM
  int threads = 1;             ///< at most this many share a region
  std::int64_t pass_rows = 0;  ///< tokens of one pass (forward GEMMs)
  Blocking gate_up;            ///< g and u; with dh beside them in a recomputing backward
  Blocking down;               ///< y
  Blocking dh;                 ///< dy·Wd
  Blocking dx;
  Blocking dw_gate_up;  ///< each of dw_gate and dw_up
  Blocking dw_down;
  std::size_t input = 0;   ///< dots: tokens in fp32, zero-padded rows; GEMM: n of the norm
  std::size_t hidden = 0;  ///< h: fp32 for dots, x's type for the GEMM
  std::size_t dg = 0;      ///< kMlpGrad, x's type
  std::size_t du = 0;
  std::size_t panels = 0;       ///< the first thread's scratch
  std::size_t panels_each = 0;  ///< bytes of a thread's scratch
  std::int64_t a_floats = 0;    ///< of it: packed A, packed B, C, a second C
  std::int64_t b_floats = 0;
  std::int64_t c_floats = 0;
  std::int64_t c2_floats = 0;
  std::size_t bytes = 0;
};

[[nodiscard]] Schedule make_schedule(const Plan& plan, SimdTarget target) noexcept;

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) noexcept {
  return ceil_div(a, b) * b;
}

}  // namespace sluice::cpu
