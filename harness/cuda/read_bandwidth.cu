// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "harness/cuda/check.hpp"
#include "harness/cuda/read_bandwidth.hpp"

namespace sluice::harness {
namespace {

constexpr int kStageBytes = 32 * 1024;
constexpr int kStages = 6;
constexpr int kConsumerWarps = 8;
constexpr int kBulkThreads = (kConsumerWarps + 1) * 32;
constexpr int kLoadThreads = 512;
constexpr int kLoadsInFlight = 8;

struct Params {
  const char* data;
  std::size_t bytes;
  std::uint32_t* sink;
};

// Values are combined and compared, so that no read can be left out.
__device__ void consume(std::uint32_t sum, std::uint32_t* sink) {
  if (sum == 0x9E3779B9U) *sink = sum;
}

// Warp 8 fills a ring of six stages by bulk copies; warps 0 to 7 read them.
// full[s]: one arrival (the producer's) and the stage's bytes. empty[s]: one arrival a consumer
// warp.
__global__ void __launch_bounds__(kBulkThreads, 1) read_bulk(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  namespace ptx = sluice::cuda::ptx;
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ std::uint64_t full[kStages];
  __shared__ std::uint64_t empty[kStages];
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full[s], 1);
      ptx::mbarrier_init(empty[s], kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const std::size_t stages = p.bytes / kStageBytes;
  std::uint32_t sum = 0;
  std::uint32_t turn = 0;  // how often the ring was walked
  int s = 0;
  for (std::size_t i = blockIdx.x; i < stages; i += gridDim.x) {
    unsigned char* const stage = ring + s * kStageBytes;
    if (threadIdx.x == kConsumerWarps * 32) {
      ptx::mbarrier_wait(empty[s], (turn & 1) ^ 1);  // passes at once in the first turn
      ptx::mbarrier_arrive_expect_bytes(full[s], kStageBytes);
      ptx::bulk_copy(stage, p.data + i * kStageBytes, kStageBytes, full[s]);
    } else if (threadIdx.x < kConsumerWarps * 32) {
      ptx::mbarrier_wait(full[s], turn & 1);
      for (int at = static_cast<int>(threadIdx.x); at < kStageBytes / 16;
           at += kConsumerWarps * 32) {
        const uint4 v = reinterpret_cast<const uint4*>(stage)[at];
        sum += v.x ^ v.y ^ v.z ^ v.w;
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty[s]);
    }
    if (++s == kStages) s = 0, ++turn;
  }
  consume(sum, p.sink);
#endif
}

__global__ void __launch_bounds__(kLoadThreads) read_loads(const __grid_constant__ Params p) {
  const auto* data = reinterpret_cast<const uint4*>(p.data);
  const std::size_t count = p.bytes / sizeof(uint4);
  const std::size_t step = std::size_t{gridDim.x} * kLoadThreads * kLoadsInFlight;
  std::uint32_t sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * kLoadThreads * kLoadsInFlight + threadIdx.x;
       i + (kLoadsInFlight - 1) * kLoadThreads < count; i += step) {
    uint4 v[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) v[j] = __ldcs(data + i + j * kLoadThreads);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  consume(sum, p.sink);
}

struct CopyParams {
  uint4* to;
  const uint4* from;
  std::size_t count;  // of 16 bytes
};

__global__ void __launch_bounds__(kLoadThreads) copy_loads(const __grid_constant__ CopyParams p) {
  const std::size_t step = std::size_t{gridDim.x} * kLoadThreads * kLoadsInFlight;
  for (std::size_t i = std::size_t{blockIdx.x} * kLoadThreads * kLoadsInFlight + threadIdx.x;
       i + (kLoadsInFlight - 1) * kLoadThreads < p.count; i += step) {
    uint4 v[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) v[j] = __ldcs(p.from + i + j * kLoadThreads);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) __stcs(p.to + i + j * kLoadThreads, v[j]);
  }
}

}  // namespace

Status enqueue_copy(const Device& device, void* to, const void* from, std::size_t bytes,
                    Stream stream) {
  const CopyParams p{static_cast<uint4*>(to), static_cast<const uint4*>(from),
                     bytes / sizeof(uint4)};
  const auto ctas = 4 * static_cast<unsigned>(device.sm_count);
  copy_loads<<<ctas, kLoadThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

Status enqueue_read(const Device& device, const void* data, std::size_t bytes, void* sink,
                    Stream stream) {
  const Params p{static_cast<const char*>(data), bytes, static_cast<std::uint32_t*>(sink)};
  const auto sms = static_cast<unsigned>(device.sm_count);
  auto* const s = static_cast<cudaStream_t>(stream);
  constexpr int kSmem = kStages * kStageBytes;
  // Hopper's machine code has the bulk path; newer GPUs run the PTX of sm_80, which has not.
  if (device.compute_capability == 90 && device.smem_per_block_bytes >= kSmem + 1024) {
    HARNESS_CUDA_TRY(
        cudaFuncSetAttribute(read_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem));
    read_bulk<<<sms, kBulkThreads, kSmem, s>>>(p);
  } else {
    read_loads<<<2 * sms, kLoadThreads, 0, s>>>(p);
  }
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace sluice::harness
