// SPDX-License-Identifier: Apache-2.0
// A GPU that is not there: runs a kernel's source, compiled as C++, a CTA after the other and its
// threads as fibers of one thread. Arithmetic and data flow are the kernel's own; what
// src/cuda/ptx has as instructions is here by their definition in the PTX ISA. It says nothing of
// speed, and it has no memory model but one that is harsh: a warp runs as far as it can before
// another starts, in random order, and a copy of cp.async brings poison first and its bytes when
// they are waited for, so that a barrier that is missing shows as a wrong result.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "sluice/status.hpp"

namespace sluice::emulator {

/// Runs grid x block threads, each calling `kernel`. Errors: kInternal where threads wait for each
/// other for ever, or one ends with copies that nobody waited for.
Status run(dim3 grid, dim3 block, std::size_t smem_bytes, const std::function<void()>& kernel);

/// Of the fiber that runs.
[[nodiscard]] uint3 thread_index();
[[nodiscard]] uint3 block_index();
[[nodiscard]] dim3 grid_size();

/// __syncthreads(), __syncwarp().
void wait_for_cta();
void wait_for_warp();

/// One instruction of a whole warp: each lane gives `in` and gets `out`; the last to come calls
/// `compute` with all lanes' (each of `in_bytes`, `out_bytes`, one behind the other).
void together(const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes,
              const std::function<void(const char* in, char* out)>& compute);

/// Shared memory's addresses as 32 bits.
[[nodiscard]] std::uint32_t shared_address(const void* pointer);
/// `bytes` at an address; ends the run where they are not the CTA's.
[[nodiscard]] char* shared_at(std::uint32_t address, std::size_t bytes);

/// Counts where two of these eight units of 16 bytes, read in one cycle, are of the same banks.
void count_conflicts(const std::uint32_t (&addresses)[8]);
/// How many there were since the last call.
[[nodiscard]] int take_conflicts();

/// cp.async of 16 bytes, its groups and its wait.
void copy_later(std::uint32_t to, const void* from, bool valid);
void commit_copies();
void wait_for_copies(int pending);

}  // namespace sluice::emulator

// What nvcc declares by itself.
using std::max;
using std::min;
#define threadIdx (::sluice::emulator::thread_index())
#define blockIdx (::sluice::emulator::block_index())
#define gridDim (::sluice::emulator::grid_size())
#undef __shared__
#define __shared__
#undef __global__
#define __global__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline void __syncthreads() { ::sluice::emulator::wait_for_cta(); }
inline void __syncwarp() { ::sluice::emulator::wait_for_warp(); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
template <class T>
T __ldcg(const T* from) {
  return *from;
}
