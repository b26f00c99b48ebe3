// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "harness/cuda/check.hpp"
#include "harness/cuda/read_bandwidth.hpp"

namespace sluice::harness {
namespace {

constexpr int kStageBytes = 32 * 1024;
constexpr int kStages = 6;
constexpr int kBulkThreads = 32;
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

// One thread a CTA keeps six bulk copies in flight along one stretch of memory and looks at nothing
// that arrives. Consumers would measure their own hand-over: with eight warps that read each stage
// and give it back, six stages of 28 KiB get 4.32 in place of 4.60 TB/s (one H200, one run).
// full[s]: one arrival, the thread's own, and the stage's bytes.
__global__ void __launch_bounds__(kBulkThreads, 1) read_bulk(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  namespace ptx = sluice::cuda::ptx;
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ std::uint64_t full[kStages];
  if (threadIdx.x != 0) return;
  for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(full[s], 1);
  ptx::fence_mbarrier_init();
  const std::uint64_t policy = ptx::evict_first_policy();
  const std::size_t stages = p.bytes / kStageBytes;
  const std::size_t begin = stages * blockIdx.x / gridDim.x;
  const std::size_t count = stages * (blockIdx.x + 1) / gridDim.x - begin;
  const char* const data = p.data + begin * kStageBytes;
  // The last turns wait for what is still under way: shared memory must outlive every copy.
  for (std::size_t i = 0; i < count + kStages; ++i) {
    const int s = static_cast<int>(i % kStages);
    const auto turn = static_cast<std::uint32_t>(i / kStages);
    if (i >= kStages && i - kStages < count) ptx::mbarrier_wait(full[s], (turn - 1) & 1);
    if (i >= count) continue;
    ptx::mbarrier_arrive_expect_bytes(full[s], kStageBytes);
    ptx::bulk_copy(ring + s * kStageBytes, data + i * kStageBytes, kStageBytes, full[s], policy);
  }
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
