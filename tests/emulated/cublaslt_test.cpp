// SPDX-License-Identifier: Apache-2.0
// cuda.cublaslt's steps against the fp64 oracle without a GPU: its launches by the emulator, its
// products by cublaslt.cpp of this folder.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emulated_rig.hpp"
#include "harness/test_cases.hpp"
#include "host_cuda/fake_devices.hpp"

namespace sluice {
namespace {

Device with_cublaslt(Device device) {
  device.cublaslt_version = 130100;
  return device;
}

// Right by every config of the recipe, which is chosen.
void expect_right(const harness::Case& c, const Device& device) {
  SCOPED_TRACE(harness::format_case(c));
  emulator::EmulatedRig rig(device);
  const auto made = plan(c.problem, device);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_STREQ(made->variant_name(), "cuda.cublaslt");
  int ran = 0;
  harness::for_each_forced(c, rig,
                           [&](const harness::ForcedRun& run) {
                             ASSERT_TRUE(run.report) << run.report.error().message;
                             EXPECT_TRUE(run.report->right()) << run.report->text();
                             ran += std::string(run.variant) == "cuda.cublaslt" ? 1 : 0;
                           },
                           {.repeat = false});
  EXPECT_GT(ran, 0);
}

const std::vector<std::string> kCases = {
    "5x40x43:gate_up",
    "5x43x40:gate_up:bias:save:fp16",
    "3x42x46:gate_up:concat+up_first:gelu_erf",
    "3x40x48:gate_up:fp32:bias:save",
    "4x43x48:gate_up:interleaved8",
    "4x43x48:gate_up:interleaved3+up_first:clamped_swiglu",
    "4x43x47:gate_up:interleaved1",
    "4x40x48:gate_up:pad=1",
    "5x43x47:down:bias_down",
    "5x43x47:down:bias_down:residual",
    "5x40x48:down:fp32:residual",
    "7x43x47:mlp:bias:bias_down:save",
    "7x43x47:mlp:norm:fp16",
    "7x40x47:mlp:add_norm",
    "7x40x48:mlp:norm:fp32",
    "5x43x47:gate_up_grad",
    "5x43x47:gate_up_grad:in_place:fp16",
    "5x43x47:gate_up_grad:minimal:gelu_tanh:pad=1",
    "9x43x47:mlp_grad",
    "9x43x47:mlp_grad:recompute:bias:bias_down:fp16",
    "9x40x47:mlp_grad:accumulate:concat",
    "9x40x47:mlp_grad:bf16/bf16/bf16/fp32:accumulate:save_dg_du:in_place",
    "9x40x48:mlp_grad:fp32:accumulate:recompute",
    "9x43x48:mlp_grad:recompute:interleaved1",
    // From these token counts on, inputs that are not whole units are copied.
    "33x40x43:gate_up:concat+up_first:save",
    "32x43x48:gate_up:interleaved3:bias:fp16",
    "33x43x48:gate_up:interleaved8",
    "33x48x43:down:residual",
    "34x43x48:down:bias_down:pad=1",
    "33x43x47:mlp:add_norm:fp16",
    "33x40x43:mlp:pad=1",
    "512x19x21:mlp_grad:recompute:bias:bias_down",
    "513x16x21:mlp_grad:concat:fp16",
    "514x19x24:mlp_grad:accumulate:save_dg_du:in_place",
    "515x19x21:mlp_grad:bf16/bf16/bf16/fp32:accumulate:save_dg_du:pad=1",
};

TEST(EmulatedCublasLt, TakesAnyWidthOnAmpere) {
  for (const std::string& text : kCases)
    expect_right(harness::parse_case(text).value(), with_cublaslt(gpu::a100()));
}

TEST(EmulatedCublasLt, TakesAnyWidthOnHopper) {
  for (const std::string& text : kCases)
    expect_right(harness::parse_case(text).value(), with_cublaslt(gpu::h200()));
}

// All else lies in whole units of 16 bytes.
TEST(EmulatedCublasLt, TakesOneOperandsRowsAtAnyDistance) {
  struct Asked {
    const char* text;
    Layout Layouts::*layout;
    std::int64_t row_bytes;
  };
  for (const auto& [text, layout, row_bytes] :
       {Asked{"5x40x48:gate_up", &Layouts::x, 82},
        {"5x40x48:gate_up", &Layouts::h, 98},
        Asked{"5x40x48:gate_up:save", &Layouts::g_u, 100},
        {"5x40x48:down", &Layouts::h, 98},
        Asked{"5x40x48:down:residual", &Layouts::y, 82},
        Asked{"5x40x48:down:residual", &Layouts::residual, 84},
        Asked{"5x40x48:down", &Layouts::w_down, 98},
        {"5x40x48:mlp", &Layouts::w_gate_up, 84},
        Asked{"5x40x48:mlp_grad", &Layouts::dy, 82},
        {"5x40x48:mlp_grad", &Layouts::dx, 82},
        Asked{"5x40x48:mlp_grad", &Layouts::dw_gate_up, 164}}) {
    harness::Case c = harness::parse_case(text).value();
    (c.problem.layout.*layout).row_stride_bytes = row_bytes;
    expect_right(c, with_cublaslt(gpu::a100()));
  }
}

}  // namespace
}  // namespace sluice
