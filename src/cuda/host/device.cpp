// SPDX-License-Identifier: Apache-2.0
// cuda_device() and the guard of the current device. Attributes are read without a context, so
// that asking what a machine has costs no device memory.
#include "cuda/host/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "cuda/cublaslt/cublaslt.hpp"
#include "cuda/host/status.hpp"

namespace sluice {
namespace {

// How many devices there are, at least one; else why there is none.
Expected<int> device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());
  if (code == cudaSuccess || code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
      code == cudaErrorStubLibrary) {
    return make_error(ErrorCode::kUnsupported, "device: no CUDA device found (%s)",
                      code == cudaSuccess ? "none visible" : cudaGetErrorString(code));
  }
  return cuda::cuda_error(code, "cudaGetDeviceCount");
}

struct Attribute {
  cudaDeviceAttr id;
  int* value;
};

}  // namespace

int cuda_device_count() noexcept {
  const auto count = device_count();
  return count ? *count : 0;
}

Expected<Device> cuda_device(int ordinal) noexcept {
  const auto count = device_count();
  if (!count) return count.error();
  if (ordinal < 0 || ordinal >= *count) {
    return make_error(ErrorCode::kInvalidArgument, "device: got ordinal %d, wanted 0 to %d",
                      ordinal, *count - 1);
  }
  Device device;
  device.backend = Backend::kCuda;
  device.ordinal = ordinal;
  int major = 0;
  int minor = 0;
  int cooperative = 0;
  int l2_bytes = 0;
  int memory_khz = 0;
  int memory_bits = 0;
  for (const Attribute& attribute : {
           Attribute{cudaDevAttrComputeCapabilityMajor, &major},
           Attribute{cudaDevAttrComputeCapabilityMinor, &minor},
           Attribute{cudaDevAttrMultiProcessorCount, &device.sm_count},
           Attribute{cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.smem_per_block_bytes},
           Attribute{cudaDevAttrCooperativeLaunch, &cooperative},
           Attribute{cudaDevAttrL2CacheSize, &l2_bytes},
           Attribute{cudaDevAttrMemoryClockRate, &memory_khz},
           Attribute{cudaDevAttrGlobalMemoryBusWidth, &memory_bits},
       }) {
    SLUICE_CUDA_TRY(cudaDeviceGetAttribute(attribute.value, attribute.id, ordinal));
  }
  SLUICE_CUDA_TRY(cudaDriverGetVersion(&device.driver_version));
  SLUICE_CUDA_TRY(cudaRuntimeGetVersion(&device.runtime_version));
  cudaDeviceProp properties{};
  SLUICE_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  device.compute_capability = 10 * major + minor;
  device.arch = arch_of(device.compute_capability);
  device.cooperative_launch = cooperative != 0;
  device.cublaslt_version = cuda::cublaslt_version(device.driver_version);
  device.l2_bytes = l2_bytes;
  device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  // A bit a wire at both edges of the clock.
  device.memory_bytes_per_second = std::int64_t{2000} * memory_khz * (memory_bits / 8);
  std::snprintf(device.name, sizeof(device.name), "%.*s", static_cast<int>(sizeof(device.name)) - 1,
                properties.name);
  return device;
}

namespace cuda {

DeviceGuard::DeviceGuard(int ordinal) noexcept {
  int current = -1;
  if (const cudaError_t code = cudaGetDevice(&current); code != cudaSuccess) {
    status_ = cuda_error(code, "cudaGetDevice");
    return;
  }
  if (current == ordinal) return;
  if (const cudaError_t code = cudaSetDevice(ordinal); code != cudaSuccess) {
    status_ = cuda_error(code, "cudaSetDevice");
    return;
  }
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

Status zero_header(void* header, const Device& device, Stream stream) noexcept {
  const DeviceGuard guard(device.ordinal);
  if (!guard.status()) return guard.status();
  SLUICE_CUDA_TRY(
      cudaMemsetAsync(header, 0, kWorkspaceHeaderBytes, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace cuda
}  // namespace sluice
