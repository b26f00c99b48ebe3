// SPDX-License-Identifier: Apache-2.0
// cuda.sm100: who gets it, and what it refuses, on a described B200.
#include <gtest/gtest.h>

#include <string>

#include "choice.hpp"
#include "cuda/sm100/gemm.hpp"
#include "harness/device_file.hpp"

namespace sluice {
namespace {

using gpu::problem_of;
using gpu::steps_of;

Device device_of(const std::string& name) {
  return harness::read_device(SLUICE_DEVICES "/" + name + ".json").value();
}

constexpr const char* kPacked = "512x4096x14336:mlp:interleaved32";

// Why the row does not take a problem of somebody who asks for it; "" where it does.
std::string refusal_of(const std::string& text, const char* device = "b200",
                       bool experimental = true) {
  const Explanation why =
      explain(problem_of(text), device_of(device), Options{.experimental = experimental});
  for (const Refusal& row : why.variants) {
    if (row.variant == std::string("cuda.sm100")) return row.reason;
  }
  return "no such row";
}

TEST(Sm100, IsThereForThoseWhoAskForIt) {
  const Device b200 = device_of("b200");
  const auto usual = plan(problem_of(kPacked), b200);
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_STREQ(usual->variant_name(), "cuda.sm80");
  const auto asked = plan(problem_of(kPacked), b200, Options{.experimental = true});
  ASSERT_TRUE(asked) << asked.error().message;
  const auto forced = plan(problem_of(kPacked), b200, Options{.variant = "cuda.sm100"});
  ASSERT_FALSE(forced);
  if (!cuda::sm100::kIsBuilt) {
    EXPECT_STREQ(asked->variant_name(), "cuda.sm80");
    EXPECT_EQ(refusal_of(kPacked), "this Sluice was built without SLUICE_CUTLASS");
    return;
  }
  EXPECT_STREQ(asked->variant_name(), "cuda.sm100");
  const Options experimental{.experimental = true};
  EXPECT_EQ(steps_of(kPacked, b200, experimental), "gate_up:cuda.sm100 down:cuda.sm100");
  EXPECT_STREQ(forced.error().message,
               "variant cuda.sm100: takes it, but nobody has run it: Options::experimental, "
               "--experimental");
  EXPECT_EQ(refusal_of(kPacked, "b200", false),
            "takes it, but nobody has run it: Options::experimental, --experimental");
  EXPECT_EQ(steps_of("17x4096x14336:mlp:add_norm:interleaved1", b200, experimental),
            "norm:cuda.norm gate_up:cuda.sm100 down:cuda.sm100");
}

TEST(Sm100, OtherChipsAreRefused) {
  EXPECT_EQ(refusal_of(kPacked, "h200"), "needs compute capability 10.0, the device has 9.0");
  EXPECT_EQ(refusal_of(kPacked, "rtx5090"), "needs compute capability 10.0, the device has 12.0");
}

TEST(Sm100, RefusalsNameTheOperand) {
  if (!cuda::sm100::kIsBuilt) GTEST_SKIP() << "built without SLUICE_CUTLASS";
  const char* const kUnpacked =
      "w_gate: wanted gate and up in turns of 1 or 32 rows: sluice pack, pack_gate_up";
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up"), kUnpacked);
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:concat"), kUnpacked);
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:interleaved8"), kUnpacked);
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:interleaved32+up_first"), "");
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:interleaved1:fp16"), "takes bf16, got fp16");
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:interleaved1:bias"),
            "b_gate: is not added or stored");
  EXPECT_EQ(refusal_of("512x4096x14336:gate_up:interleaved1:relu"), "gate: takes silu, got relu");
  EXPECT_EQ(refusal_of("512x4096x14336:down:residual"), "residual: is not added or stored");
  EXPECT_EQ(refusal_of("512x4096x14336:down"), "");
  // No tensor map has rows so far apart.
  Problem far = problem_of("512x4096x14336:down");
  far.layout.h.row_stride_bytes = std::int64_t{1} << 40;
  const auto made =
      plan(far, device_of("b200"), Options{.variant = "cuda.sm100", .experimental = true});
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().text().find("h: rows are 1099511627776 bytes apart"), std::string::npos)
      << made.error().text();
}

}  // namespace
}  // namespace sluice
