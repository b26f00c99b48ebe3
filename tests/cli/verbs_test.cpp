// SPDX-License-Identifier: Apache-2.0
// Every verb but bench and report, as a process: output, exit codes, error texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/case.hpp"
#include "harness/models.hpp"
#include "process.hpp"
#include "results_file.hpp"
#include "sluice/sluice.hpp"

namespace sluice::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// One line on standard error, nothing on standard output.
void expect_error(const Outcome& outcome, int code, const std::string& text) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr(text));
  EXPECT_THAT(outcome.err, StartsWith("sluice: "));
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
}

TEST(Program, HelpNamesTheVerbs) {
  const Outcome help = sluice({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* verb :
       {"info", "list", "explain", "verify", "bench", "tune", "memory", "pack", "report"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + verb + " "));
    const Outcome own = sluice({verb, "--help"});
    EXPECT_EQ(own.code, 0) << verb;
    EXPECT_THAT(own.out, HasSubstr("--help")) << verb;
  }
}

TEST(Program, VersionIsTheLibrarys) {
  const Outcome version = sluice({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, std::string("sluice ") + SLUICE_VERSION + "\n");
}

TEST(Program, UsageErrorsAreTwo) {
  EXPECT_EQ(sluice({}).code, 2);
  expect_error(sluice({"purr"}), 2, "no verb \"purr\"");
}

TEST(Info, NamesDeviceTargetsAndVariants) {
  const Outcome info = sluice({"info"});
  EXPECT_EQ(info.code, 0);
  EXPECT_THAT(info.out, HasSubstr(std::string("sluice  ") + SLUICE_VERSION));
  EXPECT_THAT(info.out, HasSubstr(cpu_device().name));
  EXPECT_THAT(info.out, HasSubstr("SIMD emulated"));
  for (const std::string& name : variant_names(Backend::kCpu)) {
    EXPECT_THAT(info.out, HasSubstr(name));
  }
}

TEST(Info, JsonDescribesTheCpu) {
  const Outcome info = sluice({"info", "--json", "-"});
  ASSERT_EQ(info.code, 0);
  const auto said = nlohmann::json::parse(info.out);
  EXPECT_EQ(said["version"], SLUICE_VERSION);
  const auto& cpu = said["devices"][0];
  EXPECT_EQ(cpu["backend"], "cpu");
  EXPECT_EQ(cpu["name"], cpu_device().name);
  EXPECT_EQ(cpu["threads"], cpu_device().threads);
  EXPECT_EQ(cpu["slow_bf16_products"], cpu_device().slow_bf16_products);
  EXPECT_EQ(cpu["variants"], variant_names(Backend::kCpu));
}

TEST(Info, TheCpuMayBeHeldToASimdTarget) {
  const auto targets = [](const Outcome& info) {
    return nlohmann::json::parse(info.out)["devices"][0]["simd_targets"];
  };
  const auto emulated = nlohmann::json::array({"emulated"});
  EXPECT_EQ(targets(sluice({"info", "--json", "-", "--max-simd", "emulated"})), emulated);
  EXPECT_EQ(targets(sluice({"info", "--json", "-"}, {"SLUICE_MAX_SIMD=emulated"})), emulated);
  // A target above all that the CPU has, and none.
  const auto all = targets(sluice({"info", "--json", "-"}));
  EXPECT_EQ(targets(sluice({"info", "--json", "-", "--max-simd", "avx512_bf16"})), all);
  EXPECT_EQ(targets(sluice({"info", "--json", "-"}, {"SLUICE_MAX_SIMD="})), all);
  expect_error(sluice({"info", "--max-simd", "sse9"}), 2,
               "SIMD target: got \"sse9\", wanted emulated, avx2, avx512 or avx512_bf16");
}

TEST(Explain, PlansForADeviceThatAFileDescribes) {
  const std::string a100 =
      std::string(std::getenv("SLUICE_TEST_SOURCES")) + "/data/devices/a100.json";
  const Outcome explained = sluice({"explain", "4096x4096x14336", "--device", a100});
  if (variant_names(Backend::kCuda).empty()) {
    EXPECT_EQ(explained.code, 3);
    EXPECT_THAT(explained.err, HasSubstr("this Sluice was built without the cuda backend"));
  } else {
    EXPECT_EQ(explained.code, 0) << explained.err;
    EXPECT_THAT(explained.out, HasSubstr("device     cuda: NVIDIA A100-SXM4-80GB\n"));
    EXPECT_THAT(explained.out, HasSubstr("step 1     gate_up: cuda.sm80_gemm"));
    const std::string h200 =
        std::string(std::getenv("SLUICE_TEST_SOURCES")) + "/data/devices/h200.json";
    const Outcome held =
        sluice({"explain", "4x64x96", "--device", h200, "--max-capability", "8.0"});
    EXPECT_THAT(held.out, HasSubstr("step 1     gate_up: cuda.sm80_decode")) << held.err;
  }
  EXPECT_EQ(sluice({"explain", "4x64x96", "--max-capability", "8.1"}).code, 2);
  expect_error(sluice({"explain", "4x64x96", "--device", "none.json"}), 2,
               "none.json: cannot be opened");
  // Nothing runs there.
  expect_error(sluice({"verify", "4x64x96", "--device", a100}), 2, "device: got \"");
  const Folder folder;
  std::string text = read_file(a100);
  const std::string field = "cublaslt_version";
  text.replace(text.find(field), field.size(), "cublaslt_versoin");
  expect_error(sluice({"explain", "4x64x96", "--device", folder.write("typo.json", text)}), 2,
               "device: cublaslt_versoin: wanted a field that is known");
}

TEST(Explain, TheCpuMayBeHeldToASimdTarget) {
  const std::string held = "step 1     mlp: cpu.simd emulated\n";
  EXPECT_THAT(sluice({"explain", "4x64x96", "--device", "cpu", "--max-simd", "emulated"}).out,
              HasSubstr(held));
  EXPECT_THAT(sluice({"explain", "4x64x96", "--device", "cpu"}, {"SLUICE_MAX_SIMD=emulated"}).out,
              HasSubstr(held));
  for (const char* verb : {"explain", "verify", "bench", "tune"}) {
    expect_error(sluice({verb, "4x64x96", "--device", "cpu"}, {"SLUICE_MAX_SIMD=sse9"}), 2, "sse9");
  }
}

// An option of the other kind of device would change nothing.
TEST(Options, OfTheOtherKindOfDeviceAreTwo) {
  for (const char* verb : {"explain", "verify", "bench", "tune"}) {
    expect_error(sluice({verb, "4x64x96", "--device", "cpu", "--max-capability", "8.0"}), 2,
                 "max-capability: is read only with a GPU; the device is a CPU");
  }
  const std::string a100 =
      std::string(std::getenv("SLUICE_TEST_SOURCES")) + "/data/devices/a100.json";
  expect_error(sluice({"explain", "4x64x96", "--device", a100, "--max-simd", "avx2"}), 2,
               "max-simd: is read only with a CPU; the device is a GPU");
  expect_error(sluice({"explain", "4x64x96", "--device", a100, "--threads", "1"}), 2,
               "threads: is read only with a CPU; the device is a GPU");
  // The environment is of all calls.
  EXPECT_THAT(sluice({"explain", "4x64x96", "--device", a100}, {"SLUICE_MAX_SIMD=avx2"}).err,
              Not(HasSubstr("max-simd")));
}

TEST(Options, ALongRangeIsToldAsSuch) {
  expect_error(sluice({"bench", "--model", "phi-4", "--tokens", "1-65537"}), 2,
               "tokens: got 1-65537, a range of 65537 numbers; wanted at most 65536");
  expect_error(sluice({"bench", "--model", "phi-4", "--tokens", "1-"}), 2,
               "wanted an integer of at least 1, or a range such as 1-64");
}

TEST(List, ModelsGatesVariantsTokens) {
  const Outcome models = sluice({"list", "models"});
  EXPECT_EQ(models.code, 0);
  EXPECT_EQ(lines_of(models.out).size(), harness::models().size() + 1);
  EXPECT_THAT(models.out, HasSubstr("llama-3.1-405b"));
  const Outcome gates = sluice({"list", "gates"});
  EXPECT_EQ(gates.code, 0);
  for (int i = 0; i < kActivationCount; ++i) {
    EXPECT_THAT(gates.out, HasSubstr(to_string(static_cast<Activation>(i))));
  }
  EXPECT_THAT(gates.out, HasSubstr("clamped_swiglu"));
  const Outcome variants = sluice({"list", "variants"});
  EXPECT_EQ(variants.code, 0);
  EXPECT_THAT(variants.out, HasSubstr("cpu.reference"));
  const Outcome tokens = sluice({"list", "tokens"});
  EXPECT_EQ(tokens.code, 0);
  EXPECT_EQ(lines_of(tokens.out).size(), harness::token_help().size() + 1);
}

// What the parser of options refuses is told as all else is.
TEST(Options, WrongOnesAreTwoAndNamed) {
  expect_error(sluice({"list"}), 2, "list: wanted models, gates, variants or tokens");
  expect_error(sluice({"list", "colours"}), 2, "colours");
  expect_error(sluice({}), 2, "wanted a verb");
  expect_error(sluice({"--quiet"}), 2, "wanted a verb");
  expect_error(sluice({"explain"}), 2, "case is required");
  expect_error(sluice({"explain", "4x64x96", "--purple"}), 2, "--purple");
  expect_error(sluice({"verify", "4x64x96", "--threads", "-1"}), 2,
               "--threads: got -1, wanted an integer of at least 0");
  for (const std::string seconds : {"0", "-1", "inf", "nan", "1s", "abc", ""}) {
    expect_error(sluice({"tune", "4x64x96", "--seconds", seconds}), 2,
                 "--seconds: got " + seconds + ", wanted a number above 0");
  }
  expect_error(sluice({"bench", "4x64x96", "--milliseconds", "-1"}), 2,
               "--milliseconds: got -1, wanted a number of at least 0");
}

TEST(Explain, SaysWhatIsChosenAndWhyNot) {
  const Outcome chosen = sluice({"explain", "4x64x96:fp64", "--device", "cpu"});
  EXPECT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(chosen.out, HasSubstr("chosen     cpu.reference (heuristic)"));
  EXPECT_THAT(chosen.out, HasSubstr("\nrecipe     fp64, obviously right and slow: for checking"));
  EXPECT_THAT(chosen.out, HasSubstr("cpu.simd       refuses"));
  const Outcome forced =
      sluice({"explain", "4x64x96", "--device", "cpu", "--variant", "cpu.reference"});
  EXPECT_EQ(forced.code, 0);
  EXPECT_THAT(forced.out, HasSubstr("chosen     cpu.reference (forced)"));
}

TEST(Explain, ARefusalIsThreeAndStillExplained) {
  const Outcome refused =
      sluice({"explain", "4x64x96:fp64", "--device", "cpu", "--variant", "cpu.simd"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.out, HasSubstr("cpu.simd       refuses"));
  EXPECT_THAT(refused.err, StartsWith("sluice: variant cpu.simd: "));
}

TEST(Explain, WrongWordsAreTwo) {
  expect_error(sluice({"explain", "4x64", "--device", "cpu"}), 2, "4x64");
  expect_error(sluice({"explain", "4x64x96:purple", "--device", "cpu"}), 2, "purple");
  expect_error(sluice({"explain", "4x64x96", "--device", "tpu"}), 2, "device: got \"tpu\"");
  const Outcome variant =
      sluice({"explain", "4x64x96", "--device", "cpu", "--variant", "cpu.magic"});
  EXPECT_EQ(variant.code, 2);
  EXPECT_THAT(variant.err, HasSubstr("variant: got \"cpu.magic\""));
}

TEST(Explain, AMissingDeviceIsThree) {
  expect_error(sluice({"explain", "4x64x96", "--device", "cuda:99"}), 3, "device");
}

TEST(Verify, PassesAndSaysHow) {
  const Outcome one = sluice({"verify", "4x64x96", "--device", "cpu"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, StartsWith("passed 4x64x96: "));
  EXPECT_THAT(one.out, HasSubstr("y: 256 elements within bound"));
  EXPECT_THAT(one.err, IsEmpty());
  const Outcome two = sluice({"verify", "3x16x24:fp16:gelu_tanh", "5x8x16:relu:concat", "--device",
                              "cpu", "--seed", "7", "--threads", "1"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("2 passed, 0 failed, 0 refused"));
  EXPECT_THAT(two.out, HasSubstr("seed=7"));
  EXPECT_THAT(two.out, HasSubstr("1 thread"));
}

TEST(Verify, AllVariantsTakesEach) {
  const Outcome all =
      sluice({"verify", "4x64x96:fp64", "4x64x96", "--all-variants", "--device", "cpu"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("skip 4x64x96:fp64: variant cpu.simd: "));
  EXPECT_THAT(all.out, HasSubstr("passed 4x64x96:fp64: cpu.reference (forced)"));
  EXPECT_THAT(all.out, HasSubstr("passed 4x64x96: cpu.simd (forced)"));
  EXPECT_THAT(all.out, HasSubstr("3 passed, 0 failed, 1 refused"));
}

TEST(Verify, TheEnvironmentForcesUnlessTheOptionDoes) {
  const std::vector<std::string> forced = {"SLUICE_VARIANT=cpu.reference", "SLUICE_DEVICE=cpu"};
  EXPECT_THAT(sluice({"verify", "4x64x96"}, forced).out, HasSubstr("cpu.reference (forced)"));
  EXPECT_THAT(sluice({"verify", "4x64x96", "--variant", "cpu.simd"}, forced).out,
              HasSubstr("cpu.simd (forced)"));
  EXPECT_EQ(sluice({"verify", "4x64x96"}, {"SLUICE_VARIANT=cpu.magic", "SLUICE_DEVICE=cpu"}).code,
            2);
  expect_error(sluice({"verify", "4x64x96"}, {"SLUICE_DEVICE=tpu"}), 2, "tpu");
}

TEST(Verify, ReadsProblemFiles) {
  const Folder folder;
  const std::string file =
      folder.write("problems.txt", "# two of them\n\n  2x8x16 \n3x8x16:fp32 # the second\n");
  const Outcome both = sluice({"verify", "--file", file, "--device", "cpu"});
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("passed 2x8x16: "));
  EXPECT_THAT(both.out, HasSubstr("passed 3x8x16:fp32: "));
  expect_error(sluice({"verify", "--file", folder.path("none.txt")}), 2, "cannot be read");
  expect_error(sluice({"verify", "--file", folder.write("empty.txt", "# nothing\n")}), 2,
               "holds no problem");
  expect_error(sluice({"verify", "--file", folder.write("long.txt", "1-65537x64x96\n")}), 2,
               "long.txt: tokens: got 1-65537, a range of 65537 numbers; wanted at most 65536");
  expect_error(sluice({"verify", "--file", std::getenv("SLUICE_TEST_SOURCES")}), 2,
               ": is a directory");
  expect_error(sluice({"verify"}), 2, "wanted a case or --file");
  expect_error(sluice({"verify", "2x8"}), 2, "2x8");
}

TEST(Verify, AWrongResultIsOne) {
  const char* library = std::getenv("SLUICE_TEST_SPOILED_RUN");
  if (library == nullptr || library[0] == '\0') GTEST_SKIP() << "not under a sanitizer";
  const Outcome spoiled = sluice({"verify", "4x64x96", "2x8x16:gate_up", "--device", "cpu"},
                                 {std::string("LD_PRELOAD=") + library});
  EXPECT_EQ(spoiled.code, 1) << spoiled.err;
  EXPECT_THAT(spoiled.out, HasSubstr("worst at (0, 0)"));
  EXPECT_THAT(spoiled.out, HasSubstr("sluice verify '4x64x96' --variant cpu.simd"));
  EXPECT_THAT(spoiled.out, HasSubstr("1 passed, 1 failed, 0 refused"));
}

TEST(Verify, ByStepPassesAndNamesEach) {
  const Outcome one = sluice({"verify", "4x64x96", "--step", "--device", "cpu"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, StartsWith("passed 4x64x96: cpu.simd, config mlp="));
  EXPECT_THAT(one.out, HasSubstr(", 1 step\n  step 1 mlp by cpu.simd\n    y: 256 elements within"));
  const Outcome all =
      sluice({"verify", "4x64x96:fp64", "4x64x96", "--step", "--all-variants", "--device", "cpu"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("skip 4x64x96:fp64: variant cpu.simd: "));
  EXPECT_THAT(all.out, HasSubstr("step 1 mlp by cpu.reference\n"));
  EXPECT_THAT(all.out, HasSubstr("3 passed, 0 failed, 1 refused"));
}

TEST(Verify, AWrongStepIsOneAndNamed) {
  const char* library = std::getenv("SLUICE_TEST_SPOILED_RUN");
  if (library == nullptr || library[0] == '\0') GTEST_SKIP() << "not under a sanitizer";
  const Outcome spoiled =
      sluice({"verify", "4x64x96", "2x8x16:gate_up", "--step", "--device", "cpu"},
             {std::string("LD_PRELOAD=") + library});
  EXPECT_EQ(spoiled.code, 1) << spoiled.err;
  EXPECT_THAT(spoiled.out, StartsWith("FAILED 4x64x96: cpu.simd, "));
  EXPECT_THAT(spoiled.out, HasSubstr("the first wrong step is 1, mlp by cpu.simd: y at (0, 0)\n"));
  EXPECT_THAT(spoiled.out, HasSubstr("1 passed, 1 failed, 0 refused"));
}

// Where NaN is right, an output that starts as NaN proves nothing of a kernel that does not write.
TEST(Verify, ANaNThatNothingWroteIsOne) {
  const char* library = std::getenv("SLUICE_TEST_SPOILED_RUN");
  if (library == nullptr || library[0] == '\0') GTEST_SKIP() << "not under a sanitizer";
  const std::string special = "200x64x64:down:fill=special";
  const Outcome right = sluice({"verify", special, "--device", "cpu"});
  EXPECT_EQ(right.code, 0) << right.out;
  const Outcome kept = sluice({"verify", special, "--device", "cpu"},
                              {std::string("LD_PRELOAD=") + library, "SLUICE_TEST_KEEP_NAN=1"});
  EXPECT_EQ(kept.code, 1) << kept.out;
  EXPECT_THAT(kept.out, HasSubstr("elements that no run writes: y"));
}

// What README shows, word for word but for the device.
TEST(Readme, Examples) {
  EXPECT_EQ(sluice({"explain", "128x4096x14336:bf16:silu", "--device", "cpu"}).code, 0);
  EXPECT_EQ(sluice({"verify", "33x576x1536:fp16:gelu_tanh:concat", "--device", "cpu"}).code, 0);
  EXPECT_EQ(sluice({"memory", "--model", "llama-3.1-8b"}).code, 0);
}

TEST(Memory, NumbersFollowTheirFormulas) {
  const Outcome memory = sluice({"memory", "--json", "-", "--tp", "2", "--kv-dtype", "fp32"});
  ASSERT_EQ(memory.code, 0) << memory.err;
  const auto said = read_results(memory.out);
  std::size_t chunk = 0;
  std::size_t longest = 0;
  for (const auto& line : said["memory"]) {
    const auto model = harness::find_model(line["model"].get<std::string>());
    ASSERT_TRUE(model);
    const std::int64_t tokens = line["tokens"];
    const std::int64_t rows = tokens * model->experts_per_token;
    const std::int64_t hidden = model->h / 2;
    const std::int64_t kv_heads = std::max(1, model->kv_heads / 2);
    // x, gate_up, h, y of two bytes an element; keys and values of four.
    EXPECT_EQ(line["unfused_bytes"], rows * (model->d + 2 * hidden + hidden + model->d) * 2);
    EXPECT_EQ(line["fused_bytes"], rows * (model->d + hidden + model->d) * 2);
    EXPECT_EQ(line["saved_bytes"], rows * 2 * hidden * 2);
    EXPECT_EQ(line["kv_token_bytes"], 2 * model->layers * kv_heads * model->head_size * 4);
    EXPECT_EQ(line["kv_tokens"],
              line["saved_bytes"].get<std::int64_t>() / line["kv_token_bytes"].get<std::int64_t>());
    chunk += tokens == 512 ? 1 : 0;
    longest += tokens == 65536 ? 1 : 0;
  }
  std::size_t fitting = 0;
  for (const auto& model : harness::models()) fitting += model.tp.size() > 1 ? 1 : 0;
  EXPECT_EQ(chunk, fitting);
  EXPECT_EQ(longest, 3U);
  EXPECT_EQ(said["meta"]["command"], "sluice memory --json - --tp 2 --kv-dtype fp32");
}

// The chunk-512 figure of Llama-3.1 8B by hand: 512 tokens of 2 x 14336 bf16 values are 28 MiB, a
// token of 32 layers, 8 heads of 128 takes 128 KiB.
TEST(Memory, TableHoldsTheChunkFigure) {
  const Outcome memory = sluice({"memory", "--model", "Llama-3.1-8B", "--tokens", "512"});
  ASSERT_EQ(memory.code, 0) << memory.err;
  EXPECT_THAT(memory.out, HasSubstr("28 MiB          131072             224"));
}

TEST(Memory, WrongWordsAreTwo) {
  expect_error(sluice({"memory", "--model", "llama-9"}), 2, "model: got \"llama-9\"");
  expect_error(sluice({"memory", "--model", "phi-4", "--tp", "4"}), 2, "fits phi-4");
  expect_error(sluice({"memory", "--tp", "3"}), 2, "fits no model");
  expect_error(sluice({"memory", "--dtype", "int4"}), 2, "dtype: got \"int4\"");
  EXPECT_EQ(sluice({"memory", "--tokens", "0"}).code, 2);
  EXPECT_EQ(sluice({"memory", "--tokens", "many"}).code, 2);
  expect_error(sluice({"memory", "--json", "/nowhere/at/all.json"}), 2, "cannot be written");
}

}  // namespace
}  // namespace sluice::tests
