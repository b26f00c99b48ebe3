// SPDX-License-Identifier: Apache-2.0
// sluice pack: a checkpoint packed, verified by the bench and unpacked again; usage errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "process.hpp"
#include "results_file.hpp"
#include "tests/format/safetensors_image.hpp"

namespace sluice::tests {
namespace {

using ::testing::HasSubstr;

// fp32 element i of tensor t is 1000 t + i, so that no two weights are equal.
std::string checkpoint(const Folder& folder) {
  harness::format_test::TensorSet set;
  const std::string mlp = "model.layers.0.mlp.";
  set.add("model.embed_tokens.weight", {10, 8}).add(mlp + "down_proj.weight", {8, 16});
  set.add(mlp + "gate_proj.weight", {16, 8}).add(mlp + "gate_proj.bias", {16});
  set.add(mlp + "up_proj.weight", {16, 8}).add(mlp + "up_proj.bias", {16});
  return folder.write("m.safetensors", set.bytes());
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Pack, PacksUnpacksAndTheBenchReadsWhatItWrote) {
  const Folder folder;
  const std::string source = checkpoint(folder);
  ASSERT_EQ(sluice({"pack", source, "--out", folder.path("apart.safetensors"), "--unpack"}).code,
            0);
  for (const char* block : {"1", "4", "16", "halves"}) {
    for (const char* order : {"gate_up", "up_gate"}) {
      SCOPED_TRACE(std::string(block) + " " + order);
      const std::string packed = folder.path("packed.safetensors");
      const Outcome pack =
          sluice({"pack", source, "--out", packed, "--block", block, "--order", order});
      ASSERT_EQ(pack.code, 0) << pack.err;
      EXPECT_THAT(pack.out, HasSubstr("4 tensors, 1 pairs of gate and up: "));
      EXPECT_THAT(pack.out, HasSubstr(order));
      const Outcome unpack =
          sluice({"pack", packed, "-o", folder.path("again.safetensors"), "--unpack"});
      ASSERT_EQ(unpack.code, 0) << unpack.err;
      EXPECT_EQ(content_of(folder.path("again.safetensors")),
                content_of(folder.path("apart.safetensors")));
      if (std::string(block) != "4" || std::string(order) != "up_gate") continue;
      const Outcome bench = sluice({"bench", "--checkpoint", packed, "--tokens", "2", "--quick",
                                    "--no-ceilings", "--device", "cpu", "--json", "-"});
      ASSERT_EQ(bench.code, 0) << bench.err;
      EXPECT_EQ(read_results(bench.out)["checks"].size(), 1U);
    }
  }
}

TEST(Pack, UsageErrorsAreTwo) {
  const Folder folder;
  const std::string source = checkpoint(folder);
  const auto expect = [&](std::vector<std::string> options, const std::string& text) {
    std::vector<std::string> words{"pack", source, "--out", folder.path("out.safetensors")};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = sluice(words);
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  expect({}, "wanted --block ROWS, --block halves or --unpack");
  expect({"--block", "0"}, "got 0, wanted halves or at least 1");
  expect({"--block", "8x"}, "got 8x, wanted halves or at least 1");
  expect({"--block", "8", "--order", "gate"}, "gate_up");
  expect({"--block", "8", "--unpack"}, "--block");
  expect({"--block", "5"}, "H = 16 is no multiple of the 5 rows of a block");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.safetensors")));
}

}  // namespace
}  // namespace sluice::tests
