// SPDX-License-Identifier: Apache-2.0
// sluice bench as a process: the results file's schema, models, checkpoints, and wrong results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "harness/results.hpp"
#include "math/float_types.hpp"
#include "process.hpp"
#include "results_file.hpp"
#include "sluice/sluice.hpp"

namespace sluice::tests {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

enum class Kind { kText, kTextOrNull, kNumber, kNumberOrNull, kCount, kFlag };

struct Field {
  const char* name;
  Kind kind;
};

// design: "meta holds …", "a row is one shape against one baseline: …".
constexpr Field kMetaFields[] = {
    {"device", Kind::kText},
    {"max_simd", Kind::kTextOrNull},
    {"driver", Kind::kTextOrNull},
    {"cuda", Kind::kTextOrNull},
    {"compiler", Kind::kText},
    {"commit", Kind::kText},
    {"dirty", Kind::kFlag},
    {"fingerprints", Kind::kText},
    {"date", Kind::kText},
    {"command", Kind::kText},
    {"read_tbps", Kind::kNumberOrNull},
    {"copy_tbps", Kind::kNumberOrNull},
    {"gemm_tflops", Kind::kNumberOrNull},
    {"mma_sync_tflops", Kind::kNumberOrNull},
    {"fma_gflops", Kind::kNumberOrNull},
    {"bf16_gflops", Kind::kNumberOrNull},
    {"clocks", Kind::kText},
};
constexpr Field kRowFields[] = {
    {"op", Kind::kText},
    {"pass", Kind::kText},
    {"model", Kind::kTextOrNull},
    {"m", Kind::kCount},
    {"d", Kind::kCount},
    {"h", Kind::kCount},
    {"dtype", Kind::kText},
    {"gate", Kind::kText},
    {"layout", Kind::kText},
    {"variant", Kind::kText},
    {"us", Kind::kNumber},
    {"us_p10", Kind::kNumber},
    {"us_p90", Kind::kNumber},
    {"tflops", Kind::kNumber},
    {"gbps", Kind::kNumber},
    {"roof_fraction", Kind::kNumberOrNull},
    {"read_share", Kind::kNumberOrNull},
    {"fma_share", Kind::kNumberOrNull},
    {"baseline", Kind::kTextOrNull},
    {"baseline_us", Kind::kNumberOrNull},
    {"ratio", Kind::kNumberOrNull},
    {"extra_bytes", Kind::kCount},
    {"peak_bytes", Kind::kCount},
    {"rel_err", Kind::kNumberOrNull},
    {"config", Kind::kText},
    {"case", Kind::kText},
    {"kernels", Kind::kText},
    {"threads", Kind::kCount},
    {"tp", Kind::kCount},
    {"baseline_extra_bytes", Kind::kNumberOrNull},
};

bool is_kind(const json& value, Kind kind) {
  switch (kind) {
    case Kind::kText:
      return value.is_string();
    case Kind::kTextOrNull:
      return value.is_string() || value.is_null();
    case Kind::kNumber:
      return value.is_number() && std::isfinite(value.get<double>()) && value >= 0;
    case Kind::kNumberOrNull:
      return value.is_null() || is_kind(value, Kind::kNumber);
    case Kind::kCount:
      return value.is_number_integer() && value >= 0;
    case Kind::kFlag:
      return value.is_boolean();
  }
  return false;
}

template <std::size_t n>
void expect_fields(const json& object, const Field (&fields)[n]) {
  // Rows of a training step name its policy too.
  EXPECT_EQ(object.size(), n + object.count("policy")) << object.dump();
  for (const Field& field : fields) {
    ASSERT_TRUE(object.contains(field.name)) << field.name;
    EXPECT_TRUE(is_kind(object[field.name], field.kind)) << field.name << object[field.name];
  }
}

// Of `count` numbers of a file, each rounded, times the right value.
double rounding(int count, double value) { return 1.01 * count * harness::kRounding * value; }

// ratio, tflops and the rest must follow from the other fields.
void expect_consistent(const json& row, const json& meta) {
  const double us = row["us"];
  EXPECT_LE(row["us_p10"], us);
  EXPECT_GE(row["us_p90"], us);
  const double flops =
      6.0 * row["m"].get<double>() * row["d"].get<double>() * row["h"].get<double>();
  const double tflops = flops / us * 1e-6;
  EXPECT_NEAR(row["tflops"], tflops, rounding(2, tflops));
  if (!row["baseline"].is_null()) {
    const double ratio = row["baseline_us"].get<double>() / us;
    EXPECT_NEAR(row["ratio"], ratio, rounding(3, ratio));
  }
  if (meta["read_tbps"].is_null()) {  // --no-ceilings
    for (const char* share : {"roof_fraction", "read_share", "fma_share"}) {
      EXPECT_TRUE(row[share].is_null()) << share;
    }
    return;
  }
  const double bytes = row["gbps"].get<double>() * us * 1e3;
  const bool bf16 = row["config"] == "mlp=avx512_bf16";
  const double gflops = meta[bf16 ? "bf16_gflops" : "fma_gflops"];
  const double floor =
      std::max(bytes / meta["read_tbps"].get<double>() * 1e-6, flops / gflops * 1e-3);
  // By us and the ceiling, which the bytes are made of gbps and us for.
  EXPECT_NEAR(row["roof_fraction"], floor / us, rounding(5, floor / us));
}

void expect_results(const json& results) {
  expect_fields(results["meta"], kMetaFields);
  for (const json& row : results["rows"]) expect_fields(row, kRowFields);
}

TEST(Bench, WritesTheSchemaAndNothingOfThisMachine) {
  const Outcome bench = sluice({"bench", "4x64x96", "9x32x48:fp16:gelu_tanh:concat", "--quick",
                                "--device", "cpu", "--json", "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json results = read_results(bench.out);
  expect_results(results);
  ASSERT_EQ(results["rows"].size(), 2U);
  for (const json& row : results["rows"]) expect_consistent(row, results["meta"]);
  const json& row = results["rows"][1];
  EXPECT_EQ(row["op"], "mlp");
  EXPECT_EQ(row["pass"], "fwd");
  EXPECT_EQ(row["m"], 9);
  EXPECT_EQ(row["d"], 32);
  EXPECT_EQ(row["h"], 48);
  EXPECT_EQ(row["dtype"], "fp16");
  EXPECT_EQ(row["gate"], "gelu_tanh");
  EXPECT_EQ(row["layout"], "concat");
  EXPECT_EQ(row["baseline"], "own_unfused");
  EXPECT_TRUE(row["model"].is_null());
  // g and u in one buffer, and h, of two bytes each, are the least the unfused path needs.
  EXPECT_GE(row["baseline_extra_bytes"], 3 * 9 * 48 * 2);
  EXPECT_EQ(row["peak_bytes"], (9 * 32 * 2 + 3 * 32 * 48) * 2 + row["extra_bytes"].get<int>());
  EXPECT_GT(row["rel_err"], 0);
  EXPECT_EQ(results["meta"]["command"],
            "sluice bench 4x64x96 9x32x48:fp16:gelu_tanh:concat --quick --device cpu --json -");

  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  EXPECT_THAT(bench.out, Not(HasSubstr(host.data())));
  EXPECT_THAT(bench.out, Not(HasSubstr(std::getenv("SLUICE_TEST_SOURCES"))));
}

TEST(Bench, TableAndFileTogether) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  const Outcome bench = sluice({"bench", "4x64x96", "--quick", "--device", "cpu", "--variant",
                                "cpu.reference", "--json", file});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("ceilings: read "));
  EXPECT_THAT(bench.out, HasSubstr("own_unfused"));
  EXPECT_THAT(bench.out, HasSubstr("cpu.reference"));
  const json results = read_results(read_file(file));
  expect_results(results);
  EXPECT_EQ(results["rows"][0]["config"], "mlp=fp64");
  // Folders of this machine stay out; one inside the tree may be named.
  EXPECT_THAT(results["meta"]["command"].get<std::string>(), Not(HasSubstr(" /")));
}

// A list of ranges, little time for each, one rival by name.
TEST(Bench, SweepsOverTokensBesideOneBaseline) {
  const Folder folder;
  const std::string list = folder.write("list.txt", "1-3x64x96  # three\n7x32x48\n");
  const Outcome bench = sluice({"bench", "--file", list, "--milliseconds", "2", "--no-ceilings",
                                "--baseline", "own_unfused", "--device", "cpu", "--json", "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json results = read_results(bench.out);
  EXPECT_TRUE(results["meta"]["read_tbps"].is_null());
  std::vector<int> tokens;
  std::set<std::pair<int, std::string>> checked;
  for (const json& row : results["rows"]) {
    EXPECT_EQ(row["baseline"], "own_unfused");
    tokens.push_back(row["m"]);
    // The first of each shape and config is checked; M = 1 may have a config of its own.
    EXPECT_EQ(!row["rel_err"].is_null(), checked.emplace(row["d"], row["config"]).second);
  }
  EXPECT_EQ(tokens, (std::vector<int>{1, 2, 3, 7}));
  const Outcome other = sluice({"bench", "4x64x96", "--milliseconds", "2", "--no-ceilings",
                                "--baseline", "cublaslt_chain", "--device", "cpu", "--json", "-"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_TRUE(read_results(other.out)["rows"][0]["baseline"].is_null());
  EXPECT_THAT(other.err, HasSubstr("no case has the baseline cublaslt_chain on this device"));
  EXPECT_EQ(sluice({"bench", "4x64x96", "--baseline", "quack", "--device", "cpu"}).code, 2);
  EXPECT_EQ(sluice({"bench", "4x64x96", "--baseline", "nobody", "--device", "cpu"}).code, 2);
  const std::string backwards = folder.write("backwards.txt", "3-1x64x96\n");
  EXPECT_EQ(sluice({"bench", "--file", backwards, "--device", "cpu"}).code, 2);
}

TEST(Bench, AFileKeepsWhatWasMeasuredBeforeAnError) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  const Outcome bench = sluice({"bench", "4x64x96", "0x64x96", "9x32x48", "--quick",
                                "--no-ceilings", "--device", "cpu", "--json", file});
  EXPECT_EQ(bench.code, 2);
  const json results = read_results(read_file(file));
  expect_results(results);
  EXPECT_EQ(results["rows"].back()["d"], 64);
}

TEST(Bench, ARunWithoutARowLeavesTheOldFile) {
  const Folder folder;
  const std::string old = folder.write("old.json", "old");
  const std::string none = folder.path("none.json");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"4x64x96", "--variant", "nobody"},
        {"0x64x96"},
        {"--checkpoint", "/nowhere.safetensors"},
        {"--file", "/nowhere.txt"},
        {"--model", "nobody"}}) {
    for (const std::string& file : {old, none}) {
      std::vector<std::string> all = {"bench",  "--quick", "--no-ceilings", "--device", "cpu",
                                      "--json", file};
      all.insert(all.end(), words.begin(), words.end());
      EXPECT_NE(sluice(all).code, 0) << words.back();
    }
    EXPECT_EQ(read_file(old), "old") << words.back();
    EXPECT_NE(access(none.c_str(), F_OK), 0) << words.back();
  }
}

TEST(Bench, RowsBeforeAnErrorAreTold) {
  const Outcome table =
      sluice({"bench", "4x64x96", "0x64x96", "--quick", "--no-ceilings", "--device", "cpu"});
  EXPECT_EQ(table.code, 2);
  EXPECT_THAT(table.out, HasSubstr("own_unfused"));
  const Outcome bench = sluice({"bench", "4x64x96", "0x64x96", "--quick", "--no-ceilings",
                                "--device", "cpu", "--json", "-"});
  EXPECT_EQ(bench.code, 2);
  EXPECT_EQ(read_results(bench.out)["rows"][0]["m"], 4);
  const Outcome full = sluice(
      {"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu", "--json", "/dev/full"});
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.out, HasSubstr("own_unfused"));
  EXPECT_THAT(full.err, HasSubstr("/dev/full: cannot be written: No space left on device"));
}

TEST(Bench, ModelsAndTensorParallel) {
  const Outcome bench =
      sluice({"bench", "--model", "qwen2.5-0.5b,gpt-oss-20b", "--tp", "2", "--tokens", "1",
              "--quick", "--no-ceilings", "--device", "cpu", "--json", "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json results = read_results(bench.out);
  expect_results(results);
  const json& qwen = results["rows"].front();
  EXPECT_EQ(qwen["model"], "qwen2.5-0.5b");
  EXPECT_EQ(qwen["tp"], 2);
  EXPECT_EQ(qwen["h"], 4864 / 2);
  const json& oss = results["rows"].back();
  EXPECT_EQ(oss["gate"], "clamped_swiglu");
  EXPECT_EQ(oss["layout"], "interleaved1");
}

TEST(Bench, Passes) {
  for (const char* pass : {"bwd", "full"}) {
    const Outcome bench = sluice({"bench", "4x64x96", "--pass", pass, "--quick", "--no-ceilings",
                                  "--device", "cpu", "--json", "-"});
    ASSERT_EQ(bench.code, 0) << bench.err;
    const json results = read_results(bench.out);
    expect_results(results);
    EXPECT_EQ(results["rows"][0]["op"], "mlp_train");
    EXPECT_EQ(results["rows"][0]["pass"], pass);
    // Backward is two products for each of the forward's three.
    const double forward = 6.0 * 4 * 64 * 96;
    const double work = std::string(pass) == "bwd" ? 2 * forward : 3 * forward;
    const double tflops = work / results["rows"][0]["us"].get<double>() * 1e-6;
    EXPECT_NEAR(results["rows"][0]["tflops"], tflops, rounding(2, tflops));
  }
  for (const auto& [text, code] : {std::pair{"4x64x96:mlp_grad:save_dg_du", 0},
                                   std::pair{"4x64x96:mlp_grad:save_dg_du:in_place", 2}}) {
    EXPECT_EQ(
        sluice({"bench", text, "--pass", "full", "--quick", "--no-ceilings", "--device", "cpu"})
            .code,
        code)
        << text;
  }
  EXPECT_EQ(sluice({"bench", "4x64x96:down", "--pass", "bwd", "--device", "cpu"}).code, 2);
  EXPECT_EQ(sluice({"bench", "4x64x96", "--pass", "sideways"}).code, 2);
  const Outcome decode = sluice(
      {"bench", "4x64x96", "--pass", "decode", "--quick", "--no-ceilings", "--device", "cpu"});
  EXPECT_EQ(decode.code, 3);
  EXPECT_THAT(decode.err, HasSubstr("pass decode: wanted a GPU"));
}

TEST(Bench, OperatorsWithoutABaselineHaveNullThere) {
  const Outcome bench = sluice(
      {"bench", "4x64x96:gate_mul", "--quick", "--no-ceilings", "--device", "cpu", "--json", "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json row = read_results(bench.out)["rows"][0];
  EXPECT_TRUE(row["baseline"].is_null());
  EXPECT_TRUE(row["ratio"].is_null());
  EXPECT_TRUE(row["baseline_extra_bytes"].is_null());
}

TEST(Bench, WrongWordsAreTwo) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"bench"},
        {"bench", "4x64"},
        {"bench", "0x64x96", "--device", "cpu", "--quick", "--no-ceilings"},
        {"bench", "4x64x96", "--checkpoint", "none.safetensors"},
        {"bench", "4x64x96", "--device", "cpu", "--json", "/nowhere/at/all.json"},
        {"bench", "--model", "nobody"},
        {"bench", "--model", "phi-4", "--tp", "8"},
        {"bench", "4x64x96", "--tp", "1", "--device", "cpu", "--quick", "--no-ceilings"},
        {"bench", "--checkpoint", "/nowhere.safetensors", "--device", "cpu", "--quick",
         "--no-ceilings"}}) {
    const Outcome bench = sluice(words);
    EXPECT_EQ(bench.code, 2) << bench.err;
    EXPECT_THAT(bench.out, IsEmpty());
    EXPECT_EQ(lines_of(bench.err).size(), 1U) << bench.err;
  }
  EXPECT_EQ(sluice({"bench", "4x64x96", "--device", "cuda:99"}).code, 3);
  EXPECT_EQ(sluice({"bench", "4x64x96:fp64", "--variant", "cpu.simd", "--device", "cpu", "--quick",
                    "--no-ceilings"})
                .code,
            3);
}

TEST(Bench, AWrongResultIsOneAndNotTimed) {
  const char* library = std::getenv("SLUICE_TEST_SPOILED_RUN");
  if (library == nullptr || library[0] == '\0') GTEST_SKIP() << "not under a sanitizer";
  const Outcome spoiled =
      sluice({"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu", "--json", "-"},
             {std::string("LD_PRELOAD=") + library});
  EXPECT_EQ(spoiled.code, 1);
  EXPECT_TRUE(read_results(spoiled.out)["rows"].empty());
  EXPECT_THAT(spoiled.err, HasSubstr("a result is wrong"));
  // A kernel that failed at the first M is not timed at the next.
  const Folder folder;
  const std::string list = folder.write("list.txt", "4-5x64x96\n");
  const Outcome sweep = sluice({"bench", "--file", list, "--milliseconds", "2", "--no-ceilings",
                                "--device", "cpu", "--json", "-"},
                               {std::string("LD_PRELOAD=") + library});
  EXPECT_EQ(sweep.code, 1);
  EXPECT_TRUE(read_results(sweep.out)["rows"].empty()) << sweep.out;
}

// --- checkpoints ---------------------------------------------------------------------------------

constexpr std::int64_t kD = 32;
constexpr std::int64_t kH = 48;
constexpr std::int64_t kVocabulary = 70;

// A Llama-style file of two layers with normal-random bf16 tensors, those of the layers times
// `scale`.
std::string tiny_checkpoint(double scale = 1) {
  json header;
  std::string data;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    const std::size_t begin = data.size();
    for (std::int64_t i = 0; i < count; ++i) {
      char element[2];
      const double factor = name.find("mlp") == std::string::npos ? 1 : scale;
      math::store(element, DType::kBF16, factor * normal(random) / 8);
      data.append(element, 2);
    }
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  };
  add("model.embed_tokens.weight", {kVocabulary, kD});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "mlp.gate_proj.weight", {kH, kD});
    add(layer + "mlp.up_proj.weight", {kH, kD});
    add(layer + "mlp.down_proj.weight", {kD, kH});
    add(layer + "post_attention_layernorm.weight", {kD});
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string file(8, '\0');
  const std::uint64_t size = text.size();
  std::memcpy(file.data(), &size, 8);
  return file + text + data;
}

TEST(Checkpoint, EveryLayerIsCheckedAndTimed) {
  const Folder folder;
  const std::string file = folder.write("tiny.safetensors", tiny_checkpoint());
  const Outcome bench = sluice({"bench", "--checkpoint", file, "--tokens", "1,5", "--quick",
                                "--no-ceilings", "--device", "cpu", "--json", "-", "--quiet"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json results = read_results(bench.out);
  expect_results(results);
  ASSERT_EQ(results["rows"].size(), 2U);
  EXPECT_EQ(results["rows"][1]["m"], 5);
  EXPECT_EQ(results["rows"][1]["d"], kD);
  EXPECT_EQ(results["rows"][1]["h"], kH);
  EXPECT_TRUE(results["rows"][1]["model"].is_string());
  ASSERT_EQ(results["checks"].size(), 4U);
  for (const json& check : results["checks"]) {
    EXPECT_TRUE(check["passed"].get<bool>());
    EXPECT_GE(check["compared"], kD);
    EXPECT_GT(check["rel_err"], 0);
    EXPECT_GT(check["unfused_rel_err"], 0);
    EXPECT_LE(check["worst_bound_share"], 1);
  }
}

TEST(Checkpoint, NoFileOfItIsReplaced) {
  const Folder folder;
  const std::string weights = tiny_checkpoint();
  const std::string file = folder.write("model.safetensors", weights);
  const std::string config = folder.write("config.json", "{}");
  for (const std::string& out : {file, config}) {
    const Outcome bench = sluice({"bench", "--checkpoint", folder.path(""), "--tokens", "1",
                                  "--quick", "--no-ceilings", "--device", "cpu", "--json", out});
    EXPECT_EQ(bench.code, 2);
    EXPECT_THAT(bench.err, HasSubstr("is read, and would be replaced"));
  }
  EXPECT_EQ(read_file(file), weights);
  EXPECT_EQ(read_file(config), "{}");
}

TEST(Checkpoint, WeightsOfNaNProveNothing) {
  const Folder folder;
  const std::string file =
      folder.write("nan.safetensors", tiny_checkpoint(std::numeric_limits<double>::quiet_NaN()));
  const Outcome bench = sluice({"bench", "--checkpoint", file, "--tokens", "4", "--quick",
                                "--no-ceilings", "--device", "cpu", "--json", "-", "--quiet"});
  EXPECT_EQ(bench.code, 1) << bench.err;
  EXPECT_THAT(bench.err, HasSubstr("MISTRUSTED"));
  const json results = read_results(bench.out);
  EXPECT_TRUE(results["rows"].empty());
  EXPECT_FALSE(results["checks"][0]["passed"].get<bool>());
}

TEST(Checkpoint, FirstLayersOnly) {
  const Folder folder;
  const std::string file = folder.write("tiny.safetensors", tiny_checkpoint());
  const Outcome bench = sluice({"bench", "--checkpoint", file, "--tokens", "3", "--layers", "1",
                                "--quick", "--no-ceilings", "--device", "cpu", "--json", "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(read_results(bench.out)["checks"].size(), 1U);
  EXPECT_THAT(bench.err, HasSubstr("silu assumed"));
}

TEST(Checkpoint, AWrongLayerIsOne) {
  const char* library = std::getenv("SLUICE_TEST_SPOILED_RUN");
  if (library == nullptr || library[0] == '\0') GTEST_SKIP() << "not under a sanitizer";
  const Folder folder;
  const std::string file = folder.write("tiny.safetensors", tiny_checkpoint());
  const Outcome bench = sluice({"bench", "--checkpoint", file, "--tokens", "2", "--quick",
                                "--no-ceilings", "--device", "cpu", "--json", "-"},
                               {std::string("LD_PRELOAD=") + library});
  EXPECT_EQ(bench.code, 1);
  const json results = read_results(bench.out);
  EXPECT_TRUE(results["rows"].empty());
  EXPECT_FALSE(results["checks"][0]["passed"].get<bool>());
  EXPECT_THAT(bench.err, HasSubstr("layer 0"));
}

TEST(Checkpoint, ABrokenFileIsTwo) {
  const Folder folder;
  const std::string whole = tiny_checkpoint();
  const std::string file = folder.write("cut.safetensors", whole.substr(0, whole.size() - 2));
  const Outcome bench =
      sluice({"bench", "--checkpoint", file, "--quick", "--no-ceilings", "--device", "cpu"});
  EXPECT_EQ(bench.code, 2);
  EXPECT_THAT(bench.err, HasSubstr("cut.safetensors"));
}

}  // namespace
}  // namespace sluice::tests
