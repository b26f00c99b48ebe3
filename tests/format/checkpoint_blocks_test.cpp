// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose MLP weights are GGUF's blocks: read as what they hold, refused where they are
// no whole blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/checkpoint.hpp"
#include "harness/checkpoint_bench.hpp"
#include "math/block_types.hpp"
#include "tests/format/folder_test.hpp"
#include "tests/format/safetensors_image.hpp"

namespace sluice::harness::checkpoint_blocks_test {
namespace {

using format_test::TensorSet;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kD = 32;
constexpr std::int64_t kH = 64;
constexpr const char* kMlp = "model.layers.0.mlp.";

std::string named(const std::string& type) {
  return R"("__metadata__":{"mlp_weight_blocks":")" + type + R"("})";
}

// One layer with blocks of `bytes` bytes. Embeddings first, so that data begin with fp32.
TensorSet layer(std::int64_t bytes, bool merged = false) {
  TensorSet set;
  set.add("model.embed_tokens.weight", {3, kD});
  const std::string mlp = kMlp;
  if (merged) {
    set.add_bytes(mlp + "gate_up_proj.weight", {2 * kH, bytes});
  } else {
    set.add_bytes(mlp + "gate_proj.weight", {kH, bytes});
    set.add_bytes(mlp + "up_proj.weight", {kH, bytes});
  }
  set.add_bytes(mlp + "down_proj.weight", {kD, kH / kBlockElems * bytes});
  return set;
}

class BlocksFolder : public format_test::FolderTest {
 protected:
  [[nodiscard]] Expected<Checkpoint> open(const TensorSet& set, const std::string& type) const {
    return open_checkpoint(write("model.safetensors", set.bytes(named(type))));
  }
  [[nodiscard]] std::string message(const TensorSet& set, const std::string& type,
                                    ErrorCode code = ErrorCode::kInvalidArgument) const {
    const Expected<Checkpoint> checkpoint = open(set, type);
    if (checkpoint) return {};
    EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().text();
    return std::string(checkpoint.error().text());
  }
};

TEST_F(BlocksFolder, ReadsEveryBlockType) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const TensorSet set = layer(size_bytes(dtype));
    const auto checkpoint = open(set, to_string(dtype));
    ASSERT_TRUE(checkpoint) << checkpoint.error().text();
    EXPECT_EQ(checkpoint->dtype, dtype);
    EXPECT_EQ(bias_dtype(*checkpoint), DType::kF32);
    EXPECT_EQ(checkpoint->d, kD);
    EXPECT_EQ(checkpoint->h, kH);
    EXPECT_GE(checkpoint->alignment_bytes, 2);
    EXPECT_EQ(checkpoint->layers[0].dtype, dtype);
    // The second tensor of the file, by name: its bytes count from 16.
    const auto* const down = static_cast<const unsigned char*>(checkpoint->layers[0].w_down);
    EXPECT_EQ(down[0], 16);
    EXPECT_EQ(down[size_bytes(dtype)], (16 + size_bytes(dtype)) % 256);
  }
}

TEST_F(BlocksFolder, MergedHalvesAreRowsOfBlocksApart) {
  TensorSet set = layer(34, true);
  set.add(std::string(kMlp) + "gate_up_proj.bias", {2 * kH});
  const auto checkpoint = open(set, "q8_0");
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  const MlpLayer& mlp = checkpoint->layers[0];
  EXPECT_TRUE(mlp.merged);
  EXPECT_EQ(static_cast<const char*>(mlp.w_up) - static_cast<const char*>(mlp.w_gate), kH * 34);
  EXPECT_EQ(static_cast<const char*>(mlp.b_up) - static_cast<const char*>(mlp.b_gate), kH * 4);
}

TEST_F(BlocksFolder, BenchesWithActivationsOfBf16) {
  TensorSet set = layer(18);
  const auto checkpoint = open(set, "q4_0");
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  CheckpointOptions options;
  options.bench.timer.max_total_us = 1000;
  options.bench.timer.warm_up_us = 0;
  const auto bench = bench_checkpoint(*checkpoint, 3, **rig, Ceilings{}, options);
  ASSERT_TRUE(bench) << bench.error().text();
  ASSERT_EQ(bench->checks.size(), 1U);
  EXPECT_EQ(bench->checks[0].fused.failed, 0);
}

TEST_F(BlocksFolder, RefusesWhatIsNoBlocks) {
  const std::string mlp = kMlp;
  EXPECT_THAT(message(layer(18), "q5_k", ErrorCode::kUnsupported),
              HasSubstr("mlp_weight_blocks is \"q5_k\", wanted q8_0, q4_0 or q4_1"));
  EXPECT_THAT(message(layer(18), "q4_1"),
              AllOf(HasSubstr("proj.weight: wanted bytes of [rows, 20 n] for blocks of q4_1")));
  EXPECT_THAT(message(layer(18).add_bytes(mlp + "up_proj.weight", {kH * 18}), "q4_0"),
              HasSubstr("up_proj.weight: wanted bytes of [rows, 18 n]"));
  EXPECT_THAT(message(layer(18).add_bytes(mlp + "up_proj.weight", {0, 1 << 20}), "q4_0"),
              HasSubstr("up_proj.weight: wanted bytes of [rows, 18 n]"));
  EXPECT_THAT(message(layer(18).add_bytes(mlp + "down_proj.weight", {kD, 18}), "q4_0"),
              HasSubstr("down_proj.weight: expected [32, 64], got [32, 32]"));
  TensorSet mixed = layer(18);
  mixed.remove(mlp + "up_proj.weight").add(mlp + "up_proj.weight", {kH, kD});
  EXPECT_THAT(message(mixed, "q4_0"), HasSubstr("dtype fp32, the weights before are q4_0"));
  TensorSet bias = layer(18);
  bias.add_bytes(mlp + "down_proj.bias", {kD});
  EXPECT_THAT(message(bias, "q4_0"),
              HasSubstr("dtype U8, the weights before are q4_0, biases fp32"));
  // An odd number of bytes before the first block.
  TensorSet odd = layer(18);
  odd.add_bytes("a", {1}).remove("model.embed_tokens.weight");
  EXPECT_THAT(message(odd, "q4_0"),
              HasSubstr("blocks begin at an odd address, wanted an even one"));
}

TEST_F(BlocksFolder, BytesWithoutATypeAreRefused) {
  const auto checkpoint = open_checkpoint(write("model.safetensors", layer(34).bytes()));
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(std::string(checkpoint.error().text()), HasSubstr("dtype U8; only BF16"));
}

TEST_F(BlocksFolder, ShardsMustAgree) {
  const std::string mlp = kMlp;
  TensorSet first = layer(18).remove(mlp + "down_proj.weight");
  TensorSet second;
  second.add_bytes(mlp + "down_proj.weight", {kD, 2 * 18});
  write("a.safetensors", first.bytes(named("q4_0")));
  write("b.safetensors", second.bytes(named("q4_1")));
  std::string map;
  for (const TensorSet* set : {&first, &second}) {
    for (const auto& [name, shape] : set->shapes()) {
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + (set == &first ? "a" : "b") +
             ".safetensors\"";
    }
  }
  const auto index = write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const auto checkpoint = open_checkpoint(index);
  ASSERT_FALSE(checkpoint);
  EXPECT_THAT(std::string(checkpoint.error().text()),
              HasSubstr("mlp_weight_blocks is q4_0 in one shard and q4_1 in another"));
  write("b.safetensors", second.bytes(named("q4_0")));
  EXPECT_TRUE(open_checkpoint(index));
}

}  // namespace
}  // namespace sluice::harness::checkpoint_blocks_test
