// SPDX-License-Identifier: Apache-2.0
// Provenance tells the commit and the command, and nothing of the machine's folders.
#include "harness/provenance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "harness/embedded.hpp"

namespace sluice::harness {
namespace {

using ::testing::MatchesRegex;

template <std::size_t n>
std::string command(const std::array<const char*, n>& words) {
  return command_line(static_cast<int>(n), words.data(), "/home/someone/sluice");
}

TEST(Provenance, PathsBecomeRelativeOrVanish) {
  EXPECT_EQ(command(std::array{"/home/someone/sluice/build/bin/sluice", "bench", "4x64x96"}),
            "sluice bench 4x64x96");
  EXPECT_EQ(command(std::array{"sluice", "--json", "/home/someone/sluice/bench/results/a.json"}),
            "sluice --json bench/results/a.json");
  EXPECT_EQ(command(std::array{"sluice", "--json=/home/someone/sluice/a.json"}),
            "sluice --json=a.json");
  EXPECT_EQ(command(std::array{"sluice", "--checkpoint", "/data/models/model.safetensors"}),
            "sluice --checkpoint model.safetensors");
  EXPECT_EQ(command(std::array{"sluice", "--file", "/home/someone/sluice/../secret/x.txt"}),
            "sluice --file x.txt");
  EXPECT_EQ(command(std::array{"sluice", "--file", "bench/problems/llama.txt"}),
            "sluice --file bench/problems/llama.txt");
}

TEST(Provenance, ShellWordsAreQuoted) {
  EXPECT_EQ(command(std::array{"sluice", "verify", "4x64x96:silu(alpha=1.7)"}),
            "sluice verify '4x64x96:silu(alpha=1.7)'");
  EXPECT_EQ(command(std::array{"sluice", "it's", ""}), "sluice 'it'\\''s' ''");
}

// What stands for an option is told as one is.
TEST(Provenance, VariablesComeFirst) {
  ASSERT_EQ(setenv("SLUICE_MAX_SIMD", "avx2", 1), 0);
  ASSERT_EQ(setenv("SLUICE_TUNE_CACHE", "/home/someone/my cache", 1), 0);
  EXPECT_EQ(command(std::array{"sluice", "bench"}),
            "SLUICE_MAX_SIMD=avx2 SLUICE_TUNE_CACHE='my cache' sluice bench");
  ASSERT_EQ(setenv("SLUICE_MAX_SIMD", "", 1), 0);
  unsetenv("SLUICE_TUNE_CACHE");
  EXPECT_EQ(command(std::array{"sluice", "bench"}), "sluice bench") << "empty is unset";
  unsetenv("SLUICE_MAX_SIMD");
}

TEST(Provenance, OutsideARepositoryPathsAreBaseNames) {
  const std::array<const char*, 2> words = {"sluice", "/tmp/a.json"};
  EXPECT_EQ(command_line(2, words.data(), ""), "sluice a.json");
}

TEST(Provenance, MetaHoldsTheRun) {
  Ceilings ceilings;
  ceilings.read_tbps = 0.5;
  ceilings.clocks = "cpu 1 MHz";
  Device gpu;
  gpu.driver_version = 13020;
  gpu.runtime_version = 12080;
  std::snprintf(gpu.name, sizeof(gpu.name), "Some GPU");
  const std::array<const char*, 2> words = {"sluice", "bench"};
  const Meta meta = make_meta(gpu, ceilings, 2, words.data());
  EXPECT_EQ(meta.device, "Some GPU");
  EXPECT_EQ(meta.driver, "13.2");
  EXPECT_EQ(meta.cuda, "12.8");
  EXPECT_EQ(meta.read_tbps, 0.5);
  EXPECT_FALSE(meta.fma_gflops);
  EXPECT_EQ(meta.clocks, "cpu 1 MHz");
  EXPECT_EQ(meta.compiler, build_info().compiler);
  EXPECT_EQ(meta.command, "sluice bench");
  EXPECT_THAT(meta.date, MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9:]*Z"));
  EXPECT_THAT(meta.commit, MatchesRegex("unknown|[0-9a-f]*"));
  EXPECT_EQ(meta.commit, build_commit());
  EXPECT_THAT(meta.fingerprints,
              MatchesRegex("cpu=[0-9a-f]* .*cuda.sm90_decode=[0-9a-f]* cuda.sm90_gemm=[0-9a-f]*"));
  EXPECT_FALSE(make_meta(Device{}, ceilings, 2, words.data()).driver);
}

}  // namespace
}  // namespace sluice::harness
