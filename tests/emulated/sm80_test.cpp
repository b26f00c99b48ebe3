// SPDX-License-Identifier: Apache-2.0
// cuda.sm80's tiles against the fp64 oracle without a GPU: the kernels' sources, planned for an
// A100 and run by the emulator.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator.hpp"
#include "harness/rig.hpp"
#include "harness/test_cases.hpp"
#include "harness/verify.hpp"
#include "host_cuda/fake_devices.hpp"

// What run() asks of the runtime.
extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
}

namespace sluice {
namespace {

// An A100 whose memory is the host's.
class EmulatedRig final : public harness::Rig {
 public:
  EmulatedRig() { device_.memory_bytes = cpu_->device().memory_bytes; }
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] Stream stream() const noexcept override { return nullptr; }
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    return cpu_->allocate(bytes);
  }
  void free(void* pointer) noexcept override { cpu_->free(pointer); }
  Status upload(void* to, const void* host, std::size_t bytes) override {
    return cpu_->upload(to, host, bytes);
  }
  Status download(void* host, const void* from, std::size_t bytes) override {
    return cpu_->download(host, from, bytes);
  }
  Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) override {
    return cpu_->fill_bytes(pointer, value, bytes);
  }
  Status fill_matrix(const OperandSpec& spec, const harness::FillParams& params,
                     void* base) override {
    return cpu_->fill_matrix(spec, params, base);
  }
  Status synchronize() override { return {}; }
  Status flush_caches() override { return {}; }

 private:
  std::unique_ptr<harness::Rig> cpu_ = std::move(harness::open_rig("cpu").value());
  Device device_ = gpu::a100();
};

// Verifies the case with each of these tilings of the step.
void expect_right(const std::string& text, const std::string& step,
                  const std::vector<std::string>& tilings) {
  SCOPED_TRACE(text);
  EmulatedRig rig;
  const harness::Case c = harness::parse_case(text).value();
  Options options;
  options.variant = "cuda.sm80";
  harness::Verification verification(c, rig, {.repeat = false});
  for (const std::string& tiling : tilings) {
    std::string config = step;
    config += "=" + tiling;
    options.config = config.c_str();
    const auto report = verification.run(options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->text();
    EXPECT_EQ(emulator::take_conflicts(), 0) << config << " reads shared memory in more cycles";
  }
}

const std::vector<std::string> kEveryTiling = {"128x256", "128x128", "64x128"};
const std::vector<std::string> kSmall = {"64x128"};

// Odd tails in every direction, more than one tile, fewer stages of k than the ring has and more.
TEST(Sm80, GateUp) {
  expect_right("130x264x72:gate_up:bias", "gate_up", kEveryTiling);
  expect_right("70x72x136:gate_up:bias:save", "gate_up", kEveryTiling);
  expect_right("1x8x8:gate_up:save:fp16", "gate_up", kSmall);
  expect_right("70x40x136:gate_up:save:fp16:gelu_erf:concat+up_first:pad=8", "gate_up", kSmall);
  expect_right("130x72x264:mlp:save:clamped_swiglu", "gate_up", kSmall);
}

TEST(Sm80, Linear) { expect_right("70x136x264:down:bias_down:residual", "down", kEveryTiling); }

TEST(Sm80, HiddenGradients) {
  expect_right("130x264x72:gate_up_grad", "gate_up_grad", kEveryTiling);
  expect_right("70x40x136:gate_up_grad:fp16:in_place:clamped_swiglu", "gate_up_grad", kSmall);
  expect_right("70x40x136:gate_up_grad:minimal:gelu_tanh:pad=8", "gate_up_grad", kSmall);
  expect_right("1x8x8:gate_up_grad", "gate_up_grad", kSmall);
}

TEST(Sm80, WholeBackwardPass) {
  for (const char* step : {"gate_up_grad", "input_grad", "weight_grad"}) {
    expect_right("70x136x264:mlp_grad", step, kEveryTiling);
  }
  expect_right("1x8x8:mlp_grad:recompute", "gate_up", kSmall);
  expect_right("130x72x136:mlp_grad:fp16:recompute:interleaved8", "input_grad", kSmall);
  expect_right("130x72x120:mlp_grad:fp16:recompute:interleaved3", "input_grad", kSmall);
  expect_right("130x136x72:mlp_grad:accumulate:concat+up_first:pad=8", "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:accumulate:save_dg_du:in_place",
               "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:recompute:interleaved1", "weight_grad",
               kSmall);
}

}  // namespace
}  // namespace sluice
