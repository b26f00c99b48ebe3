// SPDX-License-Identifier: Apache-2.0
// Which of the algorithms that cuBLASLt's heuristic offers is the fastest: an estimate from their
// attributes. Plain arithmetic, tested on any CPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "cuda/cublaslt/cublaslt.hpp"

namespace sluice::cuda {

/// What cublasLtMatmulAlgoConfigGetAttribute says of an algorithm.
struct LtAttributes {
  std::int32_t id = -1;       ///< -1 where an attribute cannot be read
  std::uint32_t tile = 0;     ///< a cublasLtMatmulTile_t
  std::int32_t split_k = 0;   ///< parts of k; 0 and 1 are a whole
  std::uint32_t custom = 0;   ///< of nvjet: below 4 pingpong, else cooperative
  std::uint16_t cluster = 0;  ///< a cublasLtClusterShape_t
};

/// The id of nvjet, the one family that is estimated: all that was offered on Hopper.
inline constexpr std::int32_t kLtNvjet = 66;

/// What the estimate knows of a GPU.
struct LtGpu {
  int sm_count = 0;
  bool narrow_l2 = false;  ///< an H100's constants, not an H200's (has_narrow_l2())

  friend bool operator==(const LtGpu&, const LtGpu&) = default;
};

/// The estimated time of a product with cold weights, in us. Nothing for another family, a tile or
/// a cluster without a name, and for a transposed a or a plain b, for which nothing was fitted.
[[nodiscard]] std::optional<double> lt_algorithm_us(const LtProduct& product,
                                                    const LtAttributes& algorithm,
                                                    const LtGpu& gpu) noexcept;

/// The places of the heuristic's answers, of up to kCublasLtRanks, in the order of their estimates;
/// in the heuristic's own where one of them has none.
[[nodiscard]] std::array<int, kCublasLtRanks> lt_ranking(const LtProduct& product,
                                                         std::span<const LtAttributes> offered,
                                                         const LtGpu& gpu) noexcept;

}  // namespace sluice::cuda
