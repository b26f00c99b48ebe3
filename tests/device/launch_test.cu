// SPDX-License-Identifier: Apache-2.0
// The launch helper: shared memory that kernels are opted in to, and programmatic launches.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/host/launch.hpp"
#include "cuda/ptx/global_timer.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "gpu.hpp"

namespace sluice {
namespace {

using cuda::LaunchShape;
using harness::RigBuffer;

struct Empty {};
__global__ void needs_much_smem(const __grid_constant__ Empty) {
  extern __shared__ unsigned char bytes[];
  bytes[threadIdx.x] = 0;
}

// Many threads ask for different amounts at once; each launch must find enough granted.
TEST(GpuLaunch, OptsInToSharedMemoryFromManyThreads) {
  const auto most = static_cast<std::size_t>(gpu::rig().device().smem_per_block_bytes);
  std::vector<std::thread> threads;
  std::vector<std::string> messages(8, "ok");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    threads.emplace_back([&, i] {
      LaunchShape shape;
      shape.block.x = 32;
      for (std::size_t step = 0; step < 20; ++step) {
        shape.smem_bytes = most - 1024 * ((i * 7 + step * 3) % 13);
        const Status status =
            cuda::launch<&needs_much_smem>(0, shape, gpu::rig().stream(), Empty{});
        if (!status) messages[i] = status.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : messages) EXPECT_EQ(text, "ok");
  EXPECT_OK(gpu::rig().synchronize());
}

TEST(GpuLaunch, RefusesMoreSharedMemoryThanThereIs) {
  LaunchShape shape;
  shape.smem_bytes = static_cast<std::size_t>(gpu::rig().device().smem_per_block_bytes) + 1;
  const Status status = cuda::launch<&needs_much_smem>(0, shape, gpu::rig().stream(), Empty{});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().text().find("cudaFuncSetAttribute"), std::string_view::npos);
}

struct ChainParams {
  const std::uint32_t* in;
  std::uint32_t* out;
};

// Lets the next kernel start at once, then writes late: who does not wait reads the old value.
__global__ void add_one_late(const __grid_constant__ ChainParams p) {
  cuda::ptx::launch_dependents();
  cuda::ptx::wait_for_prerequisites();
  constexpr std::uint64_t kLateNs = 5'000;
  const std::uint64_t start = cuda::ptx::global_timer_ns();
  while (cuda::ptx::global_timer_ns() - start < kLateNs) {
  }
  if (threadIdx.x == 0) *p.out = __ldcg(p.in) + 1;
}

TEST(GpuLaunch, ProgrammaticLaunchesKeepTheirOrder) {
  constexpr std::uint32_t kChain = 200;
  auto buffer = std::move(RigBuffer::make(gpu::rig(), 8).value());
  ASSERT_OK(gpu::rig().fill_bytes(buffer.data(), 0, 8));
  auto* words = reinterpret_cast<std::uint32_t*>(buffer.data());
  LaunchShape shape;
  shape.block.x = 32;
  shape.programmatic = gpu::rig().device().compute_capability >= 90;
  for (std::uint32_t i = 0; i < kChain; ++i) {
    const ChainParams params{words + i % 2, words + (i + 1) % 2};
    ASSERT_OK(cuda::launch<&add_one_late>(0, shape, gpu::rig().stream(), params));
  }
  std::uint32_t host[2] = {};
  ASSERT_OK(gpu::rig().download(host, words, sizeof(host)));
  EXPECT_EQ(host[kChain % 2], kChain);
}

}  // namespace
}  // namespace sluice
