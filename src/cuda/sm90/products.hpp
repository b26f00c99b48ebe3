// SPDX-License-Identifier: Apache-2.0
// One GEMM launch each: from the operands of a call to tensor maps and parameters.
#pragma once

#include <array>

#include "cuda/sm90/gemm_config.hpp"
#include "cuda/workspace.hpp"
#include "sluice/operands.hpp"
#include "sluice/plan.hpp"

namespace sluice::cuda::sm90 {

/// A matrix of a call. Without a base it is absent.
struct Matrix {
  OperandSpec spec;
  void* base = nullptr;
};

/// Where cuBLASLt takes the plain products of a call (library_products.hpp).
struct LibraryChoice {
  int rank;       ///< which of its heuristic's algorithms
  void* scratch;  ///< kCublasLtScratchBytes
};

/// What the launches of one run() share.
struct Call {
  const Problem& problem;
  const Device& device;
  const Operands& operands;
  Stream stream;
  std::array<OperandSpec, kOperandCount> specs;
  WorkspaceHeader* header = nullptr;  ///< with partials: where a forward tiling is stream-K
  float* partials = nullptr;
  const LibraryChoice* library = nullptr;  ///< null: this library's own products

  [[nodiscard]] Matrix at(Operand id) const noexcept;
  /// Of the operand's shape and type, densely at `base`: a part of the workspace.
  [[nodiscard]] Matrix dense(Operand id, void* base) const noexcept;
};

/// h, and g and u where they have a base.
Status gate_up(const Call& call, const Tiling& tiling, const Matrix& h, const Matrix& g,
               const Matrix& u) noexcept;

/// y from h.
Status down(const Call& call, const Tiling& tiling, const Matrix& h) noexcept;

/// dg and du, and h where it has a base, from dy, g and u.
Status gate_up_grad(const Call& call, const Tiling& tiling, const Matrix& g, const Matrix& u,
                    const Matrix& dg, const Matrix& du, const Matrix& h) noexcept;

/// dx = dg·Wg + du·Wu.
Status input_grad(const Call& call, const Tiling& tiling, const Matrix& dg,
                  const Matrix& du) noexcept;

/// out[R, C] = leftᵀ·right, sums over tokens: left [M, R], right [M, C]. Added to what is there
/// where the problem accumulates.
Status weight_grad(const Call& call, const Tiling& tiling, const Matrix& left, const Matrix& right,
                   const Matrix& out) noexcept;

}  // namespace sluice::cuda::sm90
