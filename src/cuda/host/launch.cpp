// SPDX-License-Identifier: Apache-2.0
#include "cuda/host/launch.hpp"

#include <mutex>

namespace sluice::cuda {
namespace {

constexpr std::size_t kSmemWithoutOptIn = std::size_t{48} * 1024;

// Raises the kernel's limit. Under a lock, so that of two threads the larger wish stands.
Status grow(const void* kernel, std::atomic<std::size_t>& granted, std::size_t bytes) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (granted.load(std::memory_order_relaxed) >= bytes) return {};
  SLUICE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  granted.store(bytes, std::memory_order_release);
  return {};
}

#if defined(SLUICE_CUDA_DEBUG)
Status wait_unless_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  SLUICE_CUDA_TRY(cudaStreamIsCapturing(stream, &capture));
  if (capture == cudaStreamCaptureStatusNone) SLUICE_CUDA_TRY(cudaStreamSynchronize(stream));
  return {};
}
#endif

}  // namespace

Status launch_erased(const void* kernel, SmemGrants& grants, int device, const LaunchShape& shape,
                     Stream stream, void** arguments) noexcept {
  if (device < 0 || device >= kMaxDevices) {
    return make_error(ErrorCode::kInvalidArgument, "device: got ordinal %d, wanted 0 to %d", device,
                      kMaxDevices - 1);
  }
  std::atomic<std::size_t>& granted = grants[static_cast<std::size_t>(device)];
  if (shape.smem_bytes > kSmemWithoutOptIn &&
      shape.smem_bytes > granted.load(std::memory_order_acquire)) {
    SLUICE_TRY(grow(kernel, granted, shape.smem_bytes));
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = shape.cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  SLUICE_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments));
#if defined(SLUICE_CUDA_DEBUG)
  SLUICE_TRY(wait_unless_captured(config.stream));
#endif
  return {};
}

}  // namespace sluice::cuda
