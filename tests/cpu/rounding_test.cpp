// SPDX-License-Identifier: Apache-2.0
// Where intermediates are rounded to x's type, on numbers for which it shows: r, n and h. Bounds
// against the oracle are too wide to see a rounding that is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "math/block_types.hpp"
#include "sluice/sluice.hpp"
#include "targets.hpp"

namespace sluice::test {
namespace {

using Elements = std::vector<math::BF16>;

Elements bf16(const std::vector<double>& values, std::int64_t times = 1) {
  Elements out;
  for (std::int64_t i = 0; i < times; ++i) {
    for (const double v : values) out.push_back(math::to_bf16(v));
  }
  return out;
}

double round_bf16(double v) { return math::rounded(v, DType::kBF16); }

// 1 and 40 tokens: dot products and GEMM.
constexpr std::int64_t kTokens[] = {1, 40};

void run_on(const Problem& problem, const std::string& word, const Operands& operands) {
  const std::string config = config_of(problem.op, word);
  Options options;
  options.variant = "cpu.simd";
  options.config = config.c_str();
  const auto made = plan(problem, cpu_device(), options);
  ASSERT_TRUE(made) << made.error().message;
  std::vector<char> memory(made->workspace_bytes + kWorkspaceAlignment);
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t aligned = (base + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1);
  const Workspace workspace{memory.data() + (aligned - base), made->workspace_bytes};
  const Status ran = run(*made, operands, workspace, nullptr);
  ASSERT_TRUE(ran) << ran.error().message;
}

Problem one_by_one(Op op, std::int64_t m, std::int64_t d) {
  Problem p{.op = op, .m = m, .d = d, .h = 1};
  p.y_dtype = DType::kF32;
  p.gate.activation = Activation::kIdentity;
  p.alignment_bytes = 4;
  return p;
}

TEST(Rounding, HiddenIsRoundedBetweenGateUpAndDown) {
  const double w = 1.0078125;  // its square needs 15 bits
  const Elements w_gate = bf16({w});
  const Elements w_down = bf16({1.0});
  for (const std::int64_t m : kTokens) {
    const Elements x = bf16({1.0}, m);
    for (const std::string& word : words()) {
      std::vector<float> y(static_cast<std::size_t>(m));
      Operands operands;
      operands.x = x.data();
      operands.w_gate = operands.w_up = w_gate.data();
      operands.w_down = w_down.data();
      operands.y = y.data();
      run_on(one_by_one(Op::kMlp, m, 1), word, operands);
      for (const float v : y) ASSERT_EQ(static_cast<double>(v), round_bf16(w * w)) << word;
    }
  }
}

TEST(Rounding, NormInputIsRoundedBeforeItIsUsed) {
  const Elements zero = bf16({0.0});
  const Elements one = bf16({1.0});
  for (const std::int64_t m : kTokens) {
    const Elements x = bf16({256.0}, m);
    const Elements residual = bf16({1.0}, m);  // 257 is no bf16
    Problem p = one_by_one(Op::kMlp, m, 1);
    p.norm.enabled = p.norm.add = true;
    p.residual = Residual::kNormInput;
    for (const std::string& word : words()) {
      std::vector<float> y(static_cast<std::size_t>(m));
      Operands operands;
      operands.x = x.data();
      operands.x_residual = residual.data();
      operands.norm_weight = one.data();
      operands.w_gate = operands.w_up = operands.w_down = zero.data();
      operands.y = y.data();
      run_on(p, word, operands);
      for (const float v : y) ASSERT_EQ(static_cast<double>(v), round_bf16(257.0)) << word;
    }
  }
}

TEST(Rounding, NormOutputIsRoundedBeforeItIsUsed) {
  const std::vector<double> row = {1.0, 1.0078125};
  const double scale = 1 / std::sqrt((row[0] * row[0] + row[1] * row[1]) / 2 + 1e-5);
  const double expected = round_bf16(row[0] * scale) - round_bf16(row[1] * scale);
  ASSERT_NE(expected, round_bf16((row[0] - row[1]) * scale));  // else nothing is tested
  const Elements weight = bf16({1.0, 1.0});
  const Elements difference = bf16({1.0, -1.0});
  for (const std::int64_t m : kTokens) {
    const Elements x = bf16(row, m);
    Problem p = one_by_one(Op::kGateUp, m, 2);
    p.norm.enabled = true;
    p.save_g_u = true;
    for (const std::string& word : words()) {
      Elements g(static_cast<std::size_t>(m));
      Elements u(g.size());
      Elements h(g.size());
      Operands operands;
      operands.x = x.data();
      operands.norm_weight = weight.data();
      operands.w_gate = operands.w_up = difference.data();
      operands.g = g.data();
      operands.u = u.data();
      operands.h = h.data();
      run_on(p, word, operands);
      for (const math::BF16 v : g) {
        ASSERT_EQ(static_cast<double>(math::widen(v)), expected) << word;
      }
    }
  }
}

// 31 columns beside one 1000 times larger, which meets a weight of 0, and a block as usual: the sum
// is as good as in fp32, whatever the large one leaves of 16-bit fixed point.
template <class Block>
void expect_outlier_costs_nothing(DType x_dtype, float outlier) {
  Problem p{.op = Op::kDown, .m = 1, .d = 1, .h = 2 * kBlockElems};
  p.alignment_bytes = 4;
  p.x_dtype = x_dtype;
  p.w_dtype = Block::kDType;
  p.y_dtype = DType::kF32;
  constexpr int kAt = 5;
  alignas(4) Block w[2];
  for (Block& block : w) {
    block.d = math::to_f16(1.0);
    int i = 0;
    for (auto& q : block.q) q = static_cast<std::remove_reference_t<decltype(q)>>(i++ % 7 + 1);
  }
  w[0].q[kAt] = Block::kDType == DType::kQ4_0 ? 0x18 : 0;  // nibble 8 stands for 0
  alignas(4) std::uint16_t h[2 * kBlockElems];
  double expected = 0;
  double magnitude = 0;
  for (int j = 0; j < 2 * kBlockElems; ++j) {
    const double v = j == kAt ? static_cast<double>(outlier) : 1 + (37 * j % 128) / 128.0;
    math::store(&h[j], x_dtype, v);
    const double term = v * math::load(&w[j / kBlockElems], Block::kDType, j);
    expected += term;
    magnitude += std::abs(term);
  }
  for (const std::string& word : words()) {
    const auto offered = config_names("cpu.simd", p, cpu_device());
    if (std::find(offered.begin(), offered.end(), config_of(p.op, word)) == offered.end()) continue;
    float y = 0;
    Operands operands;
    operands.h = h;
    operands.w_down = w;
    operands.y = &y;
    run_on(p, word, operands);
    EXPECT_NEAR(static_cast<double>(y), expected, 2 * kBlockElems * 0x1p-23 * magnitude)
        << word << ", " << to_string(x_dtype) << " by " << to_string(Block::kDType);
  }
}

TEST(Rounding, AnOutlierTakesNoPrecisionFromItsBlock) {
  for (const DType x : {DType::kBF16, DType::kF16}) {
    for (const float outlier : {1000.0F, -1000.0F}) {
      expect_outlier_costs_nothing<math::Q8_0>(x, outlier);
      expect_outlier_costs_nothing<math::Q4_0>(x, outlier);
    }
  }
}

}  // namespace
}  // namespace sluice::test
