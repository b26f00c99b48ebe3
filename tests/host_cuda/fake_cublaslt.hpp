// SPDX-License-Identifier: Apache-2.0
// A libcublasLt.so.13 without a GPU: it answers the calls that Sluice makes, counts them and can be
// held. A program that links it has it loaded before the library looks for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::fake_cublaslt {

/// What has been called since reset().
struct Counts {
  int handles;          ///< made
  int heuristics;       ///< calls begun
  int most_heuristics;  ///< under way at once
  int products;
  int foreign_products;  ///< whose algorithm was another shape's, or whose handle nobody made
  int biases;            ///< pointers to one, where the heuristic is asked and in products
};

/// A matrix of a product as its layout says, in elements.
struct Matrix {
  const void* base;  ///< null where the heuristic is asked
  std::uint64_t rows, cols;
  std::int64_t stride, step;
  std::int32_t count;
};
/// Row-major out = a·b, whatever cuBLASLt calls them.
struct Product {
  Matrix a, b, out;
};

/// No product has this n: nothing is held.
inline constexpr std::int64_t kNone = -1;

void reset() noexcept;
[[nodiscard]] Counts counts() noexcept;

/// Of the products since reset(), and of what the heuristic was asked.
[[nodiscard]] std::vector<Product> products();
[[nodiscard]] std::vector<Product> asked();

/// The rank that the last product's algorithm had.
[[nodiscard]] int last_rank() noexcept;

/// The heuristic offers `count` algorithms from now on; 0 is a refusal.
void offer(int count) noexcept;

/// What an algorithm says of itself, by its rank.
struct Attributes {
  std::int32_t id;
  std::uint32_t tile;
  std::int32_t split_k;
  std::uint32_t custom;
  std::uint16_t cluster;
};
/// Of algorithms offered from now on. Those beyond the list say nothing, and none before a call.
void describe(std::vector<Attributes> attributes);
/// This cublasLtMatmulAlgoConfigAttributes_t of the algorithm of this rank cannot be read.
void withhold(int attribute, int rank) noexcept;

/// The heuristic takes so long.
void take_ms(int milliseconds) noexcept;

/// The heuristic does not come back for products of this n until it is called with another.
void hold(std::int64_t n) noexcept;
/// Whether one is held.
[[nodiscard]] bool holds() noexcept;

void set_version(std::size_t version) noexcept;

}  // namespace sluice::fake_cublaslt
