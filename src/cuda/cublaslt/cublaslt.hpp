// SPDX-License-Identifier: Apache-2.0
// One product by cuBLASLt, where that library is on the machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda {

/// What NVIDIA recommends for Hopper; scratch of one product after the other.
inline constexpr std::int64_t kCublasLtScratchBytes = std::int64_t{32} << 20;

/// The most that the heuristic is promised of the base of each matrix, and of rows where it is.
inline constexpr std::int64_t kCublasLtAlignment = 16;

/// A batch's matrices are nearer than this: the limit of a tensor map's strides.
inline constexpr std::int64_t kCublasLtStepLimitBytes = std::int64_t{1} << 40;

/// How many of the heuristic's algorithms can be asked for.
inline constexpr int kCublasLtRanks = 8;

/// A row-major matrix of a product.
struct LtOperand {
  const void* base = nullptr;
  std::int64_t stride_elems = 0;  ///< from row to row as stored
  bool transposed = false;        ///< stored with the sum's index k along its columns' side

  friend bool operator==(const LtOperand&, const LtOperand&) = default;
};

/// out[m, n] = Σ_k a(m, k)·b(k, n) + bias(n), fp32 sums, rounded once; added to what is there with
/// `accumulate`. `a` is stored [m, k], transposed [k, m]; `b` [k, n], transposed [n, k]. A batch is
/// `count` products of one `a` and one bias, each with its own b and out.
struct LtProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::kBF16;  ///< of a, b and the bias: bf16, fp16 or fp32
  LtOperand a;
  LtOperand b;
  DType out_dtype = DType::kBF16;  ///< `dtype` or fp32
  void* out = nullptr;
  std::int64_t out_stride_elems = 0;
  /// NOTE: of fp32 outputs alone. To a 16-bit output cuBLASLt was seen to add a product that it had
  /// rounded before: 4.8 to 68 times the bound that one rounding has.
  bool accumulate = false;
  const void* bias = nullptr;  ///< [n], or null
  int count = 1;
  std::int64_t b_step_bytes = 0;    ///< from b to b; less than a matrix where rows alternate
  std::int64_t out_step_elems = 0;  ///< from out to out; they may alternate, not overlap
  /// Of each base and the bias: what the heuristic is promised, whatever the pointers of a run are,
  /// so that a problem has one algorithm and one set of bits.
  std::int64_t alignment_bytes = kCublasLtAlignment;

  friend bool operator==(const LtProduct&, const LtProduct&) = default;
};

/// The version of the cuBLASLt that is here, 0 where there is none that a driver of this version
/// (cudaDriverGetVersion's) serves. The first call looks for it; Device::cublaslt_version holds the
/// answer.
[[nodiscard]] int cublaslt_version(int driver_version) noexcept;

/// Enqueues a product on `device`, the current one; a batch as one launch where b's step is a
/// multiple of the alignment from 0 up to kCublasLtStepLimitBytes, else as `count`. `rank`
/// chooses among the algorithms of the library's heuristic in the order of lt_ranking(), best first
/// (the last there is, where it offers fewer); only those that sum in fp32 and in a fixed order are
/// asked for. The first product on a device makes a handle that lives as long as the process, the
/// first of a shape asks the heuristic for all ranks (host work of tens of microseconds); later
/// ones find them in a table of fixed size. Can be captured.
/// Thread-safe.
/// Errors: kUnsupported without the library or an algorithm, kDevice with cuBLASLt's status.
Status cublaslt_product(const LtProduct& product, int rank, const Device& device, void* scratch,
                        Stream stream) noexcept;

}  // namespace sluice::cuda
