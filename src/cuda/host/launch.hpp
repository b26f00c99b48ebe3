// SPDX-License-Identifier: Apache-2.0
// launch(): cudaLaunchKernelEx with the attributes that Sluice's kernels use, as one call that
// returns a Status. Every kernel takes exactly one parameter, a __grid_constant__ params struct.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "cuda/host/status.hpp"
#include "sluice/plan.hpp"

namespace sluice::cuda {

struct LaunchShape {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  std::size_t smem_bytes = 0;  ///< dynamic shared memory; above 48 KiB the kernel is opted in
  /// The kernel may start while the one before it in the stream still runs; it must execute
  /// griddepcontrol.wait before it reads what that one wrote. sm_90 and newer.
  bool programmatic = false;
  unsigned cluster = 1;  ///< CTAs of a cluster along grid.x; sm_90 and newer
};

inline constexpr int kMaxDevices = 64;

/// Dynamic shared memory that a kernel has been opted in to, a device each. One per kernel.
using SmemGrants = std::array<std::atomic<std::size_t>, kMaxDevices>;

/// The launch without its types. `device` is the current device's ordinal.
Status launch_erased(const void* kernel, SmemGrants& grants, int device, const LaunchShape& shape,
                     Stream stream, void** arguments) noexcept;

/// Enqueues kKernel(params) on `stream` of the current device `device`. Neither allocates nor
/// synchronises (but in a SLUICE_CUDA_DEBUG build, which waits for the kernel where the stream is
/// not being captured). The first launch of a kernel with more than 48 KiB of shared memory on a
/// device opts it in; later ones compare one number. Thread-safe.
/// Errors: kDevice with the launch's code; kInvalidArgument where `device` is 64 or more.
template <auto kKernel, class Params>
Status launch(int device, const LaunchShape& shape, Stream stream, const Params& params) noexcept {
  static_assert(
      requires { kKernel(params); }, "the kernel takes one argument, its Params");
  static SmemGrants grants{};
  void* arguments[] = {const_cast<Params*>(&params)};
  return launch_erased(reinterpret_cast<const void*>(kKernel), grants, device, shape, stream,
                       arguments);
}

}  // namespace sluice::cuda
