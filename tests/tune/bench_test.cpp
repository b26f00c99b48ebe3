// SPDX-License-Identifier: Apache-2.0
// What the tuner's bench makes of a problem on a CPU.
#include "tune/bench.hpp"

#include <gtest/gtest.h>

#include "problems.hpp"
#include "timing/timing.hpp"

namespace sluice::tune {
namespace {

using tests::mlp;

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

}  // namespace
}  // namespace sluice::tune
