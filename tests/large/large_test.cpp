// SPDX-License-Identifier: Apache-2.0
// Element offsets above 2^31. Outputs of 2^31 elements are written in full; for the GEMM operators
// large row strides spread small matrices over a sparse mapping, whose untouched pages cost
// nothing.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/case.hpp"
#include "harness/compare.hpp"
#include "harness/data.hpp"
#include "harness/fill.hpp"
#include "harness/oracle.hpp"
#include "harness/rig.hpp"
#include "harness/verify.hpp"
#include "sluice/plan.hpp"

namespace sluice::harness {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;

// Zeroed pages that exist once they are written.
class SparseMemory {
 public:
  explicit SparseMemory(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  [[nodiscard]] char* data() const {
    return data_ == MAP_FAILED ? nullptr : static_cast<char*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

Case parsed(const std::string& text) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  return c ? *c : Case{};
}

void run_plan(const Plan& plan, Rig& rig, const Operands& operands) {
  const auto memory = make_workspace(plan, rig);
  ASSERT_TRUE(memory);
  const Status ran = run(plan, operands, memory->workspace, rig.stream());
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_TRUE(check_workspace(*memory, rig));
}

// Every row of g, u and dh is the same memory, so every row of each output must have the bits of
// the first, which is compared with the oracle.
void expect_equal_rows(const std::string& text, Operand checked) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  Case c = parsed(text);
  c.problem.layout.g_u.row_stride_bytes = 0;
  c.problem.layout.dh.row_stride_bytes = 0;
  ASSERT_GT(c.problem.m * c.problem.h, kTwo31);
  const auto made = plan(c.problem, (*rig)->device());
  ASSERT_TRUE(made) << made.error().message;
  Operands operands;
  std::vector<std::unique_ptr<SparseMemory>> memory;
  for (const OperandSpec& spec : operand_specs(c.problem)) {
    const bool skipped = !spec.required && spec.id != checked;
    if (spec.access == Access::kUnused || skipped) continue;
    memory.push_back(std::make_unique<SparseMemory>(extent_bytes(spec) + 4096));
    ASSERT_NE(memory.back()->data(), nullptr) << spec.name;
    set_address(operands, spec.id, memory.back()->data());
    if (spec.access == Access::kRead) {
      fill_matrix(spec, fill_params(c.problem, spec.id, c.fill, c.seed), memory.back()->data());
    }
  }
  run_plan(*made, **rig, operands);
  const OperandSpec spec = operand_specs(c.problem)[static_cast<std::size_t>(checked)];
  const auto* const out = static_cast<const char*>(address(operands, checked));
  Oracle oracle(c.problem, operands);
  Comparator comparator(checked, spec.dtype);
  const HostMatrix matrix{spec, out};
  for (std::int64_t col = 0; col < spec.cols; ++col) {
    comparator.add(0, col, oracle.at(checked, 0, col), matrix.at(0, col));
  }
  EXPECT_TRUE(comparator.result().passed()) << to_string(comparator.result());
  const std::int64_t row_bytes = spec.cols * size_bytes(spec.dtype);
  for (std::int64_t row = 1; row < spec.rows; ++row) {
    ASSERT_EQ(std::memcmp(out, out + row * row_bytes, static_cast<std::size_t>(row_bytes)), 0)
        << spec.name << ": row " << row << " differs, " << made->variant_name();
  }
  for (std::int64_t i = 0; i < 4096; ++i) ASSERT_EQ(out[spec.rows * row_bytes + i], 0);
}

TEST(Large, GateMulWritesMoreThanTwo31Elements) {
  expect_equal_rows("2049x1x1048581:gate_mul", Operand::kH);
}

TEST(Large, GateMulWritesMoreThanTwo31ElementsInNarrowRows) {
  expect_equal_rows("8388609x1x257:gate_mul:relu", Operand::kH);
}

// Strides of 2^27 elements and more: the last rows lie beyond 2^31 elements in every matrix.
void spread(Case& c) {
  Layouts& l = c.problem.layout;
  const auto at = [](std::int64_t rows, DType dtype) {
    return (kTwo31 / (rows - 1) + 64) / 64 * 64 * size_bytes(dtype);
  };
  const Problem& p = c.problem;
  l.x.row_stride_bytes = l.x_sum.row_stride_bytes = l.dx.row_stride_bytes = at(p.m, p.x_dtype);
  l.h.row_stride_bytes = l.g_u.row_stride_bytes = l.dg_du.row_stride_bytes = at(p.m, p.x_dtype);
  l.y.row_stride_bytes = l.dy.row_stride_bytes = l.residual.row_stride_bytes = at(p.m, p.y_dtype);
  l.w_gate_up.row_stride_bytes = at(p.h, p.w_dtype);
  l.w_down.row_stride_bytes = at(p.d, p.w_dtype);
  l.dw_gate_up.row_stride_bytes = at(p.h, p.dw_dtype);
  l.dw_down.row_stride_bytes = at(p.d, p.dw_dtype);
}

class Spread : public testing::TestWithParam<const char*> {};

TEST_P(Spread, IsRightInEveryElement) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  Case c = parsed(GetParam());
  spread(c);
  for (const std::string& variant : variant_names(Backend::kCpu)) {
    const Options options{.variant = variant.c_str()};
    const auto made = plan(c.problem, (*rig)->device(), options);
    if (!made && made.error().code == ErrorCode::kUnsupported) continue;
    ASSERT_TRUE(made) << made.error().message;
    Operands operands;
    std::vector<std::unique_ptr<SparseMemory>> memory;
    for (const OperandSpec& spec : operand_specs(c.problem)) {
      if (spec.access == Access::kUnused) continue;
      memory.push_back(std::make_unique<SparseMemory>(extent_bytes(spec) + 4096));
      ASSERT_NE(memory.back()->data(), nullptr) << spec.name;
      FillParams params = fill_params(c.problem, spec.id, c.fill, c.seed);
      if (spec.access == Access::kWrite) params = {.scale = std::nanf("")};
      fill_matrix(spec, params, memory.back()->data());
      set_address(operands, spec.id, memory.back()->data());
    }
    run_plan(*made, **rig, operands);
    Oracle oracle(c.problem, operands);
    for (const OperandSpec& spec : operand_specs(c.problem)) {
      if (spec.access != Access::kWrite) continue;
      ASSERT_TRUE(spec.rows == 1 || offset_bytes(spec.layout, spec.dtype, spec.rows - 1, 0) >
                                        kTwo31 * size_bytes(spec.dtype))
          << spec.name;
      Comparator comparator(spec.id, spec.dtype);
      const HostMatrix matrix{spec, address(operands, spec.id)};
      for (std::int64_t row = 0; row < spec.rows; ++row) {
        for (std::int64_t col = 0; col < spec.cols; ++col) {
          comparator.add(row, col, oracle.at(spec.id, row, col), matrix.at(row, col));
        }
      }
      EXPECT_TRUE(comparator.result().passed())
          << made->variant_name() << " " << to_string(comparator.result());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Spread,
                         testing::Values("17x40x48:mlp:residual:add_norm:bias:bias_down:save",
                                         "2x40x48:mlp", "17x40x48:gate_up:fp32",
                                         "17x40x48:down:fp16", "17x40x48:gate_mul",
                                         "17x40x48:gate_mul_grad", "17x40x48:gate_up_grad",
                                         "17x40x48:mlp_grad:recompute:bias:bias_down",
                                         "17x40x48:mlp_grad:fp32"));

}  // namespace
}  // namespace sluice::harness
