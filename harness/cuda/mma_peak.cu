// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/mma.cuh"
#include "harness/cuda/check.hpp"
#include "harness/cuda/mma_peak.hpp"

namespace sluice::harness {
namespace {

// The accumulators of a 64 x 64 tile, as the library's GEMM has them: 32 independent chains a warp,
// two warps a scheduler.
constexpr int kRows = 4;
constexpr int kCols = 8;
constexpr int kThreads = 256;
constexpr double kFlopsOfMma = 2.0 * 16 * 8 * 16;

struct Params {
  int rounds;
  float* sink;
};

// Two bf16 of either sign in [0.5, 2), every bit of the mantissa random: the power that a
// multiplication draws depends on its operands, and zeros would draw least.
__device__ std::uint32_t noise(std::uint32_t& state) {
  state = state * 1664525U + 1013904223U;
  return ((state >> 9) & 0x80FF80FFU) | 0x3F003F00U;
}

__global__ void __launch_bounds__(kThreads, 1) multiply(const __grid_constant__ Params p) {
  std::uint32_t state = blockIdx.x * kThreads + threadIdx.x;
  std::uint32_t a[kRows][4];
  std::uint32_t b[kCols][2];
  for (auto& fragment : a) {
    for (auto& word : fragment) word = noise(state);
  }
  for (auto& fragment : b) {
    for (auto& word : fragment) word = noise(state);
  }
  float d[kRows][kCols][4] = {};
  for (int round = 0; round < p.rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        cuda::ptx::mma_m16n8k16<__nv_bfloat16>(d[i][j], a[i], b[j][0], b[j][1]);
      }
    }
  }
  float sum = 0;
  for (const auto& row : d) {
    for (const auto& tile : row) sum += tile[0] + tile[1] + tile[2] + tile[3];
  }
  if (sum == 0.123456789F) *p.sink = sum;  // so that no product can be left out
}

}  // namespace

Status enqueue_mma(const Device& device, int rounds, void* sink, Stream stream) {
  const Params p{rounds, static_cast<float*>(sink)};
  multiply<<<static_cast<unsigned>(device.sm_count), kThreads, 0,
             static_cast<cudaStream_t>(stream)>>>(p);
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

double mma_flops(const Device& device, int rounds) {
  return kFlopsOfMma * kRows * kCols * (kThreads / 32) * device.sm_count * rounds;
}

}  // namespace sluice::harness
