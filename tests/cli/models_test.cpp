// SPDX-License-Identifier: Apache-2.0
// The model presets: every entry fits itself, and a wrong file is refused with its reason.
#include "harness/models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/case.hpp"
#include "harness/embedded.hpp"

namespace sluice::harness {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Models, TheEmbeddedFileParses) {
  const auto parsed = parse_models(embedded_models_json());
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->size(), models().size());
}

TEST(Models, EveryEntryFitsItself) {
  std::set<std::string> names;
  for (const Model& m : models()) {
    EXPECT_TRUE(check_model(m)) << m.name;
    EXPECT_TRUE(names.insert(m.name).second) << m.name << " twice";
    // Kernels and tensor maps want rows of a multiple of 16 bytes.
    EXPECT_EQ(m.d % 8, 0) << m.name;
    EXPECT_EQ(m.h % 8, 0) << m.name;
    // Every size that fits is listed.
    for (const int tp : {1, 2, 4, 8}) {
      const bool fits = m.heads % tp == 0 && m.h % (8 * tp) == 0 &&
                        (m.kv_heads % tp == 0 || tp % m.kv_heads == 0);
      EXPECT_EQ(std::find(m.tp.begin(), m.tp.end(), tp) != m.tp.end(), fits) << m.name << tp;
    }
    const auto c = parse_case("1x" + std::to_string(m.d) + "x" + std::to_string(m.h) + ":" +
                              m.gate + ":" + m.layout + (m.bias ? ":bias" : ""));
    EXPECT_TRUE(c) << m.name << ": " << c.error().message;
  }
}

// What public configs have in common, whatever the model.
TEST(Models, AttentionFitsTheModel) {
  for (const Model& m : models()) {
    const std::int64_t attention = std::int64_t{m.heads} * m.head_size;
    EXPECT_GE(3 * attention, m.d) << m.name;
    EXPECT_LE(attention, 2 * m.d) << m.name;
    EXPECT_GE(m.h, m.d) << m.name;
    EXPECT_THAT((std::set<int>{64, 96, 128, 256}), Contains(m.head_size)) << m.name;
  }
}

TEST(Models, ParametersOfTheMlpsAreTheModelsSize) {
  // Share of the named size that the MLPs hold: the rest is attention and embeddings.
  for (const Model& m : models()) {
    const std::size_t dash = m.name.rfind('-');
    const std::string size = m.name.substr(dash + 1);
    const char unit = size.back();
    if (size.front() > '9' || (unit != 'b' && unit != 'm')) continue;  // phi-4, phi-3-medium
    const double named = std::stod(size) * (unit == 'b' ? 1e9 : 1e6);
    const double held =
        3.0 * static_cast<double>(m.d) * static_cast<double>(m.h) * m.layers * m.experts;
    EXPECT_GT(held, 0.2 * named) << m.name;
    EXPECT_LT(held, 1.1 * named) << m.name;
  }
}

TEST(Models, AreFoundInAnyCase) {
  EXPECT_EQ(find_model("Llama-3.1-405B").value().h, 53248);
  const auto unknown = find_model("qwen9-1b");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(unknown.error().message, HasSubstr("qwen3-32b"));
  EXPECT_THAT(find_model("x").error().message, HasSubstr("sluice list models"));
}

TEST(Models, KvTokenBytes) {
  Model m = models().front();
  m.layers = 3;
  m.kv_heads = 2;
  m.head_size = 64;
  EXPECT_EQ(m.kv_token_bytes(DType::kBF16, 1), 2 * 3 * 2 * 64 * 2);
  EXPECT_EQ(m.kv_token_bytes(DType::kF32, 2), 2 * 3 * 1 * 64 * 4);
  // More GPUs than heads: each keeps a copy of one head.
  EXPECT_EQ(m.kv_token_bytes(DType::kBF16, 8), 2 * 3 * 1 * 64 * 2);
}

TEST(Models, ActivationBytes) {
  Model m = models().front();
  m.d = 10;
  m.h = 24;
  const ActivationBytes whole = activation_bytes(m, 7, DType::kF32, 1);
  EXPECT_EQ(whole.unfused, 7 * (10 + 48 + 24 + 10) * 4);
  EXPECT_EQ(whole.fused, 7 * (10 + 24 + 10) * 4);
  EXPECT_EQ(whole.saved(), 7 * 48 * 4);
  m.experts_per_token = 4;
  EXPECT_EQ(activation_bytes(m, 7, DType::kBF16, 2).saved(), 4 * 7 * 24 * 2);
}

// One wrong field at a time; the message names the model and the field.
TEST(Models, WrongFilesAreRefused) {
  const auto file = nlohmann::json::parse(embedded_models_json());
  const auto message = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json broken = {{"models", {file["models"][0]}}};
    if (value.is_discarded()) {
      broken["models"][0].erase(field);
    } else {
      broken["models"][0][field] = value;
    }
    const auto parsed = parse_models(broken.dump());
    EXPECT_FALSE(parsed) << field;
    if (parsed) return std::string();
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    return std::string(parsed.error().message);
  };
  for (const char* field : {"d", "h", "layers", "heads", "kv_heads", "head_size", "experts"}) {
    EXPECT_THAT(message(field, 0), HasSubstr(std::string("llama-3.1-8b: ") + field + ": got 0"));
  }
  EXPECT_THAT(message("name", "Big"), HasSubstr("lower-case"));
  EXPECT_THAT(message("source", "nowhere"), HasSubstr("owner/repository"));
  EXPECT_THAT(message("kv_heads", 5), HasSubstr("divisor of heads"));
  EXPECT_THAT(message("tp", {1, 3}), HasSubstr("tp: got 3"));
  EXPECT_THAT(message("tp", {2}), HasSubstr("tp"));
  EXPECT_THAT(message("experts_per_token", 2), HasSubstr("experts_per_token: got 2"));
  EXPECT_THAT(message("d", "wide"), HasSubstr("type must be number"));
  EXPECT_THAT(message("gate", nlohmann::json(nlohmann::json::value_t::discarded)),
              HasSubstr("gate"));
  EXPECT_FALSE(parse_models("{"));
  EXPECT_FALSE(parse_models("{}"));
}

}  // namespace
}  // namespace sluice::harness
