// SPDX-License-Identifier: Apache-2.0
// Mixed plans for a long time: four streams, each with a host thread that runs, captures and
// replays what comes, beside kernels that keep memory busy. Bits and memory stay what they were.
// SLUICE_SOAK_SECONDS says how long; scripts/gpu_check.sh has the figure's step.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "neighbours.cuh"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kCases[] = {
    "1x4096x14336:mlp",       "16x2048x8192:mlp:norm",      "64x4096x4096:mlp:add_norm",
    "5x1000x3000:gate_up",    "17x4096x14336:gate_up:norm", "300x2048x4096:mlp:bias:bias_down",
    "1024x1032x2056:gate_up", "130x64x96:gate_up:save",     "513x1024x1024:mlp_grad",
    "2048x8x4096:gate_mul",   "777x512x1096:gate_mul_grad", "33x2048x8:norm",
    "80x3072x8192:linear",    "160x3072x8192:linear",       "20x264x8200:linear",
};

struct Counts {
  std::atomic<long> runs{0};
  std::atomic<long> replays{0};
  std::atomic<long> captures{0};
  std::atomic<long> wrong{0};
};

// A case with operands, a workspace and a graph of its own.
class Soaked {
 public:
  explicit Soaked(const char* text) : job_(gpu::make_job(text)), text_(text) {
    for (const Operand id : job_.set->outputs()) {
      written_.push_back(gpu::extent_of(job_.set->spec(id), job_.set->operands()));
    }
    const gpu::StreamGuard guard;
    EXPECT_CUDA(cudaDeviceSynchronize());
    poison(guard.stream);
    EXPECT_OK(job_.run(guard.stream));
    EXPECT_CUDA(cudaStreamSynchronize(guard.stream));
    expected_ = std::make_unique<gpu::Snapshot>(written_);
  }
  ~Soaked() { drop(); }

  // Runs the plan, or replays a graph of it; what is captured anew is replayed.
  void once(bool replay, bool anew, cudaStream_t stream, Counts& counts) {
    poison(stream);
    if (!replay) {
      EXPECT_OK(job_.run(stream));
      ++counts.runs;
    } else {
      if (anew || graph_ == nullptr) capture(stream, counts);
      EXPECT_CUDA(cudaGraphLaunch(graph_, stream));
      ++counts.replays;
    }
    const std::string changed = expected_->changed(stream);
    EXPECT_EQ(changed, "") << text_;
    if (!changed.empty()) ++counts.wrong;
  }

 private:
  void poison(cudaStream_t stream) const {
    for (const gpu::Extent& extent : written_) {
      EXPECT_CUDA(cudaMemsetAsync(extent.base, 0xFF, extent.bytes, stream));
    }
  }

  void capture(cudaStream_t stream, Counts& counts) {
    drop();
    cudaGraph_t captured = nullptr;
    EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_OK(job_.run(stream));
    EXPECT_CUDA(cudaStreamEndCapture(stream, &captured));
    EXPECT_CUDA(cudaGraphInstantiate(&graph_, captured, 0));
    EXPECT_CUDA(cudaGraphDestroy(captured));
    ++counts.captures;
  }

  void drop() {
    if (graph_ != nullptr) EXPECT_CUDA(cudaGraphExecDestroy(graph_));
    graph_ = nullptr;
  }

  gpu::Job job_;
  const char* text_;
  std::vector<gpu::Extent> written_;
  std::unique_ptr<gpu::Snapshot> expected_;
  cudaGraphExec_t graph_ = nullptr;
};

using Cases = std::vector<std::unique_ptr<Soaked>>;

// Waits for the device, which no thread may while another captures.
Cases make_cases() {
  Cases cases;
  for (const char* text : kCases) cases.push_back(std::make_unique<Soaked>(text));
  return cases;
}

// A thread of the soak: what it does next is a function of its index alone.
void soak(unsigned index, const Cases& cases, Clock::time_point end, Counts& counts) {
  const gpu::StreamGuard guard(index % 2 == 0 ? 0 : -1);
  unsigned state = index + 1;
  while (Clock::now() < end) {
    state = state * 1664525U + 1013904223U;
    const unsigned draw = state >> 8;
    cases[draw / 64 % cases.size()]->once(draw % 2 == 0, draw % 64 == 0, guard.stream, counts);
  }
}

// Copies 128 MiB back and forth until the end.
void keep_busy(Clock::time_point end) {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  const gpu::StreamGuard guard;
  const auto from = std::move(harness::RigBuffer::make(gpu::rig(), kBytes).value());
  const auto to = std::move(harness::RigBuffer::make(gpu::rig(), kBytes).value());
  while (Clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_CUDA(
          cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, guard.stream));
    }
    EXPECT_CUDA(cudaStreamSynchronize(guard.stream));
  }
}

// Bytes of this process in memory, and bytes of the GPU that are free.
struct Memory {
  long host = 0;
  std::size_t free = 0;
};
Memory memory_now() {
  Memory now;
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> now.host;
  now.host *= 4096;
  std::size_t total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&now.free, &total));
  return now;
}

TEST(GpuSoak, BitsAndMemoryStay) {
  const char* const given = std::getenv("SLUICE_SOAK_SECONDS");
  const double seconds = given == nullptr ? 4 : std::atof(given);
  std::array<Cases, 4> cases;
  for (Cases& mine : cases) mine = make_cases();
  const auto from_now = [seconds, begin = Clock::now()](double share) {
    return begin + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(share * seconds));
  };
  // Before the middle everything that is kept is allocated; there all have just begun to repeat.
  const auto end = from_now(1);
  Counts counts;
  std::vector<std::thread> threads;
  threads.emplace_back(keep_busy, end);
  for (unsigned i = 0; i < cases.size(); ++i) {
    threads.emplace_back([&, i] { soak(i, cases[i], end, counts); });
  }
  std::this_thread::sleep_until(from_now(0.5));
  const Memory middle = memory_now();
  std::this_thread::sleep_until(end - std::chrono::milliseconds(200));
  const Memory last = memory_now();
  for (std::thread& thread : threads) thread.join();
  std::printf(
      "soak: %.0f s, %ld runs, %ld replays of %ld captures, %ld wrong; host %+ld bytes, GPU "
      "%+lld bytes in the second half\n",
      seconds, counts.runs.load(), counts.replays.load(), counts.captures.load(),
      counts.wrong.load(), last.host - middle.host,
      static_cast<long long>(middle.free) - static_cast<long long>(last.free));
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_GT(counts.runs, 0);
  EXPECT_GT(counts.captures, 0);
  // A graph's memory comes and goes with captures; what leaks grows with them.
  constexpr long kRoom = 16L << 20;
  EXPECT_LT(last.host - middle.host, kRoom);
  EXPECT_LT(static_cast<long>(middle.free) - static_cast<long>(last.free), kRoom);
}

}  // namespace
}  // namespace sluice
