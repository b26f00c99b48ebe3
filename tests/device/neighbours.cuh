// SPDX-License-Identifier: Apache-2.0
// Kernels that a kernel under test has beside it: some that hold SMs, some that crowd the ways to
// L2, and producers that write what it reads late.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/host/launch.hpp"
#include "cuda/ptx/global_timer.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "job.hpp"

namespace sluice::gpu {

__device__ inline void spin_ns(std::uint64_t ns) {
  const std::uint64_t start = cuda::ptx::global_timer_ns();
  while (cuda::ptx::global_timer_ns() - start < ns) {
  }
}

struct SpinParams {
  std::uint64_t ns;
};
inline __global__ void spin(const __grid_constant__ SpinParams p) { spin_ns(p.ns); }

/// What a holder and the host tell each other, in memory that both see.
struct HoldWords {
  volatile int started;   ///< CTAs that hold an SM
  volatile int released;  ///< set behind the work under test, in its stream
  volatile int gave_up;   ///< CTAs that were not released within ten seconds
};

struct HoldParams {
  HoldWords* words;
};
inline __global__ void hold(const __grid_constant__ HoldParams p) {
  atomicAdd_system(const_cast<int*>(&p.words->started), 1);
  const std::uint64_t start = cuda::ptx::global_timer_ns();
  while (p.words->released == 0) {
    if (cuda::ptx::global_timer_ns() - start > 10'000'000'000) {
      atomicAdd_system(const_cast<int*>(&p.words->gave_up), 1);
      return;
    }
  }
}

/// Takes `sms` SMs until `words->released`.
inline Status hold_sms_until(unsigned sms, HoldWords* words, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = sms;
  shape.block.x = 1;
  shape.smem_bytes = 200 * 1024;  // no other CTA of ours fits beside it
  return cuda::launch<&hold>(0, shape, stream, HoldParams{words});
}

/// Takes `sms` SMs for half a millisecond.
inline Status hold_sms(unsigned sms, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = sms;
  shape.block.x = 32;
  shape.smem_bytes = 200 * 1024;  // no other CTA of ours fits beside it
  return cuda::launch<&spin>(0, shape, stream, SpinParams{500'000});
}

struct CrowdParams {
  HoldWords* words;
  unsigned* sink;
  unsigned mask;  ///< words of the sink, a power of two, less one
};
inline __global__ void crowd(const __grid_constant__ CrowdParams p) {
  if (threadIdx.x == 0) atomicAdd_system(const_cast<int*>(&p.words->started), 1);
  const std::uint64_t start = cuda::ptx::global_timer_ns();
  unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * 0x9E3779B9U;
  while (p.words->released == 0) {
    for (int i = 0; i < 4096; ++i) {
      at = at * 1664525U + 1013904223U;
      atomicAdd(&p.sink[at >> 8 & p.mask], 1U);  // nobody reads the sum: it is not waited for
    }
    if (cuda::ptx::global_timer_ns() - start > 10'000'000'000) {
      if (threadIdx.x == 0) atomicAdd_system(const_cast<int*>(&p.words->gave_up), 1);
      return;
    }
  }
}

/// While it lives, a warp on each of half the SMs sends additions to `bytes` (a power of two) of
/// memory as fast as they leave, so that stores of others wait; few bytes lie in few slices of L2.
/// A warp of 32 registers fits beside every kernel of ours, and half the SMs have none.
/// NOTE: who launches a kernel for the first time, or allocates, waits for it to end.
class CrowdedL2 {
 public:
  explicit CrowdedL2(std::size_t bytes)
      : sink_(std::move(harness::RigBuffer::make(rig(), bytes).value())) {
    EXPECT_CUDA(cudaMallocHost(&words_, sizeof(*words_)));
    std::memset(words_, 0, sizeof(*words_));
    cudaFuncAttributes attributes{};
    EXPECT_CUDA(cudaFuncGetAttributes(&attributes, &crowd));
    EXPECT_LE(attributes.numRegs, 32);
    cuda::LaunchShape shape;
    shape.grid.x = static_cast<unsigned>(rig().device().sm_count) / 2;
    shape.block.x = 32;
    const Status launched =
        cuda::launch<&crowd>(0, shape, stream_.stream,
                             CrowdParams{words_, reinterpret_cast<unsigned*>(sink_.data()),
                                         static_cast<unsigned>(bytes / 4 - 1)});
    EXPECT_OK(launched);
    while (launched && words_->started < static_cast<int>(shape.grid.x)) {
      std::this_thread::yield();
    }
  }
  ~CrowdedL2() {
    words_->released = 1;
    EXPECT_CUDA(cudaStreamSynchronize(stream_.stream));
    EXPECT_EQ(words_->gave_up, 0);
    EXPECT_CUDA(cudaFreeHost(words_));
  }
  CrowdedL2(const CrowdedL2&) = delete;
  CrowdedL2& operator=(const CrowdedL2&) = delete;

 private:
  StreamGuard stream_;
  harness::RigBuffer sink_;
  HoldWords* words_ = nullptr;
};
/// Few slices of L2, and all of them with memory behind them.
inline constexpr std::size_t kCrowds[] = {std::size_t{4} << 10, std::size_t{64} << 20};

// No other CTA of ours fits beside so many but a crowd's.
inline constexpr int kFilledBytes = 224 * 1024;
inline __global__ void fill_shared(const __grid_constant__ SpinParams p) {
  extern __shared__ __align__(16) char fill_shared_raw[];
  const std::uint32_t base = cuda::ptx::shared_address(fill_shared_raw);
  constexpr int kStep = 1024 * 16;
  for (int at = kFilledBytes - kStep + static_cast<int>(threadIdx.x) * 16; at >= 0; at -= kStep) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(base + at), "r"(~0U) : "memory");
  }
  spin_ns(p.ns);
}

/// Sixteen CTAs an SM that fill its shared memory with NaNs, from its end, as soon as they have it,
/// and stay for some microseconds. In a stream whose CTAs go last each SM has one of them as soon
/// as somebody else leaves it.
inline Status fill_shared_memory(cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = 16 * static_cast<unsigned>(rig().device().sm_count);
  shape.block.x = 1024;
  shape.smem_bytes = kFilledBytes;
  return cuda::launch<&fill_shared>(0, shape, stream, SpinParams{5000});
}

struct LateParams {
  const uint4* from;
  uint4* to;
  std::size_t count;
  std::uint64_t ns;
};
/// Lets the next launch start at once, and only later reads what that writes or writes what it
/// reads.
inline __global__ void copy_late(const __grid_constant__ LateParams p) {
  cuda::ptx::launch_dependents();
  cuda::ptx::wait_for_prerequisites();
  spin_ns(p.ns);
  for (std::size_t i = threadIdx.x; i < p.count; i += blockDim.x) p.to[i] = p.from[i];
}

/// Memory that the work under test reads or writes.
struct Extent {
  const char* name;
  void* base;
  std::size_t bytes;
};
inline Extent extent_of(const OperandSpec& spec, const Operands& operands) {
  return {spec.name, const_cast<void*>(address(operands, spec.id)),
          static_cast<std::size_t>(extent_bytes(spec))};
}

inline constexpr std::uint64_t kLateNs = 1'000'000;

inline Status copy_late_to(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.block.x = 1024;
  shape.programmatic = true;
  return cuda::launch<&copy_late>(
      0, shape, stream,
      LateParams{static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / sizeof(uint4),
                 kLateNs});
}

inline __global__ void count_different(const char* a, const char* b, std::size_t bytes,
                                       unsigned long long* found) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  unsigned long long mine = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += stride) {
    mine += a[i] != b[i] ? 1 : 0;
  }
  if (mine != 0) atomicAdd(found, mine);
}

/// What memory holds when this is made, kept on the device: outputs of tens of megabytes are put
/// back and compared in microseconds there.
class Snapshot {
 public:
  explicit Snapshot(const std::vector<Extent>& extents)
      : found_(std::move(RigBuffer::make(rig(), sizeof(unsigned long long)).value())) {
    for (const Extent& extent : extents) {
      copies_.emplace_back(extent, std::move(RigBuffer::make(rig(), extent.bytes).value()));
      EXPECT_CUDA(cudaMemcpy(copies_.back().second.data(), extent.base, extent.bytes,
                             cudaMemcpyDeviceToDevice));
    }
    EXPECT_CUDA(cudaDeviceSynchronize());
  }

  void put_back(cudaStream_t stream) const {
    for (const auto& [extent, copy] : copies_) {
      EXPECT_CUDA(cudaMemcpyAsync(extent.base, copy.data(), extent.bytes, cudaMemcpyDeviceToDevice,
                                  stream));
    }
  }

  /// The names of what holds other bytes now, and how many; empty where nothing does. Waits.
  [[nodiscard]] std::string changed(cudaStream_t stream) const {
    std::string out;
    auto* const found = reinterpret_cast<unsigned long long*>(found_.data());
    for (const auto& [extent, copy] : copies_) {
      unsigned long long count = 0;
      EXPECT_CUDA(cudaMemsetAsync(found, 0, sizeof(count), stream));
      count_different<<<1024, 256, 0, stream>>>(static_cast<const char*>(extent.base), copy.data(),
                                                extent.bytes, found);
      EXPECT_CUDA(cudaGetLastError());
      EXPECT_CUDA(cudaMemcpyAsync(&count, found, sizeof(count), cudaMemcpyDeviceToHost, stream));
      EXPECT_CUDA(cudaStreamSynchronize(stream));
      if (count != 0) out += std::string(extent.name) + ": " + std::to_string(count) + " bytes; ";
    }
    return out;
  }

 private:
  using RigBuffer = harness::RigBuffer;
  RigBuffer found_;
  std::vector<std::pair<Extent, RigBuffer>> copies_;
};

/// Has `run` (Status(cudaStream_t)) enqueue work behind a late producer of `input`, three times.
/// For a millisecond, in which the work is enqueued and starts, the input is all NaN: who does not
/// wait cannot leave what was `expected`. `before` undoes the work.
template <class Run>
void expect_late_input_is_waited_for(const Extent& input, const Snapshot& before,
                                     const Snapshot& expected, const Run& run) {
  ASSERT_EQ(input.bytes % sizeof(uint4), 0U) << input.name;
  const StreamGuard guard;
  const auto kept = std::move(harness::RigBuffer::make(rig(), input.bytes).value());
  ASSERT_CUDA(cudaMemcpy(kept.data(), input.base, input.bytes, cudaMemcpyDeviceToDevice));
  ASSERT_CUDA(cudaDeviceSynchronize());  // the guard's stream waits for no other
  for (int round = 0; round < 3; ++round) {
    before.put_back(guard.stream);
    ASSERT_CUDA(cudaMemsetAsync(input.base, 0xFF, input.bytes, guard.stream));  // NaN
    ASSERT_OK(copy_late_to(input.base, kept.data(), input.bytes, guard.stream));
    ASSERT_OK(run(guard.stream));
    ASSERT_EQ(expected.changed(guard.stream), "") << input.name << " round " << round;
  }
}

/// Runs the case behind a late producer of each of its inputs in turn; of weights where they are
/// not static.
inline void expect_late_inputs_are_waited_for(harness::Case c, const Options& options) {
  const auto is_weight = [](Operand id) {
    return id == Operand::kNormWeight || id == Operand::kWGate || id == Operand::kWUp ||
           id == Operand::kWDown;
  };
  Job job = make_job_on(rig(), c, options);
  std::vector<Extent> outputs;
  for (const Operand id : job.set->outputs()) {
    outputs.push_back(extent_of(job.set->spec(id), job.set->operands()));
  }
  const Snapshot before(outputs);
  // Whose weights are static changes no result. A few lines of each output: every run behind a late
  // producer is held to all bits of one that had none.
  const auto exact = harness::expected_outputs(*job.set, {.max_operations = 5e8});
  ASSERT_OK(exact);
  for (const bool weights_static : {true, false}) {
    c.problem.weights_static = weights_static;
    job.plan = plan(c.problem, rig().device(), options).value();
    job.workspace = std::move(harness::make_workspace(job.plan, rig()).value());
    SCOPED_TRACE(job.plan.config_name());
    ASSERT_OK(job.set->reset_outputs());
    ASSERT_OK(job.run(rig().stream()));
    ASSERT_OK(rig().synchronize());
    expect_right(job, *exact);
    const Snapshot expected(outputs);
    int inputs = 0;
    for (const OperandSpec& spec : operand_specs(job.plan.problem)) {
      if (spec.access != Access::kRead || is_weight(spec.id) == weights_static) continue;
      ++inputs;
      ASSERT_NO_FATAL_FAILURE(
          expect_late_input_is_waited_for(extent_of(spec, job.set->operands()), before, expected,
                                          [&](cudaStream_t stream) { return job.run(stream); }));
    }
    EXPECT_GT(inputs, 0);
  }
}

/// Has `run` enqueue work behind a late reader of `output`, which must find what was there before.
template <class Run>
void expect_late_reader_is_waited_for(const Extent& output, const Run& run) {
  ASSERT_EQ(output.bytes % sizeof(uint4), 0U) << output.name;
  const StreamGuard guard;
  const auto read = std::move(harness::RigBuffer::make(rig(), output.bytes).value());
  ASSERT_CUDA(cudaMemsetAsync(output.base, 0xFF, output.bytes, guard.stream));
  ASSERT_OK(copy_late_to(read.data(), output.base, output.bytes, guard.stream));
  ASSERT_OK(run(guard.stream));
  std::string found(output.bytes, '\0');
  ASSERT_CUDA(cudaMemcpyAsync(found.data(), read.data(), output.bytes, cudaMemcpyDeviceToHost,
                              guard.stream));
  ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
  EXPECT_EQ(found.find_first_not_of('\xFF'), std::string::npos) << output.name;
}

/// Runs the case behind a late reader of each of its outputs in turn.
inline void expect_late_readers_are_waited_for(const harness::Case& c, const Options& options) {
  const Job job = make_job_on(rig(), c, options);
  SCOPED_TRACE(job.plan.config_name());
  for (const Operand id : job.set->outputs()) {
    const OperandSpec spec = operand_specs(job.plan.problem)[static_cast<std::size_t>(id)];
    ASSERT_NO_FATAL_FAILURE(
        expect_late_reader_is_waited_for(extent_of(spec, job.set->operands()),
                                         [&](cudaStream_t stream) { return job.run(stream); }));
  }
}

}  // namespace sluice::gpu
