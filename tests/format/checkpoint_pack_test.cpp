// SPDX-License-Identifier: Apache-2.0
// Checkpoints packed, read and unpacked again: every block in both orders, and what is refused.
#include "harness/checkpoint_pack.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/checkpoint.hpp"
#include "tests/format/folder_test.hpp"
#include "tests/format/safetensors_image.hpp"
#include "tests/unit/expect_error.hpp"

namespace sluice::harness::checkpoint_pack_test {
namespace {

using format_test::TensorSet;
using test::fails;
using test::refuses;
using test::succeeds;

constexpr std::int64_t kD = 3;
constexpr std::int64_t kH = 12;

TensorSet model(bool biases = true) {
  TensorSet set;
  set.add("model.embed_tokens.weight", {5, kD}).add("lm_head.weight", {5, kD});
  set.add_bytes("z.bytes", {3});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    set.add(layer + "mlp.gate_proj.weight", {kH, kD}).add(layer + "mlp.up_proj.weight", {kH, kD});
    set.add(layer + "mlp.down_proj.weight", {kD, kH});
    set.add(layer + "post_attention_layernorm.weight", {kD});
    if (!biases) continue;
    set.add(layer + "mlp.gate_proj.bias", {kH}).add(layer + "mlp.up_proj.bias", {kH});
  }
  return set;
}

constexpr const char* kMetadata = R"("__metadata__":{"hidden_act":"gelu","name":"org/m"})";

// Bytes, dtypes and shapes of a file's tensors by name.
std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> found;
  Expected<SafeTensors> file = SafeTensors::open(path);
  EXPECT_TRUE(succeeds(file));
  if (!file) return found;
  for (const TensorView& view : file->tensors()) {
    EXPECT_TRUE(succeeds(file->load(view)));
    std::string text = view.dtype_name;
    for (const std::int64_t dim : view.shape) text += " " + std::to_string(dim);
    text.append(reinterpret_cast<const char*>(view.data), static_cast<std::size_t>(view.bytes));
    found[view.name] = text;
  }
  return found;
}

float element(const MlpLayer& layer, const void* base, std::int64_t row, std::int64_t col) {
  const Layout& l = layer.w_gate_up_layout;
  const std::int64_t row_bytes = kD * 4;
  const std::int64_t at = l.block_rows == 0 ? row * row_bytes
                                            : row / l.block_rows * l.block_stride_bytes +
                                                  row % l.block_rows * l.row_stride_bytes;
  float value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(base) + at + col * 4, sizeof(value));
  return value;
}

// Are the MLPs of both checkpoints the same numbers, however they lie?
void expect_same_mlps(const std::string& path, const std::string& expected_path) {
  const auto got = open_checkpoint(path);
  const auto expected = open_checkpoint(expected_path);
  ASSERT_TRUE(succeeds(got));
  ASSERT_TRUE(succeeds(expected));
  EXPECT_EQ(got->gate.activation, expected->gate.activation);
  ASSERT_EQ(got->h, kH);
  ASSERT_EQ(got->layers.size(), expected->layers.size());
  for (std::size_t i = 0; i < got->layers.size(); ++i) {
    const MlpLayer& a = got->layers[i];
    const MlpLayer& b = expected->layers[i];
    ASSERT_EQ(a.b_gate != nullptr, b.b_gate != nullptr);
    for (std::int64_t row = 0; row < kH; ++row) {
      for (std::int64_t col = 0; col < kD; ++col) {
        ASSERT_EQ(element(a, a.w_gate, row, col), element(b, b.w_gate, row, col));
        ASSERT_EQ(element(a, a.w_up, row, col), element(b, b.w_up, row, col));
      }
      if (a.b_gate == nullptr) continue;
      const auto bias = [row](const void* base) { return static_cast<const float*>(base)[row]; };
      ASSERT_EQ(bias(a.b_gate), bias(b.b_gate));
      ASSERT_EQ(bias(a.b_up), bias(b.b_up));
    }
  }
}

class CheckpointPack : public format_test::FolderTest {
 protected:
  [[nodiscard]] Expected<PackReport> pack(const TensorSet& set, const GateUpPacking* target,
                                          const std::string& metadata = "") const {
    return pack_checkpoint(write("in.safetensors", set.bytes(metadata)), path("out.safetensors"),
                           target);
  }
};

TEST_F(CheckpointPack, EveryBlockIsReadAndComesBack) {
  for (const bool biases : {false, true}) {
    const std::string source = write("in.safetensors", model(biases).bytes(kMetadata));
    for (const std::int64_t block : {0, 1, 2, 3, 4, 6, 12}) {
      for (const PackOrder order : {PackOrder::kGateUp, PackOrder::kUpGate}) {
        SCOPED_TRACE(std::to_string(block) + to_string(order));
        const GateUpPacking target{block, order};
        const auto report = pack_checkpoint(source, path("packed.safetensors"), &target);
        ASSERT_TRUE(succeeds(report));
        EXPECT_EQ(report->pairs, 2);
        EXPECT_EQ(report->tensors, biases ? 11 : 9);
        ASSERT_NO_FATAL_FAILURE(expect_same_mlps(path("packed.safetensors"), source));
        // From packed to packed another way, and apart again.
        const GateUpPacking other{4, PackOrder::kUpGate};
        ASSERT_TRUE(succeeds(
            pack_checkpoint(path("packed.safetensors"), path("again.safetensors"), &other)));
        ASSERT_NO_FATAL_FAILURE(expect_same_mlps(path("again.safetensors"), source));
        ASSERT_TRUE(succeeds(
            pack_checkpoint(path("again.safetensors"), path("apart.safetensors"), nullptr)));
        ASSERT_EQ(contents(path("apart.safetensors")), contents(source));
        const auto apart = SafeTensors::open(path("apart.safetensors"));
        ASSERT_TRUE(succeeds(apart));
        const auto original = SafeTensors::open(source);
        EXPECT_EQ(apart->metadata(), original->metadata());
      }
    }
  }
}

TEST_F(CheckpointPack, PackedRowsAlternateAndTheMetadataSayHow) {
  const GateUpPacking target{2, PackOrder::kUpGate};
  ASSERT_TRUE(succeeds(pack(model(), &target, kMetadata)));
  Expected<SafeTensors> file = SafeTensors::open(path("out.safetensors"));
  ASSERT_TRUE(succeeds(file));
  EXPECT_EQ(file->metadata().at("mlp_gate_up_block"), "2");
  EXPECT_EQ(file->metadata().at("mlp_gate_up_order"), "up_gate");
  EXPECT_EQ(file->metadata().at("hidden_act"), "gelu");
  const TensorView* const view = file->find("model.layers.1.mlp.gate_up_proj.weight");
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->shape, (std::vector<std::int64_t>{2 * kH, kD}));
  ASSERT_TRUE(succeeds(file->load(*view)));
  const auto separate = open_checkpoint(path("in.safetensors"));
  ASSERT_TRUE(succeeds(separate));
  const auto* const packed = reinterpret_cast<const float*>(view->data);
  const auto row_of = [&](const void* base, std::int64_t row) {
    return static_cast<const float*>(base)[row * kD];
  };
  const MlpLayer& layer = separate->layers[1];
  EXPECT_EQ(packed[0], row_of(layer.w_up, 0));
  EXPECT_EQ(packed[1 * kD], row_of(layer.w_up, 1));
  EXPECT_EQ(packed[2 * kD], row_of(layer.w_gate, 0));
  EXPECT_EQ(packed[3 * kD], row_of(layer.w_gate, 1));
  EXPECT_EQ(packed[4 * kD], row_of(layer.w_up, 2));
}

// The planted error: metadata that name the other order are other weights.
TEST_F(CheckpointPack, AnotherOrderInTheMetadataIsAnotherModel) {
  TensorSet merged;
  merged.add("model.layers.0.mlp.gate_up_proj.weight", {2 * kH, kD});
  merged.add("model.layers.0.mlp.down_proj.weight", {kD, kH});
  const auto open = [&](const std::string& metadata) {
    return open_checkpoint(write("m.safetensors", merged.bytes(metadata)));
  };
  const auto right = open("");
  const auto swapped = open(R"("__metadata__":{"mlp_gate_up_order":"up_gate"})");
  const auto blocks = open(R"("__metadata__":{"mlp_gate_up_block":"4"})");
  ASSERT_TRUE(succeeds(right));
  ASSERT_TRUE(succeeds(swapped));
  ASSERT_TRUE(succeeds(blocks));
  const auto at = [](const auto& checkpoint, std::int64_t row) {
    return element(checkpoint->layers[0], checkpoint->layers[0].w_gate, row, 0);
  };
  EXPECT_EQ(at(swapped, 0), at(right, 0) + kH * kD);
  EXPECT_EQ(at(blocks, 4), at(right, 8));
  EXPECT_TRUE(fails(open(R"("__metadata__":{"mlp_gate_up_block":"8 rows"})"),
                    ErrorCode::kUnsupported,
                    "mlp_gate_up_block is \"8 rows\", wanted halves or a number of rows"));
  EXPECT_TRUE(fails(open(R"("__metadata__":{"mlp_gate_up_block":"0"})"), ErrorCode::kUnsupported,
                    "mlp_gate_up_block is \"0\""));
  EXPECT_TRUE(fails(open(R"("__metadata__":{"mlp_gate_up_order":"up"})"), ErrorCode::kUnsupported,
                    "mlp_gate_up_order is \"up\", wanted gate_up or up_gate"));
  EXPECT_TRUE(refuses(open(R"("__metadata__":{"mlp_gate_up_block":"5"})"),
                      "gate_up_proj.weight: H = 12 is no multiple of the 5 rows of a block"));
}

TEST_F(CheckpointPack, ShardsBecomeOneFile) {
  TensorSet one;
  TensorSet two;
  one.add("model.layers.0.mlp.gate_proj.weight", {kH, kD});
  two.add("model.layers.0.mlp.up_proj.weight", {kH, kD});
  one.add("model.layers.0.mlp.down_proj.weight", {kD, kH});
  write("one.safetensors", one.bytes());
  write("two.safetensors", two.bytes());
  // By their name these come first, where they would leave fp32 without alignment.
  write("three.safetensors", TensorSet().add_bytes("a.bytes", {3}).bytes());
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.layers.0.mlp.gate_proj.weight":"one.safetensors",)"
        R"("model.layers.0.mlp.up_proj.weight":"two.safetensors",)"
        R"("a.bytes":"three.safetensors",)"
        R"("model.layers.0.mlp.down_proj.weight":"one.safetensors"}})");
  const GateUpPacking target{3, PackOrder::kGateUp};
  ASSERT_TRUE(succeeds(pack_checkpoint(folder_.string(), path("out.safetensors"), &target)));
  expect_same_mlps(path("out.safetensors"), folder_.string());
  const auto before = contents(path("two.safetensors"));
  EXPECT_TRUE(refuses(pack_checkpoint(folder_.string(), path("two.safetensors"), &target),
                      "two.safetensors: is one of the 3 shards of "));
  EXPECT_EQ(contents(path("two.safetensors")), before);
  const std::string single = path("model.safetensors");
  EXPECT_TRUE(refuses(pack_checkpoint(folder_.string(), single, &target),
                      "model.safetensors: lies beside model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(single));
  write("model.safetensors", one.bytes());
  EXPECT_TRUE(refuses(open_checkpoint_files(folder_.string()),
                      "holds both model.safetensors.index.json and model.safetensors"));
}

// As some programs write a model of one file.
TEST_F(CheckpointPack, AnIndexOfOneFileHidesNothing) {
  TensorSet set;
  set.add("model.layers.0.mlp.gate_proj.weight", {kH, kD});
  set.add("model.layers.0.mlp.up_proj.weight", {kH, kD});
  const std::string file = write("model.safetensors", set.bytes());
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.layers.0.mlp.gate_proj.weight":"model.safetensors",)"
        R"("model.layers.0.mlp.up_proj.weight":"model.safetensors"}})");
  EXPECT_TRUE(succeeds(open_checkpoint_files(folder_.string())));
  const GateUpPacking target{3, PackOrder::kGateUp};
  EXPECT_TRUE(succeeds(pack_checkpoint(file, file, &target)));
}

TEST_F(CheckpointPack, RowsInBlocksOfColumnsAndExpertsMove) {
  TensorSet set;
  const std::string mlp = "model.layers.0.mlp.";
  set.add_bytes(mlp + "gate_proj.weight", {4, 18}).add_bytes(mlp + "up_proj.weight", {4, 18});
  set.add_bytes(mlp + "down_proj.weight", {32, 18});
  set.add(mlp + "experts.0.gate_proj.weight", {8, 2}).add(mlp + "experts.0.up_proj.weight", {8, 2});
  const GateUpPacking target{2, PackOrder::kUpGate};
  const auto report = pack(set, &target, R"("__metadata__":{"mlp_weight_blocks":"q4_0"})");
  ASSERT_TRUE(succeeds(report));
  EXPECT_EQ(report->pairs, 2);
  ASSERT_TRUE(
      succeeds(pack_checkpoint(path("out.safetensors"), path("apart.safetensors"), nullptr)));
  EXPECT_EQ(contents(path("apart.safetensors")), contents(path("in.safetensors")));
}

TEST_F(CheckpointPack, ReplacesItsOwnSource) {
  const std::string file = write("m.safetensors", model().bytes());
  write("copy.safetensors", model().bytes());
  const GateUpPacking target{1, PackOrder::kGateUp};
  ASSERT_TRUE(succeeds(pack_checkpoint(file, file, &target)));
  expect_same_mlps(file, path("copy.safetensors"));
}

TEST_F(CheckpointPack, RefusesAndWritesNothing) {
  const std::string gate = "model.layers.1.mlp.gate_proj.weight";
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  const GateUpPacking target{4, PackOrder::kGateUp};
  EXPECT_TRUE(refuses(pack(model().remove(up), &target),
                      "gate_proj.weight: has no model.layers.1.mlp.up_proj.weight beside it"));
  EXPECT_TRUE(refuses(pack(model().remove(gate), &target),
                      "up_proj.weight: has no model.layers.1.mlp.gate_proj.weight beside it"));
  EXPECT_TRUE(refuses(pack(model().add(up, {kH, kD + 1}), &target),
                      "up_proj.weight: got F32 [12, 4], wanted that of its gate, F32 [12, 3]"));
  EXPECT_TRUE(refuses(pack(model().remove(up).add_bytes(up, {kH, kD}), &target),
                      "got U8 [12, 3], wanted that of its gate, F32 [12, 3]"));
  EXPECT_TRUE(refuses(pack(model().add("model.layers.1.mlp.gate_up_proj.weight", {24, 3}), &target),
                      "gate_up_proj.weight: is there beside a separate projection"));
  EXPECT_TRUE(
      refuses(pack(model().add(gate, {kH}).add(up, {kH}), &target), "got F32 [12], wanted [H, D]"));
  TensorSet odd;
  odd.add("layers.0.mlp.gate_up_proj.weight", {5, 2});
  EXPECT_TRUE(refuses(pack(odd, &target), "got F32 [5, 2], wanted [2H, D]"));
  EXPECT_TRUE(refuses(pack(TensorSet().add("lm_head.weight", {2, 2}), &target),
                      "holds no tensor named *.mlp.*gate_proj.weight"));
  EXPECT_TRUE(fails(pack(model().add("model.layers.1.mlp.gate_proj.weight_scale", {1}), &target),
                    ErrorCode::kUnsupported, "gate_proj.weight_scale: wanted no part"));
  EXPECT_TRUE(
      fails(pack(model().add("model.layers.1.mlp.experts.gate_up_proj", {2, 8, 2}), &target),
            ErrorCode::kUnsupported, "experts.gate_up_proj: wanted no part"));
  const GateUpPacking five{5, PackOrder::kGateUp};
  EXPECT_TRUE(refuses(pack(model(), &five), "H = 12 is no multiple of the 5 rows of a block"));
  TensorSet merged;
  merged.add("layers.0.mlp.gate_up_proj.weight", {24, 2});
  EXPECT_TRUE(refuses(pack(merged, nullptr, R"("__metadata__":{"mlp_gate_up_block":"5"})"),
                      "H = 12 is no multiple of the 5 rows of a block"));
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
  EXPECT_TRUE(refuses(pack_checkpoint(path("none"), path("out.safetensors"), &target), "none"));
  const std::string source = write("m.safetensors", model().bytes());
  EXPECT_TRUE(refuses(pack_checkpoint(source, path("no/folder"), &target), "cannot be written"));
}

}  // namespace
}  // namespace sluice::harness::checkpoint_pack_test
