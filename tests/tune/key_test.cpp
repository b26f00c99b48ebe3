// SPDX-License-Identifier: Apache-2.0
// Keys: what they tell apart, and that each has one spelling.
#include "tune/key.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "problems.hpp"
#include "sluice/operands.hpp"

namespace sluice::tune {
namespace {

using tests::gpu;
using tests::mlp;

TEST(Key, TellsApartWhatDecidesATime) {
  const Device cpu = cpu_device();
  const ProblemKey base = key_of(mlp(16), cpu);
  const auto differs = [&](const char* what, auto&& change) {
    Problem p = mlp(16);
    change(p);
    EXPECT_FALSE(key_of(p, cpu) == base) << what;
  };
  differs("op", [](Problem& p) { p.op = Op::kGateUp; });
  differs("m", [](Problem& p) { p.m = 17; });
  differs("d", [](Problem& p) { p.d = 72; });
  differs("h", [](Problem& p) { p.h = 72; });
  differs("x", [](Problem& p) { p.x_dtype = DType::kF32; });
  differs("w", [](Problem& p) { p.w_dtype = DType::kF16; });
  differs("blocks", [](Problem& p) { p.w_dtype = DType::kQ4_0; });
  differs("y", [](Problem& p) { p.y_dtype = DType::kF32; });
  differs("gate", [](Problem& p) { p.gate.activation = Activation::kRelu; });
  differs("bias", [](Problem& p) { p.bias_gate_up = true; });
  differs("bias_down", [](Problem& p) { p.bias_down = true; });
  differs("residual", [](Problem& p) { p.residual = Residual::kOperand; });
  differs("norm", [](Problem& p) { p.norm.enabled = true; });
  differs("save", [](Problem& p) { p.save_g_u = true; });
  differs("static", [](Problem& p) { p.weights_static = false; });
  differs("alignment", [](Problem& p) { p.alignment_bytes = 2; });
  differs("rows", [](Problem& p) { p.layout.w_gate_up = interleaved_rows(1, p.d, p.w_dtype); });
  differs("stride", [](Problem& p) { p.layout.x.row_stride_bytes = 4 * p.d; });
  Device fewer = cpu;
  fewer.threads = cpu.threads + 1;
  EXPECT_FALSE(key_of(mlp(16), fewer) == base) << "threads";
}

TEST(Key, IsBlindForWhatDoesNot) {
  const Device cpu = cpu_device();
  Problem p = mlp(16);
  p.gate.limit = 7;
  p.gate.up_offset = 1;
  p.norm.eps = 1e-6F;  // not enabled
  p.dw_dtype = DType::kF64;
  p.layout.x.row_stride_bytes = p.d * 2;  // said, not left to be contiguous
  p.layout.dy.row_stride_bytes = 4096;    // not an operand of mlp
  p.alignment_bytes = 256;
  EXPECT_EQ(key_of(p, cpu), key_of(mlp(16), cpu));
  Problem a = mlp(16);
  Problem b = mlp(16);
  a.op = b.op = Op::kGateMul;
  b.d = 999;  // not read
  EXPECT_EQ(key_of(a, cpu), key_of(b, cpu));
  a.op = b.op = Op::kNorm;
  b.d = a.d;
  b.h = 0;  // not read either
  EXPECT_EQ(key_of(a, cpu), key_of(b, cpu));
  EXPECT_TRUE(parse_key(to_text(key_of(b, cpu))));
  Device other = gpu();
  other.threads = 64;
  EXPECT_EQ(key_of(mlp(1), other), key_of(mlp(1), gpu())) << "a GPU has no threads of ours";
}

TEST(Key, RoundTrips) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      Problem p = mlp(7);
      p.op = static_cast<Op>(op);
      p.w_dtype = static_cast<DType>(dtype);
      p.norm = {.enabled = true, .add = true};
      p.layout.w_gate_up = interleaved_rows(8, p.d, p.w_dtype);
      const ProblemKey key = key_of(p, cpu_device());
      const auto back = parse_key(to_text(key));
      ASSERT_TRUE(back) << to_text(key);
      EXPECT_EQ(*back, key) << to_text(key);
    }
  }
}

TEST(Key, HasOneSpelling) {
  const std::string text = to_text(key_of(mlp(16), cpu_device()));
  ASSERT_TRUE(parse_key(text)) << text;
  EXPECT_FALSE(parse_key(text + " "));
  EXPECT_FALSE(parse_key(" " + text));
  EXPECT_FALSE(parse_key(text.substr(0, text.size() - 1)));
  EXPECT_FALSE(parse_key(""));
  const auto spelled = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const std::size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_key(other.replace(at, from.size(), to));
  };
  EXPECT_FALSE(spelled("16x64", "016x64"));
  EXPECT_FALSE(spelled("16x64", "+16x64"));
  EXPECT_FALSE(spelled("16x64", "0x64"));
  EXPECT_FALSE(spelled("16x64", "-16x64"));
  EXPECT_FALSE(spelled("16x64", "99999999999999999999x64"));
  EXPECT_FALSE(spelled("mlp", "MLP"));
  EXPECT_FALSE(spelled("silu", "purple"));
  EXPECT_FALSE(spelled("norm=0", "norm=256"));
  EXPECT_TRUE(spelled("16x64", "17x64"));
}

TEST(Key, TextsAreOneFieldEach) {
  Device odd = gpu();
  std::snprintf(odd.name, sizeof(odd.name), "tab\there\nand \x80 there");
  EXPECT_THAT(device_text(odd), testing::HasSubstr("tab?here?and ? there"));
  for (const std::string& text : {device_text(cpu_device()), driver_text(gpu()), build_text()}) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.find_first_of("\t\n"), std::string::npos) << text;
  }
  EXPECT_EQ(driver_text(cpu_device()), "-");
  EXPECT_THAT(build_text(), testing::StartsWith(SLUICE_VERSION " "));
}

TEST(Key, DriversNameTheirCublasLt) {
  Device with = gpu();
  EXPECT_EQ(driver_text(with), "driver 13000, runtime 13000");
  EXPECT_EQ(cublaslt_version_of(driver_text(with)), 0);
  with.cublaslt_version = 130100;
  EXPECT_EQ(driver_text(with), "driver 13000, runtime 13000, cuBLASLt 130100");
  EXPECT_EQ(cublaslt_version_of(driver_text(with)), 130100);
  for (const char* text : {"-", "", "driver 13000, runtime 13000, cuBLASLt ",
                           "driver 13000, runtime 13000, cuBLASLt 130100x"}) {
    EXPECT_EQ(cublaslt_version_of(text), 0) << text;
  }
  EXPECT_EQ(without_cublaslt(driver_text(with)), driver_text(gpu()));
  EXPECT_EQ(without_cublaslt(driver_text(gpu())), driver_text(gpu()));
  EXPECT_EQ(without_cublaslt("-"), "-");
}

// same_device() and the texts must tell the same devices apart.
TEST(Key, DevicesDifferAsTheirTextsDo) {
  const auto agree = [](const Device& a, const Device& b) {
    const bool texts = device_text(a) == device_text(b) && driver_text(a) == driver_text(b);
    EXPECT_EQ(same_device(a, b), texts) << device_text(a) << " | " << device_text(b);
  };
  for (const Device& base : {gpu(), cpu_device()}) {
    agree(base, base);
    Device other = base;
    std::snprintf(other.name, sizeof(other.name), "another");
    agree(base, other);
    for (int Device::*member : {&Device::compute_capability, &Device::sm_count,
                                &Device::driver_version, &Device::runtime_version,
                                &Device::cublaslt_version, &Device::ordinal, &Device::threads}) {
      other = base;
      other.*member += 10;
      agree(base, other);
    }
    for (std::int64_t Device::*member : {&Device::l1d_bytes, &Device::l2_bytes, &Device::l3_bytes,
                                         &Device::memory_bytes, &Device::memory_bytes_per_second}) {
      other = base;
      other.*member += 10;
      agree(base, other);
    }
    other = base;
    other.simd_targets ^= 1U;
    agree(base, other);
  }
  agree(gpu(), cpu_device());
}

TEST(Checksum, SeesEveryChangeOfAByte) {
  std::string text = "mlp 16x4096x14336";
  const std::uint64_t sum = checksum(text);
  for (char& byte : text) {
    const char before = byte;
    for (int value = 0; value < 256; ++value) {
      byte = static_cast<char>(value);
      EXPECT_EQ(checksum(text) == sum, byte == before);
    }
    byte = before;
  }
  EXPECT_NE(checksum(text.substr(1)), sum);
}

}  // namespace
}  // namespace sluice::tune
