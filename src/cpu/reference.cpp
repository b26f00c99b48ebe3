// SPDX-License-Identifier: Apache-2.0
// cpu.reference: every operator as its formula reads, in fp64, one element at a time.
// It takes every problem, shares only scalar maths (src/math) with the kernels and rounds only what
// it stores: n, r, h, dg and du stay in fp64 inside an operator.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "cpu/float_mode.hpp"
#include "cpu/kernel_rows.hpp"
#include "math/block_types.hpp"
#include "math/float_types.hpp"
#include "math/gate.hpp"

namespace sluice::cpu {
namespace {

// A matrix of the problem, read and written element by element. A null base reads as 0 and drops
// writes, which is what an absent bias, residual or optional output means.
class View {
 public:
  View(const OperandSpec& spec, const Operands& operands)
      : base_(const_cast<char*>(static_cast<const char*>(address(operands, spec.id)))),
        layout_(spec.layout),
        dtype_(spec.dtype) {
    if (spec.access == Access::kUnused) base_ = nullptr;
  }
  [[nodiscard]] bool present() const { return base_ != nullptr; }
  [[nodiscard]] double at(std::int64_t row, std::int64_t col) const {
    if (base_ == nullptr) return 0.0;
    return math::load(base_ + offset_bytes(layout_, dtype_, row, col), dtype_, col);
  }
  void set(std::int64_t row, std::int64_t col, double value) const {
    if (base_ != nullptr) {
      math::store(base_ + offset_bytes(layout_, dtype_, row, col), dtype_, value);
    }
  }

 private:
  char* base_;
  Layout layout_;
  DType dtype_;
};

class Reference {
 public:
  Reference(const Problem& problem, const Operands& operands, double* scratch)
      : p_(problem), specs_(operand_specs(problem)), operands_(operands), scratch_(scratch) {}

  void run() const {
    switch (p_.op) {
      case Op::kGateUp:
      case Op::kMlp:
        return forward();
      case Op::kDown:
        return down();
      case Op::kGateMul:
        return gate_mul();
      case Op::kGateMulGrad:
      case Op::kGateUpGrad:
        return gate_grad();
      case Op::kMlpGrad:
        return mlp_grad();
      case Op::kNorm:
        return norm();
      case Op::kInputGrad:
        return input_grad();
      case Op::kWeightGrad:
        weight_grad(Operand::kDwGate, elements(Operand::kDg), p_.h, p_.d, elements(Operand::kX));
        if (view(Operand::kDu).present()) {
          weight_grad(Operand::kDwUp, elements(Operand::kDu), p_.h, p_.d, elements(Operand::kX));
        }
        return;
      case Op::kColumnSum:
        return bias_grad(Operand::kDbGate, elements(Operand::kDg), p_.h);
      case Op::kAllReduce:
        return;  // of no plan for a CPU
    }
  }

 private:
  [[nodiscard]] View view(Operand id) const {
    return {specs_[static_cast<std::size_t>(id)], operands_};
  }
  // Element (row, col) of an operand; of a dense matrix in scratch.
  struct Elements {
    View in;
    [[nodiscard]] double operator()(std::int64_t row, std::int64_t col) const {
      return in.at(row, col);
    }
  };
  struct DenseElements {
    const double* in;
    std::int64_t cols;
    [[nodiscard]] double operator()(std::int64_t row, std::int64_t col) const {
      return in[row * cols + col];
    }
  };
  [[nodiscard]] Elements elements(Operand id) const { return {view(id)}; }
  [[nodiscard]] static DenseElements elements(const double* dense, std::int64_t cols) {
    return {dense, cols};
  }

  // r and n of one row; see sluice::Norm. Without a norm, n is x.
  void prologue(std::int64_t m, double* r, double* n) const {
    const View x = view(Operand::kX);
    const View x_residual = view(Operand::kXResidual);
    const View x_sum = view(Operand::kXSum);
    const View weight = view(Operand::kNormWeight);
    double squares = 0;
    for (std::int64_t i = 0; i < p_.d; ++i) {
      r[i] = x.at(m, i) + x_residual.at(m, i);
      x_sum.set(m, i, r[i]);
      squares += r[i] * r[i];
    }
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(p_.d) + static_cast<double>(p_.norm.eps));
    for (std::int64_t i = 0; i < p_.d; ++i) {
      n[i] = p_.norm.enabled
                 ? r[i] * scale * (weight.at(0, i) + static_cast<double>(p_.norm.weight_offset))
                 : r[i];
    }
  }

  struct Pair {
    double g;
    double u;
  };

  // g and u of one element: n·Wgᵀ + bg and n·Wuᵀ + bu.
  [[nodiscard]] Pair project(const double* n, std::int64_t j) const {
    const View w_gate = view(Operand::kWGate);
    const View w_up = view(Operand::kWUp);
    Pair out{view(Operand::kBGate).at(0, j), view(Operand::kBUp).at(0, j)};
    for (std::int64_t i = 0; i < p_.d; ++i) {
      out.g += n[i] * w_gate.at(j, i);
      out.u += n[i] * w_up.at(j, i);
    }
    return out;
  }

  // One row of y from one row of h; `r` is the row that the norm normalised, or null.
  void down_row(std::int64_t m, const double* h, const double* r) const {
    const View w_down = view(Operand::kWDown);
    const View bias = view(Operand::kBDown);
    const View residual = view(Operand::kResidual);
    const View y = view(Operand::kY);
    for (std::int64_t i = 0; i < p_.d; ++i) {
      double sum = bias.at(0, i) + residual.at(m, i);
      if (p_.residual == Residual::kNormInput) sum += r[i];
      for (std::int64_t j = 0; j < p_.h; ++j) sum += h[j] * w_down.at(i, j);
      y.set(m, i, sum);
    }
  }

  void forward() const {
    const View g = view(Operand::kG);
    const View u = view(Operand::kU);
    const View h_out = view(Operand::kH);
    double* const r = scratch_;
    double* const n = r + p_.d;
    double* const h = n + p_.d;
    for (std::int64_t m = 0; m < p_.m; ++m) {
      prologue(m, r, n);
      for (std::int64_t j = 0; j < p_.h; ++j) {
        const Pair pair = project(n, j);
        g.set(m, j, pair.g);
        u.set(m, j, pair.u);
        h[j] = math::gate_mul(p_.gate, pair.g, pair.u);
        h_out.set(m, j, h[j]);
      }
      if (p_.op == Op::kMlp) down_row(m, h, r);
    }
  }

  void norm() const {
    const View y = view(Operand::kY);
    double* const r = scratch_;
    double* const n = r + p_.d;
    for (std::int64_t m = 0; m < p_.m; ++m) {
      prologue(m, r, n);
      for (std::int64_t i = 0; i < p_.d; ++i) y.set(m, i, n[i]);
    }
  }

  void down() const {
    const View h_in = view(Operand::kH);
    for (std::int64_t m = 0; m < p_.m; ++m) {
      for (std::int64_t j = 0; j < p_.h; ++j) scratch_[j] = h_in.at(m, j);
      down_row(m, scratch_, nullptr);
    }
  }

  // Does Problem::round_gate round? fp32 is no rounding of what kernels have, fp64 none of this.
  [[nodiscard]] bool rounds_gate() const { return p_.round_gate && size_bytes(p_.x_dtype) == 2; }
  [[nodiscard]] auto to_x_dtype() const {
    return [dtype = p_.x_dtype](double value) { return math::rounded(value, dtype); };
  }

  void gate_mul() const {
    const View g_in = view(Operand::kG);
    const View u_in = view(Operand::kU);
    const View h = view(Operand::kH);
    for (std::int64_t m = 0; m < p_.m; ++m) {
      for (std::int64_t j = 0; j < p_.h; ++j) {
        const double g = g_in.at(m, j);
        const double u = u_in.at(m, j);
        h.set(m, j,
              rounds_gate() ? math::gate_mul(p_.gate, g, u, to_x_dtype())
                            : math::gate_mul(p_.gate, g, u));
      }
    }
  }

  // dh of one element: given, or dy·Wd.
  [[nodiscard]] double dh_at(std::int64_t m, std::int64_t j) const {
    if (p_.op == Op::kGateMulGrad) return view(Operand::kDh).at(m, j);
    const View dy = view(Operand::kDy);
    const View w_down = view(Operand::kWDown);
    double sum = 0;
    for (std::int64_t i = 0; i < p_.d; ++i) sum += dy.at(m, i) * w_down.at(i, j);
    return sum;
  }

  void gate_grad() const {
    const View g_in = view(Operand::kG);
    const View u_in = view(Operand::kU);
    for (std::int64_t m = 0; m < p_.m; ++m) {
      for (std::int64_t j = 0; j < p_.h; ++j) {
        const double g = g_in.at(m, j);
        const double u = u_in.at(m, j);
        const double dh = dh_at(m, j);
        const auto grad = rounds_gate() ? math::gate_mul_grad(p_.gate, g, u, dh, to_x_dtype())
                                        : math::gate_mul_grad(p_.gate, g, u, dh);
        view(Operand::kH).set(m, j, grad.h);
        view(Operand::kDg).set(m, j, grad.dg);
        view(Operand::kDu).set(m, j, grad.du);
      }
    }
  }

  // Sum over tokens of left(m, row) · right(m, col), stored to or added to out[row, col].
  template <class Left, class Right>
  void weight_grad(Operand id, const Left& left, std::int64_t rows, std::int64_t cols,
                   const Right& right) const {
    const View out = view(id);
    if (!out.present()) return;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        double sum = p_.accumulate_dw ? out.at(row, col) : 0.0;
        for (std::int64_t m = 0; m < p_.m; ++m) sum += left(m, row) * right(m, col);
        out.set(row, col, sum);
      }
    }
  }

  template <class Left>
  void bias_grad(Operand id, const Left& left, std::int64_t cols) const {
    const View out = view(id);
    if (!out.present()) return;
    for (std::int64_t col = 0; col < cols; ++col) {
      double sum = p_.accumulate_dw ? out.at(0, col) : 0.0;
      for (std::int64_t m = 0; m < p_.m; ++m) sum += left(m, col);
      out.set(0, col, sum);
    }
  }

  template <class Left, class Right>
  void write_dx(const Left& dg, const Right& du) const {
    const View dx = view(Operand::kDx);
    if (!dx.present()) return;
    const View w_gate = view(Operand::kWGate);
    const View w_up = view(Operand::kWUp);
    for (std::int64_t m = 0; m < p_.m; ++m) {
      for (std::int64_t i = 0; i < p_.d; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < p_.h; ++j) {
          sum += dg(m, j) * w_gate.at(j, i) + du(m, j) * w_up.at(j, i);
        }
        dx.set(m, i, sum);
      }
    }
  }

  void input_grad() const { write_dx(elements(Operand::kDg), elements(Operand::kDu)); }

  void mlp_grad() const {
    const View x = view(Operand::kX);
    const View dy_in = view(Operand::kDy);
    double* const row = scratch_;  // one row of x
    double* const dy = row + p_.d;
    double* const h = dy + p_.m * p_.d;
    double* const dg = h + p_.m * p_.h;
    double* const du = dg + p_.m * p_.h;
    const View dg_out = view(Operand::kDg);
    const View du_out = view(Operand::kDu);
    for (std::int64_t m = 0; m < p_.m; ++m) {
      for (std::int64_t i = 0; i < p_.d; ++i) {
        row[i] = x.at(m, i);
        dy[m * p_.d + i] = dy_in.at(m, i);
      }
      for (std::int64_t j = 0; j < p_.h; ++j) {
        const Pair pair = p_.recompute
                              ? project(row, j)
                              : Pair{view(Operand::kG).at(m, j), view(Operand::kU).at(m, j)};
        const auto grad = math::gate_mul_grad(p_.gate, pair.g, pair.u, dh_at(m, j));
        h[m * p_.h + j] = grad.h;
        dg[m * p_.h + j] = grad.dg;
        du[m * p_.h + j] = grad.du;
        dg_out.set(m, j, grad.dg);
        du_out.set(m, j, grad.du);
      }
    }
    write_dx(elements(dg, p_.h), elements(du, p_.h));
    const auto x_at = elements(Operand::kX);
    weight_grad(Operand::kDwGate, elements(dg, p_.h), p_.h, p_.d, x_at);
    weight_grad(Operand::kDwUp, elements(du, p_.h), p_.h, p_.d, x_at);
    weight_grad(Operand::kDwDown, elements(dy, p_.d), p_.d, p_.h, elements(h, p_.h));
    bias_grad(Operand::kDbGate, elements(dg, p_.h), p_.h);
    bias_grad(Operand::kDbUp, elements(du, p_.h), p_.h);
    bias_grad(Operand::kDbDown, elements(dy, p_.d), p_.d);
  }

  const Problem& p_;
  std::array<OperandSpec, kOperandCount> specs_;
  const Operands& operands_;
  double* scratch_;
};

detail::Reason supports(const Problem&, const Device&) noexcept { return {}; }

void name_config(const KernelConfig&, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "fp64");
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  const Problem& p = s.problem;
  std::int64_t doubles = 0;
  switch (p.op) {
    case Op::kGateUp:
    case Op::kMlp:
      doubles = 2 * p.d + p.h;
      break;
    case Op::kDown:
      doubles = p.h;
      break;
    case Op::kNorm:
      doubles = 2 * p.d;
      break;
    case Op::kMlpGrad:
      doubles = p.d + p.m * (p.d + 3 * p.h);
      break;
    default:
      break;
  }
  return static_cast<std::size_t>(doubles) * sizeof(double);
}

Status launch(const detail::Step& step, const detail::Step* /*next*/) noexcept {
  const DefaultFloatMode mode;
  Reference(step.problem, step.operands, static_cast<double*>(step.scratch)).run();
  return {};
}

std::string describe(const detail::StepView&) { return "one element after the other"; }

}  // namespace

const detail::Kernel kReference = {
    .name = "cpu.reference",
    .ops = detail::OpSet::all(),
    .supports = supports,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

}  // namespace sluice::cpu
