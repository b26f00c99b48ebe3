// SPDX-License-Identifier: Apache-2.0
// The schedule of cpu.simd in words, for `sluice explain`: which path, which blocks, in which
// cache.
#include <cstdio>

#include "cpu/blocking.hpp"
#include "cpu/kernel_rows.hpp"
#include "cpu/matrix.hpp"

namespace sluice::cpu {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

class Lines {
 public:
  template <class... Args>
  void add(const char* format, Args... args) {
    char line[200];
    std::snprintf(line, sizeof(line), format, args...);
    if (!text_.empty()) text_ += '\n';
    text_ += line;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

double kib(std::int64_t bytes) { return static_cast<double>(bytes) / 1024; }
long long number(std::int64_t value) { return static_cast<long long>(value); }

void describe_dots(const Problem& p, const Schedule& s, std::int64_t max_tokens, Lines& out) {
  out.add("dot products, as M <= %lld: every weight is read once, in place", number(max_tokens));
  const auto tasks = [&](const char* name, std::int64_t rows, std::int64_t each, std::int64_t cols,
                         const char* what) {
    out.add("%s: %lld tasks of %lld rows%s, %.0f KiB; tokens in %s", name,
            number(ceil_div(rows, each)), number(each), what, kib(each * bytes_of(p.w_dtype, cols)),
            s.fixed ? "16-bit fixed point by blocks" : to_string(token_dtype(p, s.pairs, cols)));
  };
  if (p.op != Op::kDown) tasks("gate_up", p.h, s.dot_cols, p.d, " of each matrix");
  if (p.op != Op::kGateUp) tasks("down", p.d, s.dot_rows, p.h, "");
}

void describe_in_place_tasks(const Problem& p, const Schedule& s, Lines& out) {
  const auto part = [&](const char* name, const ForwardBlocks& b, const char* what) {
    out.add("%s: %lld tasks of %lld rows%s", name, number(b.row_blocks), number(b.rows), what);
  };
  if (p.op != Op::kDown) part("gate_up", s.gate_up, " of each matrix");
  if (p.op != Op::kGateUp) part("down", s.down, "");
}

void describe_forward(const detail::StepView& plan, const Schedule& s, const GemmKernels& k,
                      Lines& out) {
  const Problem& p = plan.problem;
  const std::int64_t width = std::int64_t{2} * k.lanes;
  const std::int64_t tail = s.pass_rows % width;
  const std::int64_t strip = strip_rows(k, tail > 0 && tail <= k.lanes);
  if (s.in_place) {
    out.add("GEMM: tiles of %d weight rows by %d tokens in registers", k.tile_rows, k.lanes);
    out.add("L2: weights as they lie, pieces of %lld columns, and the tokens' pieces, %.0f KiB",
            number(kInPlaceCols), kib(kInPlaceCols * k.lanes * kFloat));
    return describe_in_place_tasks(p, s, out);
  }
  out.add("GEMM: tiles of %d weight rows by %lld tokens, or %d by %d, in registers", k.tile_rows,
          number(width), 2 * k.tile_rows, k.lanes);
  out.add("L1: strips of %lld weight rows by a K block, %s", number(strip),
          !s.pairs                   ? "widened to fp32"
          : is_block_type(p.w_dtype) ? "their integers as pairs of bf16, scales behind them"
                                     : "as they lie: pairs of bf16 are a step");
  out.add("L2: C, a strip and a panel of tokens within %.0f of %.0f KiB",
          kib(l2_budget_bytes(plan.device.l2_bytes)), kib(plan.device.l2_bytes));
  const auto part = [&](const char* name, const ForwardBlocks& b, std::int64_t cols, int matrices) {
    const std::int64_t step = block_k(s.pairs ? ceil_div(cols, 2) : cols);
    const std::int64_t rows = round_up(b.rows * matrices, std::int64_t{2} * k.tile_rows);
    out.add(
        "%s: %lld x %lld tasks of %lld rows%s by %lld tokens, K blocks of %lld: strip %.0f, C "
        "%.0f, panel %.0f KiB",
        name, number(b.row_blocks), number(b.token_blocks), number(b.rows),
        matrices == 2 ? " of each matrix" : "", number(std::min(b.panels * width, s.pass_rows)),
        number(s.pairs ? 2 * step : step), kib(strip * step * kFloat), kib(rows * b.ldc * kFloat),
        kib(width * step * kFloat));
  };
  if (p.op != Op::kDown) part("gate_up", s.gate_up, p.d, 2);
  if (p.op != Op::kGateUp) part("down", s.down, p.h, 1);
  const std::int64_t passes = ceil_div(p.m, s.pass_rows);
  if (passes > 1) out.add("%lld passes of %lld tokens", number(passes), number(s.pass_rows));
}

void describe_backward(const detail::StepView& plan, const Schedule& s, const GemmKernels& k,
                       Lines& out) {
  const std::int64_t width = std::int64_t{2} * k.lanes;
  out.add(
      "GEMM: tiles of %d rows by %lld columns, K blocks of up to %lld, packed panels of each "
      "thread, in %s",
      k.tile_rows, number(width), number(s.pairs ? 2 * kBlockK : kBlockK),
      s.pairs ? "pairs of bf16" : "fp32");
  out.add("L2: panels of A and B and C within %.0f of %.0f KiB",
          kib(l2_budget_bytes(plan.device.l2_bytes)), kib(plan.device.l2_bytes));
  const auto part = [&](const char* name, const Blocking& b) {
    out.add("%s: %lld x %lld tasks of %lld rows by %lld columns", name, number(b.m_blocks),
            number(b.n_blocks), number(b.rows), number(b.panels * width));
  };
  part("dh", s.dh);
  if (plan.problem.op != Op::kMlpGrad) return;
  part("dx", s.dx);
  part("dw_gate, dw_up", s.dw_gate_up);
  part("dw_down", s.dw_down);
}

}  // namespace

std::string simd_describe(const detail::StepView& plan) {
  const auto target = detail::config_as<SimdTarget>(plan.config);
  const Schedule s = make_schedule(plan.problem, plan.device, plan.threads, target);
  const GemmKernels& k = gemm_kernels(target);
  Lines out;
  const auto bf16 = static_cast<unsigned>(SimdTarget::kAvx512Bf16);
  const bool avoided = plan.device.slow_bf16_products && multiplies_bf16(plan.problem) &&
                       !s.pairs && !s.fixed && (plan.device.simd_targets >> bf16 & 1U) != 0;
  if (avoided) out.add("%s", "bf16 is widened: this CPU multiplies it slower than fp32");
  switch (plan.problem.op) {
    case Op::kGateUp:
    case Op::kDown:
    case Op::kMlp:
      if (s.dots) {
        describe_dots(plan.problem, s, max_dot_tokens(plan.problem, target), out);
      } else {
        describe_forward(plan, s, k, out);
      }
      break;
    case Op::kGateUpGrad:
    case Op::kMlpGrad:
      describe_backward(plan, s, k, out);
      break;
    case Op::kNorm:
      out.add("a task a row: %lld rows, twice over each", number(plan.problem.m));
      break;
    default:
      out.add("chunks of %lld columns, which stay in L1", number(kChunk));
      break;
  }
  return out.text();
}

}  // namespace sluice::cpu
