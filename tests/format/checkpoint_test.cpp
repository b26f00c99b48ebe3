// SPDX-License-Identifier: Apache-2.0
// Checkpoints: names, layouts, shards and settings as models ship them, and every way to be wrong.
#include "harness/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "math/float_types.hpp"
#include "tests/format/folder_test.hpp"
#include "tests/format/safetensors_image.hpp"

namespace sluice::harness::checkpoint_test {
namespace {

using format_test::TensorSet;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kD = 4;
constexpr std::int64_t kH = 6;

// A dense model of `layers` layers with the names of Llama.
TensorSet llama(int layers, const std::string& prefix = "model.") {
  TensorSet set;
  set.add(prefix + "embed_tokens.weight", {10, kD});
  for (int i = 0; i < layers; ++i) {
    const std::string layer = prefix + "layers." + std::to_string(i) + ".";
    set.add(layer + "mlp.gate_proj.weight", {kH, kD});
    set.add(layer + "mlp.up_proj.weight", {kH, kD});
    set.add(layer + "mlp.down_proj.weight", {kD, kH});
    set.add(layer + "post_attention_layernorm.weight", {kD});
    set.add(layer + "self_attn.q_proj.weight", {kD, kD});
  }
  return set;
}

// The first element of the t-th tensor is 1000 t; see TensorSet.
float first(const void* pointer) { return static_cast<const float*>(pointer)[0]; }
float first_of(const TensorSet& set, const std::string& name) {
  return 1000.0F * static_cast<float>(std::distance(set.shapes().begin(), set.shapes().find(name)));
}

class CheckpointFolder : public format_test::FolderTest {
 protected:
  [[nodiscard]] std::string message(const std::string& path,
                                    ErrorCode code = ErrorCode::kInvalidArgument) const {
    const Expected<Checkpoint> checkpoint = open_checkpoint(path);
    if (checkpoint) return {};
    EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().text();
    return std::string(checkpoint.error().text());
  }
  [[nodiscard]] std::string message(const TensorSet& set,
                                    ErrorCode code = ErrorCode::kInvalidArgument) const {
    return message(write("model.safetensors", set.bytes()), code);
  }
  [[nodiscard]] std::string message_of_index(const std::string& index) const {
    return message(write("model.safetensors.index.json", index));
  }
};

TEST_F(CheckpointFolder, ReadsSeparateProjections) {
  const TensorSet set = llama(12);  // 10 and 11 sort before 2 as text
  write("tiny.safetensors", set.bytes());
  write("config.json", R"({"hidden_act":"silu","rms_norm_eps":1e-6,"hidden_size":4,)"
                       R"("intermediate_size":6,"_name_or_path":"org/tiny-llama"})");
  for (const std::string& path : {path("tiny.safetensors"), folder_.string()}) {
    Expected<Checkpoint> opened = open_checkpoint(path);
    ASSERT_TRUE(opened) << opened.error().text();
    const Checkpoint checkpoint = *std::move(opened);
    EXPECT_EQ(checkpoint.d, kD);
    EXPECT_EQ(checkpoint.h, kH);
    EXPECT_EQ(checkpoint.dtype, DType::kF32);
    EXPECT_EQ(checkpoint.name, "tiny-llama");
    EXPECT_EQ(checkpoint.eps, 1e-6F);
    EXPECT_EQ(checkpoint.gate.activation, Activation::kSilu);
    EXPECT_FALSE(checkpoint.assumed_gate);
    EXPECT_FALSE(checkpoint.assumed_eps);
    ASSERT_EQ(checkpoint.layers.size(), 12U);
    for (std::size_t i = 0; i < 12; ++i) {
      const MlpLayer& layer = checkpoint.layers[i];
      const std::string name = "model.layers." + std::to_string(i) + ".";
      EXPECT_EQ(first(layer.w_gate), first_of(set, name + "mlp.gate_proj.weight"));
      EXPECT_EQ(first(layer.w_up), first_of(set, name + "mlp.up_proj.weight"));
      EXPECT_EQ(first(layer.w_down), first_of(set, name + "mlp.down_proj.weight"));
      EXPECT_EQ(first(layer.norm_weight), first_of(set, name + "post_attention_layernorm.weight"));
      EXPECT_FALSE(layer.merged);
      EXPECT_EQ(layer.b_gate, nullptr);
      EXPECT_EQ(layer.b_down, nullptr);
      EXPECT_EQ(layer.w_gate_up_layout, Layout{});
    }
    EXPECT_EQ(first(checkpoint.embedding.data), 0.0F);
    EXPECT_GE(checkpoint.alignment_bytes, size_bytes(DType::kF32));
    for (const MlpLayer& layer : checkpoint.layers) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(layer.w_down) %
                    static_cast<std::uintptr_t>(checkpoint.alignment_bytes),
                0U);
    }
  }
}

TEST_F(CheckpointFolder, ReadsMergedProjectionsGateFirst) {
  TensorSet set;
  set.add("model.layers.0.mlp.gate_up_proj.weight", {2 * kH, kD});
  set.add("model.layers.0.mlp.gate_up_proj.bias", {2 * kH});
  set.add("model.layers.0.mlp.down_proj.weight", {kD, kH});
  set.add("model.layers.0.mlp.down_proj.bias", {kD});
  const auto checkpoint = open_checkpoint(write("phi.safetensors", set.bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->h, kH);
  EXPECT_EQ(checkpoint->name, "phi");
  EXPECT_TRUE(checkpoint->assumed_gate);
  EXPECT_TRUE(checkpoint->assumed_eps);
  const MlpLayer& layer = checkpoint->layers[0];
  EXPECT_TRUE(layer.merged);
  EXPECT_EQ(first(layer.w_gate), first_of(set, "model.layers.0.mlp.gate_up_proj.weight"));
  EXPECT_EQ(first(layer.w_up), first(layer.w_gate) + static_cast<float>(kH * kD));
  EXPECT_EQ(first(layer.b_up), first(layer.b_gate) + static_cast<float>(kH));
  EXPECT_EQ(first(layer.b_down), first_of(set, "model.layers.0.mlp.down_proj.bias"));
  EXPECT_EQ(layer.norm_weight, nullptr);
  EXPECT_EQ(checkpoint->embedding.data, nullptr);
  EXPECT_FALSE(embedding_rows(*checkpoint, 1, DType::kF32));
}

TEST_F(CheckpointFolder, ReadsSeparateBiases) {
  TensorSet set = llama(1);
  set.add("model.layers.0.mlp.gate_proj.bias", {kH}).add("model.layers.0.mlp.up_proj.bias", {kH});
  const auto checkpoint = open_checkpoint(write("m.safetensors", set.bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(first(checkpoint->layers[0].b_gate),
            first_of(set, "model.layers.0.mlp.gate_proj.bias"));
  EXPECT_EQ(first(checkpoint->layers[0].b_up), first_of(set, "model.layers.0.mlp.up_proj.bias"));
  EXPECT_THAT(message(set.remove("model.layers.0.mlp.up_proj.bias")),
              HasSubstr("only one has a bias"));
}

TEST_F(CheckpointFolder, TakesGemmasNormAndSettings) {
  TensorSet set = llama(1, "language_model.model.");
  const std::string norm = "language_model.model.layers.0.pre_feedforward_layernorm.weight";
  set.add(norm, {kD});
  set.add("vision_tower.layers.0.mlp.gate_proj.weight", {3, 3});
  write("config.json", R"({"model_type":"gemma3","text_config":{"hidden_activation":)"
                       R"("gelu_pytorch_tanh","hidden_act":"gelu","rms_norm_eps":1e-6}})");
  const auto checkpoint = open_checkpoint(write("m.safetensors", set.bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(first(checkpoint->layers[0].norm_weight), first_of(set, norm));
  EXPECT_EQ(checkpoint->gate.activation, Activation::kGeluTanh);
  EXPECT_EQ(checkpoint->norm_weight_offset, 1.0F);
  EXPECT_EQ(checkpoint->eps, 1e-6F);
}

TEST_F(CheckpointFolder, KnowsWhichNormsAddOne) {
  const std::pair<const char*, float> offsets[] = {
      {R"({"model_type":"gemma2"})", 1},
      {R"({"model_type":"vaultgemma"})", 1},
      {R"({"model_type":"paligemma","text_config":{"model_type":"gemma"}})", 1},
      {R"({"model_type":"gemma3n_text"})", 0},
      {R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text"}})", 0},
      {R"({"model_type":"llama"})", 0}};
  for (const auto& [config, offset] : offsets) {
    write("config.json", config);
    const auto checkpoint = open_checkpoint(write("m.safetensors", llama(1).bytes()));
    ASSERT_TRUE(checkpoint) << checkpoint.error().text();
    EXPECT_EQ(checkpoint->norm_weight_offset, offset) << config;
  }
}

// The first Gemma's config says "gelu" and means the tanh form; transformers overrules it too.
TEST_F(CheckpointFolder, OverrulesTheFirstGemmasActivation) {
  write("config.json", R"({"model_type":"gemma","hidden_act":"gelu"})");
  const auto checkpoint = open_checkpoint(write("m.safetensors", llama(1).bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->gate.activation, Activation::kGeluTanh);
}

TEST_F(CheckpointFolder, TakesNoNormWhereTheMlpHasNone) {
  TensorSet set = llama(1);
  set.add("model.layers.0.post_feedforward_layernorm.weight", {kD});
  const auto checkpoint = open_checkpoint(write("m.safetensors", set.bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->layers[0].norm_weight, nullptr);
}

TEST_F(CheckpointFolder, FallsBackToMetadata) {
  const std::string metadata =
      R"("__metadata__":{"hidden_act":"gelu","rms_norm_eps":"0.25","name":"from/metadata"})";
  const auto checkpoint = open_checkpoint(write("m.safetensors", llama(1).bytes(metadata)));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->gate.activation, Activation::kGeluErf);
  EXPECT_EQ(checkpoint->eps, 0.25F);
  EXPECT_EQ(checkpoint->name, "metadata");
  EXPECT_FALSE(checkpoint->assumed_gate);
}

TEST_F(CheckpointFolder, RefusesBadSettings) {
  const std::string file = write("m.safetensors", llama(1).bytes());
  const auto with_config = [&](const std::string& config,
                               ErrorCode code = ErrorCode::kInvalidArgument) {
    write("config.json", config);
    return message(file, code);
  };
  EXPECT_EQ(with_config("{}"), "");
  EXPECT_THAT(with_config("{"), AllOf(HasSubstr("config.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(with_config(R"({"hidden_act":"mish"})", ErrorCode::kUnsupported),
              HasSubstr("activation \"mish\""));
  EXPECT_THAT(with_config(R"({"rms_norm_eps":0})"), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(with_config(R"({"rms_norm_eps":-1e-5})"), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(with_config(R"({"hidden_size":5})"), HasSubstr("config says hidden_size = 5"));
  EXPECT_THAT(with_config(R"({"intermediate_size":7})"), HasSubstr("the tensors say 6"));
}

TEST_F(CheckpointFolder, RefusesMissingTensorsAndLayers) {
  EXPECT_THAT(message(TensorSet().add("model.norm.weight", {kD})),
              HasSubstr("holds no tensor named"));
  EXPECT_THAT(message(TensorSet().add("model.layers.00.mlp.gate_proj.weight", {kH, kD})),
              HasSubstr("holds no tensor named"));
  EXPECT_THAT(message(TensorSet().add("model.layers.99999999999999999999.mlp.x", {1})),
              HasSubstr("holds no tensor named"));
  EXPECT_THAT(message(TensorSet().add("model.layers.9000000000000000000.mlp.x", {1})),
              HasSubstr("layer 0 has no MLP tensors"));
  for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string name = "model.layers.1.mlp." + projection + ".weight";
    EXPECT_THAT(message(llama(2).remove(name)), HasSubstr("tensor " + name + " is missing"));
  }
  TensorSet gap = llama(3);
  for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
    gap.remove(std::string("model.layers.1.mlp.") + projection + ".weight");
  }
  EXPECT_THAT(message(gap), HasSubstr("layer 1 has no MLP tensors, layer 2 has"));
  TensorSet experts;
  experts.add("model.layers.0.mlp.experts.0.gate_proj.weight", {kH, kD});
  EXPECT_THAT(message(experts, ErrorCode::kUnsupported), HasSubstr("mixture of experts"));
}

TEST_F(CheckpointFolder, RefusesWrongShapes) {
  const auto with = [this](const std::string& name, std::vector<std::int64_t> shape) {
    return message(llama(2).add(name, std::move(shape)));
  };
  EXPECT_THAT(with("model.layers.0.mlp.gate_proj.weight", {kH * kD}), HasSubstr("not a matrix"));
  EXPECT_THAT(with("model.layers.0.mlp.gate_proj.weight", {0, kD}), HasSubstr("not a matrix"));
  EXPECT_THAT(with("model.layers.1.mlp.gate_proj.weight", {kH + 2, kD}),
              AllOf(HasSubstr("model.layers.1.mlp.gate_proj.weight"), HasSubstr("[8, 4]"),
                    HasSubstr("in the layers before [6, 4]")));
  EXPECT_THAT(with("model.layers.0.mlp.up_proj.weight", {kD, kH}),
              HasSubstr("expected [6, 4], got [4, 6]"));
  EXPECT_THAT(with("model.layers.0.mlp.down_proj.weight", {kH, kD}),
              HasSubstr("expected [4, 6], got [6, 4]"));
  EXPECT_THAT(with("model.layers.0.mlp.down_proj.bias", {kH}), HasSubstr("expected [4], got [6]"));
  EXPECT_THAT(with("model.layers.0.post_attention_layernorm.weight", {kH}),
              HasSubstr("expected [4], got [6]"));
  EXPECT_THAT(with("model.embed_tokens.weight", {10, kH}), HasSubstr("expected [V, 4]"));
  EXPECT_THAT(with("model.layers.0.mlp.gate_up_proj.weight", {2 * kH, kD}),
              HasSubstr("beside a separate projection"));
  TensorSet odd;
  odd.add("model.layers.0.mlp.gate_up_proj.weight", {7, kD});
  EXPECT_THAT(message(odd), HasSubstr("expected [2H, D], got [7, 4]"));
}

TEST_F(CheckpointFolder, RefusesMixedAndQuantisedDtypes) {
  const auto with_up = [this](const std::string& dtype, std::uint64_t bytes, ErrorCode code) {
    const std::string base = "model.layers.0.mlp.";
    const std::string header =
        "{" + format_test::entry(base + "gate_proj.weight", "F32", "[2,2]", 0, 16) + "," +
        format_test::entry(base + "up_proj.weight", dtype, "[2,2]", 16, 16 + bytes) + "," +
        format_test::entry(base + "down_proj.weight", "F32", "[2,2]", 16 + bytes, 32 + bytes) + "}";
    return message(write("m.safetensors", format_test::image(format_test::padded(header),
                                                             std::string(32 + bytes, 'x'))),
                   code);
  };
  EXPECT_EQ(with_up("F32", 16, ErrorCode::kInvalidArgument), "");
  EXPECT_THAT(with_up("F16", 8, ErrorCode::kInvalidArgument),
              HasSubstr("up_proj.weight: dtype fp16, the weights before are fp32"));
  EXPECT_THAT(with_up("F8_E4M3", 4, ErrorCode::kUnsupported),
              HasSubstr("up_proj.weight: dtype F8_E4M3"));
}

TEST_F(CheckpointFolder, ReadsShards) {
  TensorSet first_shard;
  TensorSet second_shard;
  std::string map;
  const TensorSet whole = llama(2);
  for (const auto& [name, shape] : whole.shapes()) {
    const bool second = name.find("up_proj") != std::string::npos;
    (second ? second_shard : first_shard).add(name, shape);
    map += (map.empty() ? "\"" : ",\"") + name + "\":\"model-0000" + (second ? "2" : "1") +
           "-of-00002.safetensors\"";
  }
  write("model-00001-of-00002.safetensors", first_shard.bytes());
  write("model-00002-of-00002.safetensors", second_shard.bytes());
  const std::string index = "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}";
  const std::string index_path = write("model.safetensors.index.json", index);
  for (const std::string& path : {index_path, folder_.string()}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().text();
    EXPECT_EQ(checkpoint->shards.size(), 2U);
    EXPECT_EQ(checkpoint->name, folder_.filename().string());
    EXPECT_EQ(first(checkpoint->layers[1].w_up),
              first_of(second_shard, "model.layers.1.mlp.up_proj.weight"));
    EXPECT_EQ(first(checkpoint->layers[1].w_down),
              first_of(first_shard, "model.layers.1.mlp.down_proj.weight"));
  }
  std::filesystem::remove(path("model-00002-of-00002.safetensors"));
  EXPECT_THAT(message(index_path), HasSubstr("shard model-00002-of-00002.safetensors is missing"));
  write("model-00002-of-00002.safetensors",
        second_shard.remove("model.layers.1.mlp.up_proj.weight").bytes());
  EXPECT_THAT(message(index_path),
              AllOf(HasSubstr("model-00002"), HasSubstr("model.layers.1.mlp.up_proj.weight is "
                                                        "missing, the index places it here")));
}

TEST_F(CheckpointFolder, RefusesBadIndexes) {
  EXPECT_THAT(message_of_index("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_index("{}"), HasSubstr("holds no weight_map"));
  EXPECT_THAT(message_of_index(R"({"weight_map":[]})"), HasSubstr("holds no weight_map"));
  EXPECT_THAT(message_of_index(R"({"weight_map":{}})"), HasSubstr("holds no weight_map"));
  EXPECT_THAT(message_of_index(R"({"weight_map":{"w":7}})"),
              HasSubstr("tensor w: its shard is not text"));
  EXPECT_THAT(message_of_index(R"({"weight_map":{"w":"a","w":"b"}})"), HasSubstr("appears twice"));
}

// The files exist, so that nothing but the rule keeps the reader from them.
TEST_F(CheckpointFolder, RefusesShardsOutsideTheFolder) {
  std::filesystem::create_directories(folder_ / "model");
  const std::string outside = write("secret.safetensors", llama(1).bytes());
  const std::string inside = write("model/in.safetensors", llama(1).bytes());
  ASSERT_EQ(message(inside), "");
  for (const std::string& shard :
       {std::string("../secret.safetensors"), outside, std::string("./in.safetensors"),
        std::string("a/../in.safetensors"), std::string(".."), std::string("."), std::string(""),
        std::string("..\\\\secret.safetensors"), std::string("in.safetensors\\u0000")}) {
    const std::string index =
        write("model/model.safetensors.index.json", "{\"weight_map\":{\"w\":\"" + shard + "\"}}");
    EXPECT_THAT(message(index), HasSubstr("is not the plain name of a file beside the index"))
        << shard;
  }
}

TEST_F(CheckpointFolder, RefusesFoldersWithoutOneCheckpoint) {
  EXPECT_THAT(message(folder_.string()), HasSubstr("0 other .safetensors files"));
  write("a.safetensors", llama(1).bytes());
  write("b.safetensors", llama(1).bytes());
  EXPECT_THAT(message(folder_.string()), HasSubstr("2 other .safetensors files"));
  write("model.safetensors", llama(1).bytes());
  EXPECT_EQ(message(folder_.string()), "");
  EXPECT_THAT(message(path("absent")), HasSubstr("cannot be opened"));
}

TEST(SpreadTokenIds, AreDistinctAndCoverTheVocabulary) {
  for (const std::int64_t vocabulary : {3, 100, 49152, 262144}) {
    const std::int64_t m = vocabulary * 10 / 23;  // V > 2.3 m
    const auto ids = spread_token_ids(m, vocabulary);
    EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), static_cast<std::size_t>(m));
    for (const std::int64_t id : ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, vocabulary);
    }
  }
  // Every sixteenth of the vocabulary is met by 64 tokens.
  std::set<std::int64_t> sixteenths;
  for (const std::int64_t id : spread_token_ids(64, 49152)) sixteenths.insert(id * 16 / 49152);
  EXPECT_EQ(sixteenths.size(), 16U);
}

TEST_F(CheckpointFolder, NormalisesEmbeddingRows) {
  const TensorSet set = llama(1);
  write("config.json", R"({"rms_norm_eps":0.5,"model_type":"gemma"})");
  const auto checkpoint = open_checkpoint(write("m.safetensors", set.bytes()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  const MlpLayer& layer = checkpoint->layers[0];
  const std::int64_t m = 5;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (const MlpLayer* norm : {static_cast<const MlpLayer*>(nullptr), &layer}) {
      const auto rows = embedding_rows(*checkpoint, m, dtype, norm);
      ASSERT_TRUE(rows) << rows.error().text();
      ASSERT_EQ(rows->size(), static_cast<std::size_t>(m * kD * size_bytes(dtype)));
      const auto ids = spread_token_ids(m, 10);
      for (std::int64_t i = 0; i < m; ++i) {
        // Element (r, c) of the first tensor of the file holds r D + c.
        double mean = 0;
        for (std::int64_t c = 0; c < kD; ++c) {
          mean += std::pow(static_cast<double>(ids[static_cast<std::size_t>(i)] * kD + c), 2);
        }
        const double root = std::sqrt(mean / static_cast<double>(kD) + 0.5);
        for (std::int64_t c = 0; c < kD; ++c) {
          const double e = static_cast<double>(ids[static_cast<std::size_t>(i)] * kD + c);
          const double scale = norm == nullptr ? 1.0
                                               : static_cast<double>(first(layer.norm_weight)) +
                                                     static_cast<double>(c) + 1.0;
          const double expected = e / root * scale;
          const double got = math::load(rows->data() + (i * kD + c) * size_bytes(dtype), dtype);
          // Rounded once to dtype, after at most five fp64 roundings on either side.
          const double bound =
              std::fabs(expected) * (epsilon(dtype) / 2 + 10 * epsilon(DType::kF64));
          EXPECT_LE(std::fabs(got - expected), bound) << i << ", " << c;
        }
      }
    }
  }
  EXPECT_FALSE(embedding_rows(*checkpoint, -1, DType::kF32));
  EXPECT_TRUE(embedding_rows(*checkpoint, 0, DType::kF32)->empty());
}

}  // namespace
}  // namespace sluice::harness::checkpoint_test
