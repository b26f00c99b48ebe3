// SPDX-License-Identifier: Apache-2.0
#include "random_case.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/verify.hpp"
#include "math/float_types.hpp"

namespace sluice::property {
namespace {

using harness::Case;
using harness::Placement;

bool coin() { return *rc::gen::arbitrary<bool>(); }
bool one_in(int n) { return *rc::gen::inRange(0, n) == 0; }
float between(int low, int high) {
  return 0.125F * static_cast<float>(*rc::gen::inRange(low, high));
}

DType random_type(bool fp64) { return static_cast<DType>(*rc::gen::inRange(0, fp64 ? 4 : 3)); }

void draw_types(Problem& p, bool fp64) {
  p.x_dtype = random_type(fp64);
  p.w_dtype = coin() ? p.x_dtype : random_type(fp64);
  p.y_dtype = coin() ? p.x_dtype : random_type(fp64);
  p.dw_dtype = coin() ? DType::kF32 : p.x_dtype;
}

void draw_gate(Gate& gate) {
  gate.activation = static_cast<Activation>(*rc::gen::inRange(0, kActivationCount));
  if (one_in(3)) return;
  if (gate.activation == Activation::kSilu || gate.activation == Activation::kSigmoid) {
    gate.alpha = between(-4, 16);
  }
  if (coin()) gate.limit = between(1, 24);
  if (coin()) gate.up_offset = between(-8, 9);
  if (coin()) gate.gate_multiplier = between(-8, 17);
  if (coin()) gate.output_multiplier = between(1, 17);
}

void draw_flags(Case& c) {
  Problem& p = c.problem;
  const bool forward = p.op == Op::kGateUp || p.op == Op::kMlp;
  const bool writes_y = p.op == Op::kDown || p.op == Op::kMlp;
  const bool backward = p.op == Op::kMlpGrad;
  p.bias_gate_up = (forward || backward) && coin();
  p.bias_down = (writes_y || backward) && coin();
  p.save_g_u = forward && one_in(3);
  if (p.op == Op::kNorm || (forward && one_in(3))) {
    p.norm.enabled = true;
    p.norm.add = coin();
    p.norm.eps = between(1, 8);
    p.norm.weight_offset = between(0, 9);
  }
  if (writes_y && coin()) p.residual = Residual::kOperand;
  if (p.op == Op::kMlp && p.norm.enabled && coin()) p.residual = Residual::kNormInput;
  p.recompute = backward && coin();
  const bool sums = p.op == Op::kWeightGrad || p.op == Op::kColumnSum;
  p.accumulate_dw = (backward || sums) && coin();
  p.save_dg_du = backward && coin();
  p.round_gate = (p.op == Op::kGateMul || p.op == Op::kGateMulGrad) && coin();
  const bool gradient =
      p.op == Op::kGateMulGrad || p.op == Op::kGateUpGrad || (p.save_dg_du && !p.recompute);
  c.in_place = (gradient || p.residual == Residual::kOperand) && one_in(4);
  c.broadcast = !c.in_place && one_in(6);
  c.minimal = p.op != Op::kMlpGrad && p.op != Op::kWeightGrad && one_in(4);
}

void draw_layout(Case& c) {
  c.placement = static_cast<Placement>(*rc::gen::inRange(0, 3));
  if (c.placement == Placement::kInterleaved) {
    c.block_rows = *rc::gen::elementOf(std::vector<std::int64_t>{1, 1, 2, 3, 4, 8, 16, 32});
  }
  c.up_first = c.placement != Placement::kSeparate && coin();
  c.pad_elems = coin() ? 0 : *rc::gen::inRange(1, 20);
  c.align = *rc::gen::elementOf(std::vector<std::int64_t>{0, 0, 0, 8, 16, 32, 64});
}

}  // namespace

Op random_op() { return static_cast<Op>(*rc::gen::inRange(0, kOpCount)); }

Case random_case(Op op, const Wanted& wanted) {
  Case c;
  Problem& p = c.problem;
  p.op = op;
  const auto dim = [&wanted] {
    // Small, medium and large dims alike: most tails are near the small ones.
    const std::int64_t most =
        *rc::gen::elementOf(std::vector<std::int64_t>{9, 40, 130, wanted.max_dim});
    return *rc::gen::inRange<std::int64_t>(1, std::min(most, wanted.max_dim) + 1);
  };
  p.m = dim();
  p.d = dim();
  p.h = dim();
  const double area = static_cast<double>(p.d) * static_cast<double>(p.h);
  p.m = std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted.max_operations / area), 1, p.m);
  draw_types(p, wanted.fp64);
  if (wanted.blocks && one_in(4)) {
    p.w_dtype = static_cast<DType>(*rc::gen::inRange(kFloatDTypeCount, kDTypeCount));
    p.d = (p.d + kBlockElems - 1) / kBlockElems * kBlockElems;
    p.h = (p.h + kBlockElems - 1) / kBlockElems * kBlockElems;
  }
  if (p.op == Op::kNorm) {  // writes x's type, and has no H
    p.norm.enabled = true;
    p.y_dtype = p.x_dtype;
    p.h = 0;
  }
  draw_gate(p.gate);
  if (wanted.fill == harness::Fill::kIntegers) p.gate = {.activation = Activation::kIdentity};
  draw_layout(c);
  if (wanted.flags) draw_flags(c);
  if (wanted.fill == harness::Fill::kIntegers && p.norm.enabled && p.op != Op::kNorm) {
    p.norm = {};
    if (p.residual == Residual::kNormInput) p.residual = Residual::kNone;
  }
  c.fill = wanted.fill;
  c.seed = *rc::gen::arbitrary<std::uint32_t>();
  // A pair may be too close together for the promise, or for the widest type beside it.
  if (!harness::place(c)) {
    c.align = 0;
    if (!harness::place(c)) {
      c.placement = Placement::kSeparate;
      c.block_rows = 0;
      c.up_first = false;
      const Status placed = harness::place(c);
      if (!placed) RC_FAIL(std::string(placed.error().text()));
    }
  }
  return c;
}

harness::Rig& cpu() {
  static const std::unique_ptr<harness::Rig> rig = std::move(*harness::open_rig("cpu"));
  return *rig;
}

Bench::Bench(const Case& c) {
  auto set = harness::OperandSet::make(c, cpu());
  if (!set) RC_FAIL(std::string(set.error().text()));
  set_ = std::move(*set);
}

char* Bench::element(Operand id, std::int64_t row, std::int64_t col) const {
  const OperandSpec& s = spec(id);
  return static_cast<char*>(const_cast<void*>(address(set_->operands(), id))) +
         offset_bytes(s.layout, s.dtype, row, col);
}

double Bench::get(Operand id, std::int64_t row, std::int64_t col) const {
  return math::load(element(id, row, col), spec(id).dtype);
}

void Bench::put(Operand id, std::int64_t row, std::int64_t col, double value) {
  math::store(element(id, row, col), spec(id).dtype, value);
}

void Bench::for_each(Operand id, const std::function<double(std::int64_t, std::int64_t)>& value) {
  const OperandSpec& s = spec(id);
  if (s.access == Access::kUnused) return;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t col = 0; col < s.cols; ++col) put(id, r, col, value(r, col));
  }
}

void Bench::run(const Options& options) {
  const auto made = plan(problem(), cpu().device(), options);
  if (!made) RC_FAIL(std::string(made.error().text()));
  const auto memory = harness::make_workspace(*made, cpu());
  RC_ASSERT(memory.has_value());
  const Status ran = sluice::run(*made, set_->operands(), memory->workspace, cpu().stream());
  if (!ran) RC_FAIL(std::string(ran.error().text()));
}

void for_each_choice(const Problem& problem, const std::function<void(const Options&)>& check) {
  for (const std::string& variant : variant_names(Backend::kCpu)) {
    for (const std::string& config : config_names(variant.c_str(), problem, cpu().device())) {
      check({.variant = variant.c_str(), .config = config.c_str()});
    }
  }
}

}  // namespace sluice::property
