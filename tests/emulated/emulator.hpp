// SPDX-License-Identifier: Apache-2.0
// Runs a kernel's source, compiled as C++, without a GPU: one CTA after another, a CTA's threads as
// fibers of one host thread. Headers of this folder replace those of src/ with the same names and
// do what the PTX ISA says of each instruction; exp, sqrt and the like are the host's. It measures
// no time.
//
// Found, as a wrong result: a missing barrier among warps (each runs as far as it can before
// another, in random order); a missing wait for cp.async (poison lies there until then, or until
// some time after an arrival at an mbarrier); an mbarrier that is overwritten. Not found:
// a missing __syncwarp (lanes run in order); plain loads and stores outside of memory; reads of
// static shared memory that no thread wrote (zeros, then what the last CTA left).
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "sluice/status.hpp"

namespace sluice::emulator {

/// Runs grid x block threads, each calling `kernel`. Errors: kInternal where threads wait for each
/// other for ever, where one ends with copies that nobody has waited for, for addresses of
/// cp.async, ldmatrix and __ldcg that are not aligned or of no memory, and where something is
/// written after the CTA's shared memory.
Status run(dim3 grid, dim3 block, std::size_t smem_bytes, const std::function<void()>& kernel);

/// Of the fiber that runs.
[[nodiscard]] uint3 thread_index();
[[nodiscard]] uint3 block_index();
[[nodiscard]] dim3 grid_size();
[[nodiscard]] dim3 block_size();

/// __syncthreads(), which does not wait for threads that have ended; __syncwarp(); bar.sync.
void wait_for_cta();
void wait_for_warp();
void wait_at_barrier(int id, int threads);

/// One instruction of a whole warp: each lane gives `in` and gets `out`; the last to come calls
/// `compute` with all lanes' (each of `in_bytes`, `out_bytes`, one after the other).
void together(const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes,
              const std::function<void(const char* in, char* out)>& compute);

/// Dynamic shared memory's addresses as 32 bits.
[[nodiscard]] std::uint32_t shared_address(const void* pointer);
/// `bytes` at an address; ends the run where they are not the CTA's.
[[nodiscard]] char* shared_at(std::uint32_t address, std::size_t bytes);

/// Counts where two of these eight units of 16 bytes, read in one cycle, are of the same banks.
void count_conflicts(const std::uint32_t (&addresses)[8]);
/// How many there were since the last call.
[[nodiscard]] int take_conflicts();

/// The most shared memory of a CTA: run() refuses more.
void limit_shared_memory(std::size_t bytes);
/// What the kernels may read. Without any, everything.
void add_memory(const void* begin, std::size_t bytes);
void remove_memory(const void* begin);
/// Ends the run where a kernel may not read `bytes` there in one access.
void check_read(const void* address, std::size_t bytes);

/// cp.async of 16 bytes, its groups and its wait.
void copy_later(std::uint32_t to, const void* from, bool valid);
void commit_copies();
void wait_for_copies(int pending);

/// mbarriers, by their address. arrive_after_copies() is of all copies of the thread so far, which
/// then land at any time, but not after its later ones.
void init_mbarrier(std::uint32_t barrier, unsigned arrivals);
void arrive(std::uint32_t barrier);
void wait_for_phase(std::uint32_t barrier, unsigned parity);
void arrive_after_copies(std::uint32_t barrier);

}  // namespace sluice::emulator

// What nvcc declares by itself.
using std::max;
using std::min;
#define threadIdx (::sluice::emulator::thread_index())
#define blockIdx (::sluice::emulator::block_index())
#define gridDim (::sluice::emulator::grid_size())
#define blockDim (::sluice::emulator::block_size())
#undef __shared__
// thread_local serves both forms: it implies static in a function and may follow extern. All fibers
// are one thread's.
#define __shared__ thread_local
#undef __global__
#define __global__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline void __syncthreads() { ::sluice::emulator::wait_for_cta(); }
inline void __syncwarp() { ::sluice::emulator::wait_for_warp(); }
inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
template <class T>
T __ldcg(const T* from) {
  ::sluice::emulator::check_read(from, sizeof(T));
  return *from;
}
template <class T>
void __stcg(T* to, const T& value) {
  *to = value;
}
inline float rsqrtf(float v) { return 1.0F / std::sqrt(v); }

namespace sluice::emulator {
// Of the values of all lanes that of lane `source`, which each lane names for itself.
template <class T>
T exchanged(T value, int source) {
  struct Lane {
    T value;
    int source;
  };
  const Lane own{value, source};
  T out;
  together(&own, sizeof(own), &out, sizeof(T), [](const char* in, char* to) {
    Lane lanes[32];
    std::memcpy(lanes, in, sizeof(lanes));
    for (int lane = 0; lane < 32; ++lane) {
      std::memcpy(to + lane * sizeof(T), &lanes[lanes[lane].source].value, sizeof(T));
    }
  });
  return out;
}
}  // namespace sluice::emulator

template <class T>
T __shfl_sync(unsigned /*all*/, T value, int source) {
  return sluice::emulator::exchanged(value, source);
}
template <class T>
T __shfl_xor_sync(unsigned /*all*/, T value, int distance) {
  return sluice::emulator::exchanged(value, static_cast<int>(threadIdx.x % 32) ^ distance);
}
