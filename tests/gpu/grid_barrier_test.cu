// SPDX-License-Identifier: Apache-2.0
// The grid barrier and the launch helper's attributes: cooperative and programmatic launches, in
// graphs, on two streams, with grids of different sizes on one workspace; and the watchdog.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/launch.hpp"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/tile/grid_barrier.cuh"
#include "gpu.hpp"

namespace sluice {
namespace {

using cuda::LaunchShape;
using cuda::WorkspaceHeader;
using harness::RigBuffer;

constexpr int kRounds = 4;
constexpr unsigned kBlockThreads = 128;

struct BarrierParams {
  WorkspaceHeader* header;
  std::uint32_t* slots;   // one a CTA
  std::uint32_t* errors;  // CTAs that saw a slot behind or ahead
};

// Every CTA counts its slot up, meets the others, and must find all slots at its own count. A CTA
// that passed too early finds one behind; without the second barrier it could find one ahead.
__global__ void count_together(const __grid_constant__ BarrierParams p) {
  cuda::ptx::launch_dependents();
  cuda::ptx::wait_for_prerequisites();
  for (int round = 0; round < kRounds; ++round) {
    std::uint32_t own = 0;
    if (threadIdx.x == 0) {
      own = p.slots[blockIdx.x] + 1;
      p.slots[blockIdx.x] = own;
    }
    cuda::tile::grid_sync(*p.header, 0);
    if (threadIdx.x == 0) {
      for (unsigned i = 0; i < gridDim.x; ++i) {
        if (__ldcg(p.slots + i) != own) atomicAdd(p.errors, 1U);
      }
    }
    cuda::tile::grid_sync(*p.header, 0);
  }
}

// CTA 0 never arrives; the others must give up and say so.
__global__ void stuck_barrier(const __grid_constant__ BarrierParams p) {
  constexpr std::uint64_t kTenMilliseconds = 10'000'000;
  if (blockIdx.x == 0 || threadIdx.x != 0) return;
  cuda::BarrierWord& barrier = p.header->barriers[1];
  const std::uint32_t ticket = cuda::tile::grid_arrive(barrier);
  if (cuda::tile::grid_wait<kTenMilliseconds>(*p.header, barrier, ticket)) atomicAdd(p.errors, 1U);
}

// A workspace header, the slots of one grid and an error count, zeroed.
class Arena {
 public:
  explicit Arena(unsigned ctas) : ctas_(ctas) {
    const std::size_t bytes = kWorkspaceHeaderBytes + (ctas + 1) * sizeof(std::uint32_t);
    buffer_ = std::move(RigBuffer::make(gpu::rig(), bytes).value());
    EXPECT_OK(gpu::rig().fill_bytes(buffer_.data(), 0, bytes));
  }
  [[nodiscard]] BarrierParams params() const {
    auto* words = reinterpret_cast<std::uint32_t*>(buffer_.data() + kWorkspaceHeaderBytes);
    return {reinterpret_cast<WorkspaceHeader*>(buffer_.data()), words + 1, words};
  }
  [[nodiscard]] std::vector<std::uint32_t> words() const {  // errors, then slots
    std::vector<std::uint32_t> host(ctas_ + 1);
    EXPECT_OK(gpu::rig().download(host.data(), params().errors, host.size() * 4));
    return host;
  }
  [[nodiscard]] WorkspaceHeader header() const {
    WorkspaceHeader host{};
    EXPECT_OK(gpu::rig().download(&host, buffer_.data(), sizeof(host)));
    return host;
  }
  [[nodiscard]] unsigned ctas() const { return ctas_; }

 private:
  unsigned ctas_;
  RigBuffer buffer_;
};

Status start(const Arena& arena, const BarrierParams& params, bool programmatic, Stream stream) {
  LaunchShape shape;
  shape.grid.x = arena.ctas();
  shape.block.x = kBlockThreads;
  shape.cooperative = true;
  shape.programmatic = programmatic;
  return cuda::launch<&count_together>(0, shape, stream, params);
}

bool hopper() { return gpu::rig().device().compute_capability >= 90; }

unsigned sm_count() { return static_cast<unsigned>(gpu::rig().device().sm_count); }

void expect_counted(const Arena& arena, std::uint32_t launches) {
  const auto words = arena.words();
  EXPECT_EQ(words[0], 0U) << "CTAs that passed a barrier too early";
  for (std::size_t i = 1; i < words.size(); ++i) ASSERT_EQ(words[i], launches * kRounds) << i;
}

TEST(GpuGridBarrier, HoldsEveryCtaBack) {
  const Arena arena(sm_count());
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(start(arena, arena.params(), hopper(), gpu::rig().stream()));
  }
  ASSERT_OK(gpu::rig().synchronize());
  expect_counted(arena, 100);
}

TEST(GpuGridBarrier, OneCtaPasses) {
  const Arena arena(1);
  ASSERT_OK(start(arena, arena.params(), false, gpu::rig().stream()));
  ASSERT_OK(gpu::rig().synchronize());
  expect_counted(arena, 1);
}

// The word's top bit flips 2 · kRounds times a launch: after an odd number of barriers it starts
// high. Grids of other sizes come in between.
TEST(GpuGridBarrier, GridsOfAnySizeShareAHeader) {
  const Arena large(sm_count());
  const Arena small(7);
  BarrierParams on_shared = small.params();
  on_shared.header = large.params().header;
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK(start(large, large.params(), hopper(), gpu::rig().stream()));
    ASSERT_OK(start(small, on_shared, hopper(), gpu::rig().stream()));
  }
  ASSERT_OK(gpu::rig().synchronize());
  expect_counted(large, 50);
  expect_counted(small, 50);
}

cudaGraphExec_t capture(const Arena& arena, int launches, bool programmatic, cudaStream_t stream) {
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    EXPECT_OK(start(arena, arena.params(), programmatic, stream));
  }
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  return exec;
}

// Cooperative grids of one CTA an SM from two graphs at once: each needs all SMs, neither may wait
// for the other half-way.
TEST(GpuGridBarrier, GraphsReplayOnTwoStreamsAtOnce) {
  constexpr int kLaunches = 16;
  constexpr int kReplays = 60;
  for (const bool programmatic : {false, true}) {
    if (programmatic && !hopper()) continue;
    const Arena arenas[2] = {Arena(sm_count()), Arena(sm_count())};
    cudaStream_t streams[2] = {};
    cudaGraphExec_t graphs[2] = {};
    for (int i = 0; i < 2; ++i) {
      ASSERT_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
      graphs[i] = capture(arenas[i], kLaunches, programmatic, streams[i]);
    }
    cudaError_t launched[2] = {};
    const auto replay = [&](int i) {
      for (int r = 0; r < kReplays; ++r) {
        launched[i] = std::max(launched[i], cudaGraphLaunch(graphs[i], streams[i]));
      }
    };
    std::thread other(replay, 1);
    replay(0);
    other.join();
    for (int i = 0; i < 2; ++i) {
      EXPECT_CUDA(launched[i]);
      ASSERT_CUDA(cudaStreamSynchronize(streams[i]));
      expect_counted(arenas[i], kLaunches * kReplays);
      EXPECT_CUDA(cudaGraphExecDestroy(graphs[i]));
      EXPECT_CUDA(cudaStreamDestroy(streams[i]));
    }
  }
}

TEST(GpuGridBarrier, TheWatchdogReportsAStuckBarrier) {
  const Arena arena(4);
  LaunchShape shape;
  shape.grid.x = arena.ctas();
  shape.block.x = kBlockThreads;
  shape.cooperative = true;
  ASSERT_OK(cuda::launch<&stuck_barrier>(0, shape, gpu::rig().stream(), arena.params()));
  ASSERT_OK(gpu::rig().synchronize());
  EXPECT_EQ(arena.words()[0], 0U);
  EXPECT_EQ(arena.header().stuck.arrived, 3U);
}

struct Empty {};
__global__ void needs_much_smem(const __grid_constant__ Empty) {
  extern __shared__ unsigned char bytes[];
  bytes[threadIdx.x] = 0;
}

TEST(GpuLaunch, RefusesAGridThatCannotBeResident) {
  LaunchShape shape;
  shape.grid.x = 64 * sm_count();
  shape.block.x = 1024;
  shape.cooperative = true;
  const Status status = cuda::launch<&needs_much_smem>(0, shape, gpu::rig().stream(), Empty{});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().cuda_code, static_cast<int>(cudaErrorCooperativeLaunchTooLarge));
  EXPECT_CUDA(cudaGetLastError());  // not left behind for the next caller
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
  const std::uint64_t start = cuda::tile::global_timer_ns();
  while (cuda::tile::global_timer_ns() - start < kLateNs) {
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
  shape.programmatic = hopper();
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
