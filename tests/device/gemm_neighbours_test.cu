// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM among other kernels. Its CTAs keep in step, a hint, which must neither wait for
// CTAs that cannot start nor change a bit; inputs that their producers write late; and crowds on
// the ways to L2.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/sm90/gemm/lockstep.cuh"
#include "cuda/sm90/gemm/table.hpp"
#include "early_start.hpp"
#include "job.hpp"
#include "neighbours.cuh"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::Job;
using gpu::make_job;
using gpu::StreamGuard;

// 172 tiles on 66 clusters: three turns, the last for some of them.
constexpr const char* kCase = "400x4096x8200:gate_up";

// Each of its launches fills the SMs.
constexpr const char* kMlpGrad = "1700x2056x2056:mlp_grad:save_dg_du";

// What produce() does once a tile, `turns` times.
__global__ void walk_in_step(int turns) {
  cuda::sm90::gemm::Step step(0);
  for (int turn = 0; turn < turns; ++turn) {
    step.arrive();
    step.wait();
  }
}

class GpuGemmNeighbours : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
    const Problem p = harness::parse_case(kCase).value().problem;
    const cuda::sm90::gemm::GemmShape shape{p.m, 2 * p.h, p.d, cuda::sm90::gemm::GemmKind::kGateUp,
                                            gpu::rig().device().sm_count};
    ASSERT_TRUE(cuda::sm90::gemm::keeps_lockstep(shape, cuda::sm90::gemm::Tiling{}));
  }

  static Job make() {
    Options options;
    options.variant = "cuda.sm90";
    options.config = "gate_up=pp128x192c2g8";
    return make_job(kCase, options);
  }

  static std::string alone(const Job& job) {
    EXPECT_OK(job.run(gpu::rig().stream()));
    EXPECT_OK(gpu::rig().synchronize());
    return bits_of(*job.set);
  }
};

// What the tests below compare with: it sees a single byte, and puts it back.
TEST(GpuSnapshot, FindsOneByteAndPutsItBack) {
  constexpr std::size_t kBytes = (1 << 20) + 3;
  const auto memory = std::move(harness::RigBuffer::make(gpu::rig(), kBytes).value());
  ASSERT_OK(gpu::rig().fill_bytes(memory.data(), 0x5A, kBytes));
  const gpu::Snapshot kept({{"y", memory.data(), kBytes}});
  const StreamGuard guard;
  EXPECT_EQ(kept.changed(guard.stream), "");
  for (const std::size_t at : {std::size_t{0}, kBytes / 2, kBytes - 1}) {
    ASSERT_OK(gpu::rig().fill_bytes(memory.data() + at, 0x5B, 1));
    EXPECT_EQ(kept.changed(guard.stream), "y: 1 bytes; ") << at;
    kept.put_back(guard.stream);
    EXPECT_EQ(kept.changed(guard.stream), "") << at;
  }
}

// Each time that all CTAs have arrived moves the word by 2^31, whatever the grid: who counted
// otherwise would make every launch on it wait in vain, which only time shows.
TEST_F(GpuGemmNeighbours, StepWordsCountWholeTurns) {
  unsigned turns = 0;
  for (const int grid : {1, 2, 66, gpu::rig().device().sm_count}) {
    for (const int more : {1, 4}) {
      walk_in_step<<<grid, 1>>>(more);
      turns += static_cast<unsigned>(more);
      cuda::sm90::gemm::StepWord word{};
      ASSERT_CUDA(cudaMemcpyFromSymbol(&word, cuda::sm90::gemm::step_words, sizeof(word)));
      EXPECT_EQ(word.arrived, turns << 31) << "grid " << grid;
    }
  }
}

// Somebody holds SMs until the job is done: a CTA that waited for the ones without an SM for ever
// would wait for itself.
TEST_F(GpuGemmNeighbours, CtasThatCannotStartAreNotWaitedFor) {
  const Job job = make();
  const std::string expected = alone(job);
  const auto sms = static_cast<unsigned>(gpu::rig().device().sm_count);
  for (const unsigned held : {1U, sms / 2}) {
    ASSERT_OK(job.set->reset_outputs());
    gpu::HoldWords* words = nullptr;
    ASSERT_CUDA(cudaMallocHost(&words, sizeof(*words)));
    std::memset(words, 0, sizeof(*words));
    {
      StreamGuard other;
      StreamGuard stream;
      ASSERT_OK(gpu::hold_sms_until(held, words, other.stream));
      while (words->started < static_cast<int>(held)) std::this_thread::yield();
      ASSERT_OK(job.run(stream.stream));
      ASSERT_CUDA(
          cudaMemsetAsync(const_cast<int*>(&words->released), 1, sizeof(int), stream.stream));
      ASSERT_CUDA(cudaStreamSynchronize(stream.stream));
      ASSERT_CUDA(cudaStreamSynchronize(other.stream));
    }
    EXPECT_EQ(words->gave_up, 0) << "held " << held;
    ASSERT_CUDA(cudaFreeHost(words));
    EXPECT_TRUE(bits_of(*job.set) == expected) << "held " << held;
  }
}

TEST_F(GpuGemmNeighbours, TwoStreamsAtOnceGiveTheSameBits) {
  const Job jobs[2] = {make(), make()};
  const std::string expected = alone(jobs[0]);
  StreamGuard streams[2];
  for (const Job& job : jobs) ASSERT_OK(job.set->reset_outputs());
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 2; ++i) ASSERT_OK(jobs[i].run(streams[i].stream));
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
    EXPECT_TRUE(bits_of(*jobs[i].set) == expected) << "stream " << i;
  }
}

// A config of each schedule, of gate_up and of down.
TEST_F(GpuGemmNeighbours, ALateProducerIsWaitedFor) {
  for (const std::string text : {"70x1032x2056:gate_up:save", "70x1032x2056:down:residual"}) {
    const auto c = harness::parse_case(text).value();
    const auto names = config_names("cuda.sm90", c.problem, gpu::rig().device());
    std::set<std::string> schedules;
    for (const std::string& name : names) {
      const std::string schedule = name.substr(name.find('=') + 1, 2);
      if (!schedules.insert(schedule).second) continue;
      SCOPED_TRACE(text + " " + name);
      gpu::expect_late_inputs_are_waited_for(c, {.variant = "cuda.sm90", .config = name.c_str()});
    }
    EXPECT_GE(schedules.size(), 2U) << text;
  }
}

// Of grids that fill the SMs, which start while the kernel before them runs: they may neither read
// what it has not written yet nor write what it has not read yet.
TEST_F(GpuGemmNeighbours, AnEarlyStartWaitsForTheKernelBefore) {
  for (const std::string text : {"1300x1032x2056:gate_up:save", "2100x2056x520:down:residual",
                                 "1700x520x2056:gate_up_grad"}) {
    const auto c = harness::parse_case(text).value();
    auto names = config_names("cuda.sm90", c.problem, gpu::rig().device());
    std::erase_if(names, [](const std::string& n) { return n.find("=lt") != std::string::npos; });
    ASSERT_FALSE(names.empty()) << text;
    // The ranking's best, and its last: another schedule or cluster.
    for (const std::string& name : {names.front(), names.back()}) {
      SCOPED_TRACE(text + " " + name);
      const Options options{.variant = "cuda.sm90", .config = name.c_str()};
      gpu::expect_starts_early(plan(c.problem, gpu::rig().device(), options).value());
      gpu::expect_late_inputs_are_waited_for(c, options);
      gpu::expect_late_readers_are_waited_for(c, options);
    }
  }
}

// The products read dg and du of mlp_grad's first launch, which every run writes anew.
TEST_F(GpuGemmNeighbours, EarlyStartsWithinMlpGradWait) {
  const auto c = harness::parse_case(kMlpGrad).value();
  const Options options{.variant = "cuda.sm90"};
  gpu::expect_starts_early(plan(c.problem, gpu::rig().device(), options).value());
  gpu::expect_late_inputs_are_waited_for(c, options);
}

// Runs a case `rounds` times beside a crowd and what beside() enqueues: what it writes is NaN
// before, and held to all bits of a run alone.
template <class Beside>
void expect_right_in_a_crowd(const std::string& text, const std::string& config, int rounds,
                             const Beside& beside) {
  SCOPED_TRACE(text + " " + config);
  const Job job = make_job(text, {.variant = "cuda.sm90", .config = config.c_str()});
  std::vector<gpu::Extent> written;
  for (const Operand id : job.set->outputs()) {
    written.push_back(gpu::extent_of(job.set->spec(id), job.set->operands()));
  }
  const std::size_t outputs = written.size();
  const Workspace workspace = job.workspace.workspace;
  if (workspace.bytes > kWorkspaceHeaderBytes) {
    written.push_back({"payload", static_cast<char*>(workspace.data) + kWorkspaceHeaderBytes,
                       workspace.bytes - kWorkspaceHeaderBytes});
  }
  const StreamGuard guard(-1);
  const auto run = [&] {
    for (const gpu::Extent& extent : written) {
      ASSERT_CUDA(cudaMemsetAsync(extent.base, 0xFF, extent.bytes, guard.stream));
    }
    ASSERT_OK(job.run(guard.stream));
  };
  ASSERT_CUDA(cudaDeviceSynchronize());  // the guard's stream waits for no other
  ASSERT_NO_FATAL_FAILURE(run());
  ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
  const gpu::Snapshot expected({written.begin(), written.begin() + static_cast<int>(outputs)});
  ASSERT_OK(beside());  // in a crowd nothing is launched for the first time
  ASSERT_EQ(expected.changed(guard.stream), "");
  for (const std::size_t bytes : gpu::kCrowds) {
    const gpu::CrowdedL2 crowd(bytes);
    for (int round = 0; round < rounds; ++round) {
      ASSERT_NO_FATAL_FAILURE(run());
      ASSERT_OK(beside());
      ASSERT_EQ(expected.changed(guard.stream), "") << "crowd of " << bytes << ", round " << round;
    }
  }
}

// A CTA's last stores may still wait for L2 when it has nothing else to do. Whoever has its SM
// next fills shared memory at once: had they not read theirs, NaNs would be stored.
TEST_F(GpuGemmNeighbours, ACtaStaysUntilItsStoresHaveRead) {
  for (const std::string text : {"1024x8x14336:gate_up", "1024x8x14336:gate_up:save",
                                 "1024x14336x8:down", "1024x8x14336:gate_up_grad"}) {
    const Problem problem = harness::parse_case(text).value().problem;
    for (const std::string& config : config_names("cuda.sm90", problem, gpu::rig().device())) {
      if (config.find("=lt") != std::string::npos) continue;  // cuBLASLt's kernel
      const StreamGuard next;
      ASSERT_NO_FATAL_FAILURE(expect_right_in_a_crowd(
          text, config, 10, [&] { return gpu::fill_shared_memory(next.stream); }));
      ASSERT_CUDA(cudaStreamSynchronize(next.stream));
    }
  }
}

// Tiles cut into many pieces and into few. Sums that a CTA leaves for another are NaN until they
// are there, and in a crowd a ticket may be on its way faster than they.
TEST_F(GpuGemmNeighbours, PartialSumsAreReadWhenTheyAreThere) {
  for (const std::string text : {"20x264x8200:down", "100x1032x2056:gate_up", "300x520x2056:mlp"}) {
    const Problem problem = harness::parse_case(text).value().problem;
    for (const std::string& config : config_names("cuda.sm90", problem, gpu::rig().device())) {
      if (config.find("sk") == std::string::npos) continue;
      ASSERT_NO_FATAL_FAILURE(expect_right_in_a_crowd(text, config, 40, [] { return Status{}; }));
    }
  }
}

// In mlp_grad what writes dg and du has all but ended when the products start, so that these may go
// unpunished where they do not wait. Here each is launched alone, behind a late neighbour of its
// own.
class GpuMlpGradProducts : public GpuGemmNeighbours {
 protected:
  void SetUp() override {
    GpuGemmNeighbours::SetUp();
    if (IsSkipped()) return;
    job_ = make_job(kMlpGrad, {.variant = "cuda.sm90"});
    gpu::expect_starts_early(job_.plan);
    EXPECT_OK(job_.run(gpu::rig().stream()));  // writes dg and du
    EXPECT_OK(gpu::rig().synchronize());
  }

  // Launches the step of mlp_grad, of whose outputs only `out` is asked for, behind a late producer
  // of each of `inputs`, then behind a late reader of `out`.
  void expect_waits(std::string_view step, std::initializer_list<Operand> inputs, Operand out,
                    bool weights_static) {
    Plan plan = job_.plan;
    plan.problem.weights_static = weights_static;
    Operands operands = job_.set->operands();
    for (const Operand id : {Operand::kDwGate, Operand::kDwUp, Operand::kDwDown}) {
      if (id != out) set_address(operands, id, nullptr);
    }
    const int index = index_of(step, plan, operands);
    const auto specs = operand_specs(plan.problem);
    const auto extent = [&](Operand id) {
      return gpu::extent_of(specs[static_cast<std::size_t>(id)], operands);
    };
    const auto run = [&](cudaStream_t stream) {
      return run_step(plan, index, operands, job_.workspace.workspace, stream);
    };
    const gpu::Extent written = extent(out);
    ASSERT_CUDA(cudaMemset(written.base, 0xFF, written.bytes));
    const gpu::Snapshot before({written});
    ASSERT_OK(run(static_cast<cudaStream_t>(gpu::rig().stream())));
    ASSERT_OK(gpu::rig().synchronize());
    const gpu::Snapshot expected({written});
    for (const Operand id : inputs) {
      ASSERT_NO_FATAL_FAILURE(
          gpu::expect_late_input_is_waited_for(extent(id), before, expected, run));
    }
    gpu::expect_late_reader_is_waited_for(written, run);
  }

  // -1, which run_step() refuses, where there is no such step of the Hopper GEMM.
  [[nodiscard]] int index_of(std::string_view step, const Plan& plan,
                             const Operands& operands) const {
    for (int i = 0; i < plan.step_count; ++i) {
      const auto call = step_call(plan, i, operands, job_.workspace.workspace).value();
      if (call.name == step && call.kernel == std::string_view("cuda.sm90_gemm")) return i;
    }
    return -1;
  }

  Job job_;
};

TEST_F(GpuMlpGradProducts, AnEarlyInputGradWaits) {
  expect_waits("input_grad", {Operand::kDg, Operand::kDu}, Operand::kDx, true);
  expect_waits("input_grad", {Operand::kWGate, Operand::kWUp}, Operand::kDx, false);
}

// Neither operand is a weight, whatever the problem says of those.
TEST_F(GpuMlpGradProducts, AnEarlyWeightGradWaits) {
  for (const bool weights_static : {true, false}) {
    expect_waits("weight_grad", {Operand::kDg, Operand::kX}, Operand::kDwGate, weights_static);
    expect_waits("weight_grad", {Operand::kDu, Operand::kX}, Operand::kDwUp, weights_static);
    expect_waits("weight_grad_down", {Operand::kDy}, Operand::kDwDown, weights_static);
  }
}

}  // namespace
}  // namespace sluice
