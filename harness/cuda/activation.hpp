// SPDX-License-Identifier: Apache-2.0
// The activation kernels of the unfused baseline: h = act(g) ⊙ u from one [M, 2H] buffer [g, u], as
// engines run them after a merged gate_up GEMM.
#pragma once

#include <cstdint>

#include "sluice/device.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

enum class ActivationShape : std::uint8_t {
  kOneRow = 0,  ///< a block walks one row
  kTiled = 1,   ///< a block does a tile of columns of one row
};

struct ActivationCall {
  std::int64_t m = 0;
  std::int64_t h = 0;          ///< a multiple of 8
  DType dtype = DType::kBF16;  ///< bf16 or fp16, of both sides
  Gate gate{};
  const void* g_u = nullptr;          ///< [M, 2H], contiguous, 16 bytes aligned
  void* out = nullptr;                ///< [M, H], 16 bytes aligned
  std::int64_t out_stride_bytes = 0;  ///< a multiple of 16
};

/// Enqueues the activation on the current device: 16-byte accesses, fp32 inside, one rounding.
/// Errors: kDevice.
Status enqueue_activation(const ActivationCall& call, ActivationShape shape, Stream stream);

}  // namespace sluice::harness
