// SPDX-License-Identifier: Apache-2.0
// What the tuner's bench makes of a problem on a CPU: how many copies, and of what.
#include "tune/bench.hpp"

#include <gtest/gtest.h>

#include "problems.hpp"
#include "timing/timing.hpp"

namespace sluice::tune {
namespace {

using tests::mlp;

struct Allocated {
  std::size_t buffers = 0;
  std::size_t bytes = 0;
};

// The host's memory, and a count of what a bench has of it now.
class CountingArena final : public timing::Arena {
 public:
  explicit CountingArena(Allocated& allocated) : allocated_(allocated) {}

  [[nodiscard]] Stream stream() const noexcept override { return arena_->stream(); }
  [[nodiscard]] std::int64_t free_bytes() const noexcept override { return arena_->free_bytes(); }
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    ++allocated_.buffers;
    allocated_.bytes += bytes;
    return arena_->allocate(bytes);
  }
  void free_all() noexcept override {
    allocated_ = {};
    arena_->free_all();
  }
  Status upload(void* to, const void* host, std::size_t bytes) override {
    return arena_->upload(to, host, bytes);
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    return arena_->copy(to, from, bytes);
  }
  Status clear(void* to, std::size_t bytes) override { return arena_->clear(to, bytes); }
  [[nodiscard]] Expected<std::unique_ptr<timing::Stopwatch>> make_stopwatch() override {
    return arena_->make_stopwatch();
  }

 private:
  Allocated& allocated_;
  std::unique_ptr<timing::Arena> arena_ = timing::make_cpu_arena();
};

// As many copies as the weights need, however large the activations are: those are one set.
TEST(DeviceBench, RotatesOverWeightsAlone) {
  const auto bench = open_bench(cpu_device(), std::int64_t{1} << 30);
  ASSERT_TRUE(bench);
  const std::int64_t weights = std::int64_t{3} * 64 * 96 * 2;
  for (const std::int64_t m : {1, 1 << 16}) {
    ASSERT_TRUE((*bench)->set_up(mlp(m)));
    EXPECT_EQ((*bench)->copies(), timing::chain_copies(weights, cpu_device())) << m;
  }
  // What a training step keeps is each copy's own: 40 MiB of them.
  Problem training = mlp(1 << 16);
  training.save_g_u = true;
  ASSERT_TRUE((*bench)->set_up(training));
  EXPECT_LT((*bench)->copies(), 30U);
}

// Activations are counted once, weights for each copy.
TEST(DeviceBench, FitsItsMemory) {
  const std::int64_t weights = std::int64_t{3} * 64 * 96 * 2;
  const std::int64_t activations = std::int64_t{2} * 1024 * 64 * 2;
  const auto bench = open_bench(cpu_device(), activations + 3 * weights);
  ASSERT_TRUE(bench);
  ASSERT_TRUE((*bench)->set_up(mlp(1024)));
  EXPECT_EQ((*bench)->copies(), 3U);
}

TEST(DeviceBench, AllocatesActivationsOnceForAllCopies) {
  const std::size_t weights = std::size_t{3} * 64 * 96 * 2;
  const std::size_t activations = std::size_t{2} * 1024 * 64 * 2;
  Allocated allocated;
  const auto bench =
      make_bench(cpu_device(), std::make_unique<CountingArena>(allocated), std::int64_t{2} << 20);
  ASSERT_TRUE(bench->set_up(mlp(1024)));
  const std::size_t copies = bench->copies();
  EXPECT_GT(copies, 1U);
  EXPECT_EQ(allocated.buffers, 3 * copies + 2);
  EXPECT_EQ(allocated.bytes, weights * copies + activations);
  // With g and u each copy has all seven operands of its own.
  Problem training = mlp(1024);
  training.save_g_u = true;
  ASSERT_TRUE(bench->set_up(training));
  EXPECT_GT(bench->copies(), 1U);
  EXPECT_EQ(allocated.buffers, 7 * bench->copies());
}

}  // namespace
}  // namespace sluice::tune
