// SPDX-License-Identifier: Apache-2.0
// What the main program and the instances share. No CUTLASS header here: each instance compiles by
// itself, in about a minute.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/types.hpp"

namespace example {

/// How both operands of the GEMM are stored.
enum class Input : std::uint8_t {
  kBf16,
  kE4m3,  ///< without scales
  kMxf8,  ///< e4m3, a scale of ue8m0 for 32 elements of a row
  kNvf4,  ///< e2m1, a scale of ue4m3 for 16
};

/// What an instance leaves in `out`.
enum class Output : std::uint8_t {
  kGatedBf16,    ///< [M, N/2] bf16
  kGatedE4m3,    ///< [M, N/2] e4m3
  kWideBf16,     ///< [M, N] bf16: the stock epilogue
  kWideE4m3,     ///< [M, N] e4m3: the stock epilogue, as many bytes as [M, N/2] in bf16
  kChainBf16,    ///< [M, N] bf16: max(scale · sum + bias, 0), of CUTLASS's own nodes
  kReducedBf16,  ///< [M, N] bf16: max(token_scales · scale · sum + bias, 0), and its sums
  kScaledBf16,   ///< [M, N/2] bf16, gated: of token_scales · column_scales · sum + bias
};

enum class Act : std::uint8_t {
  kSilu,
  kGeluTanh,
  kGeluErf,
  kRelu,
  kLibrarySilu,
  kTanh,
  kHardSwish,
  kLeakyRelu,
  kTakeGate
};

/// out[l] = epilogue(a[l] · b[l]ᵀ): a [L, M, K] and b [L, N, K], row-major and contiguous.
struct Call {
  int m = 0;
  int n = 0;
  int k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* a_scales = nullptr;  // read by instances with scales only: Instance::scale_offsets
  const void* b_scales = nullptr;
  void* out = nullptr;                   // null: kGated* of capability 9 store nothing
  std::int64_t out_stride = 0;           // elements from row to row
  int batches = 1;                       // L; of instances without scales
  std::int64_t out_batch_stride = 0;     // elements from batch to batch
  const float* bias = nullptr;           // [N]; read by instances with a bias only
  const float* token_scales = nullptr;   // [M]; read by kReducedBf16 and kScaledBf16
  const float* column_scales = nullptr;  // [N]; read by kScaledBf16
  float* token_sums = nullptr;           // [M], [N] and one, a 0: of kReducedBf16's fp32 values
  float* column_sums = nullptr;
  float* sum = nullptr;
  sluice::Gate gate;  // read by kLibrarySilu only
  float scale = 1;    // read by kGatedE4m3, kChainBf16 and kReducedBf16 only
  int swizzle = 1;    // of CTAs, as CUTLASS's max_swizzle_size
};

/// A GEMM whose arguments are set.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// Launches; false where CUTLASS refuses.
  [[nodiscard]] virtual bool run(cudaStream_t stream) = 0;
};

struct Instance {
  std::string name;
  int capability = 9;  // the major one that it runs on: 9 or 10
  Input input = Input::kBf16;
  Output output = Output::kGatedBf16;
  Act act = Act::kSilu;
  int chunk = 1;
  bool up_first = false;
  bool bias = false;
  /// Null where CUTLASS cannot implement the call.
  std::unique_ptr<Gemm> (*make)(const Call&) = nullptr;
  /// Where the scales of a (or b) lie, in bytes: of each row, of each block of its elements. Null
  /// without scales.
  std::vector<std::int64_t> (*scale_offsets)(int m, int n, int k, bool of_b) = nullptr;
};

/// Every instance that the program was linked with.
std::vector<Instance>& instances();

/// Times those of a capability that check() passed, each beside what it stands against; prints
/// rows, and writes them to a file where one is named. False where that cannot be written.
bool time_instances(int capability, const char* device_name, const char* json_path);

}  // namespace example
