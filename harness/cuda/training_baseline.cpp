// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/training_baseline.hpp"

#include <utility>

#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

bool fits(const Problem& p) {
  const Layout& w = p.layout.w_gate_up;
  return p.op == Op::kMlpGrad && !p.bias_gate_up && !p.bias_down && !p.accumulate_dw &&
         w.block_rows == 0 && (p.dw_dtype == DType::kF32 || p.dw_dtype == p.x_dtype);
}

class TrainingBaseline final : public Baseline {
 public:
  TrainingBaseline(const Case& c, std::shared_ptr<CublasLt> library)
      : problem_(c.problem), specs_(operand_specs(c.problem)), library_(std::move(library)) {}

  [[nodiscard]] std::string name() const override { return "cublaslt_chain"; }
  [[nodiscard]] std::int64_t extra_bytes() const override {
    std::int64_t bytes = CublasLt::workspace_bytes();
    for (const RigBuffer* buffer : {&dh_, &h_, &g_u_, &dg_du_, &dw_gate_up_}) {
      bytes += static_cast<std::int64_t>(buffer->bytes());
    }
    return bytes;
  }

  Status open(Rig& rig) {
    const std::int64_t elem = size_bytes(problem_.x_dtype);
    const std::int64_t rows = problem_.m * problem_.h * elem;
    SLUICE_TRY(make(rig, rows, dh_));
    SLUICE_TRY(make(rig, rows, h_));
    SLUICE_TRY(make(rig, 2 * rows, dg_du_));
    if (problem_.recompute) SLUICE_TRY(make(rig, 2 * rows, g_u_));
    SLUICE_TRY(make(rig, 2 * problem_.h * problem_.d * size_bytes(problem_.dw_dtype), dw_gate_up_));
    Problem gate = problem_;
    gate.op = Op::kGateMulGrad;
    gate.recompute = false;
    gate.layout.dh = gate.layout.h = Layout{};
    const Layout halves{.row_stride_bytes = 2 * problem_.h * elem};
    gate.layout.dg_du = halves;
    if (problem_.recompute) gate.layout.g_u = halves;
    const auto made = plan(gate, rig.device());
    if (!made) return made.error();
    gate_ = *made;
    return {};
  }

  [[nodiscard]] Run bind(const Operands& operands) override {
    const Status ready = prepare(operands);
    if (!ready) {
      return [error = ready.error()](Stream) -> Status { return error; };
    }
    return [this, operands](Stream stream) { return run(operands, stream); };
  }

 private:
  static Status make(Rig& rig, std::int64_t bytes, RigBuffer& out) {
    auto buffer = RigBuffer::make(rig, static_cast<std::size_t>(bytes));
    if (!buffer) return buffer.error();
    out = std::move(*buffer);
    return {};
  }

  [[nodiscard]] std::int64_t stride(Operand id) const {
    const OperandSpec& spec = specs_[static_cast<std::size_t>(id)];
    return spec.layout.row_stride_bytes / size_bytes(spec.dtype);
  }

  [[nodiscard]] void* second_half(const RigBuffer& rows) const {
    return rows.data() + problem_.h * size_bytes(problem_.x_dtype);
  }

  Status set_up(const LtGemm& gemm, const void* a, const void* b, void* out,
                std::unique_ptr<LtPlan>& plan) {
    auto made = library_->plan(gemm, a, b, out);
    if (!made) return made.error();
    plan = std::move(*made);
    return {};
  }

  Status prepare(const Operands& o) {
    if (dh_gemm_ != nullptr) return {};
    const Problem& p = problem_;
    const std::int64_t pair = 2 * p.h;
    const bool fp32 = p.dw_dtype == DType::kF32;
    if (p.recompute) {
      SLUICE_TRY(set_up({.m = p.m,
                         .n = pair,
                         .k = p.d,
                         .dtype = p.x_dtype,
                         .a_stride = stride(Operand::kX),
                         .b_stride = stride(Operand::kWGate),
                         .out_stride = pair},
                        o.x, o.w_gate, g_u_.data(), g_u_gemm_));
    }
    SLUICE_TRY(set_up({.m = p.m,
                       .n = p.h,
                       .k = p.d,
                       .dtype = p.x_dtype,
                       .a_stride = stride(Operand::kDy),
                       .b_stride = stride(Operand::kWDown),
                       .out_stride = p.h,
                       .b_is_k_by_n = true},
                      o.dy, o.w_down, dh_.data(), dh_gemm_));
    SLUICE_TRY(set_up({.m = p.m,
                       .n = p.d,
                       .k = pair,
                       .dtype = p.x_dtype,
                       .a_stride = pair,
                       .b_stride = stride(Operand::kWGate),
                       .out_stride = stride(Operand::kDx),
                       .b_is_k_by_n = true},
                      dg_du_.data(), o.w_gate, o.dx, dx_gemm_));
    SLUICE_TRY(set_up({.m = pair,
                       .n = p.d,
                       .k = p.m,
                       .dtype = p.x_dtype,
                       .a_stride = pair,
                       .b_stride = stride(Operand::kX),
                       .out_stride = p.d,
                       .b_is_k_by_n = true,
                       .a_is_k_by_m = true,
                       .out_is_fp32 = fp32},
                      dg_du_.data(), o.x, dw_gate_up_.data(), dw_gate_up_gemm_));
    return set_up({.m = p.d,
                   .n = p.h,
                   .k = p.m,
                   .dtype = p.x_dtype,
                   .a_stride = stride(Operand::kDy),
                   .b_stride = p.h,
                   .out_stride = stride(Operand::kDwDown),
                   .b_is_k_by_n = true,
                   .a_is_k_by_m = true,
                   .out_is_fp32 = fp32},
                  o.dy, h_.data(), o.dw_down, dw_down_gemm_);
  }

  Status run(const Operands& o, Stream stream) {
    Operands gate;
    gate.g = o.g;
    gate.u = o.u;
    if (problem_.recompute) {
      SLUICE_TRY(g_u_gemm_->run(o.x, o.w_gate, g_u_.data(), stream));
      gate.g = g_u_.data();
      gate.u = second_half(g_u_);
    }
    SLUICE_TRY(dh_gemm_->run(o.dy, o.w_down, dh_.data(), stream));
    gate.dh = dh_.data();
    gate.h = h_.data();
    gate.dg = dg_du_.data();
    gate.du = second_half(dg_du_);
    SLUICE_TRY(sluice::run(gate_, gate, Workspace{}, stream));
    SLUICE_TRY(dx_gemm_->run(dg_du_.data(), o.w_gate, o.dx, stream));
    SLUICE_TRY(dw_gate_up_gemm_->run(dg_du_.data(), o.x, dw_gate_up_.data(), stream));
    return dw_down_gemm_->run(o.dy, h_.data(), o.dw_down, stream);
  }

  Problem problem_;
  std::array<OperandSpec, kOperandCount> specs_;
  std::shared_ptr<CublasLt> library_;
  RigBuffer dh_;          // [M, H]
  RigBuffer h_;           // [M, H]
  RigBuffer g_u_;         // [M, 2H], where recomputed
  RigBuffer dg_du_;       // [M, 2H]
  RigBuffer dw_gate_up_;  // [2H, D]
  Plan gate_{};
  std::unique_ptr<LtPlan> g_u_gemm_;
  std::unique_ptr<LtPlan> dh_gemm_;
  std::unique_ptr<LtPlan> dx_gemm_;
  std::unique_ptr<LtPlan> dw_gate_up_gemm_;
  std::unique_ptr<LtPlan> dw_down_gemm_;
};

}  // namespace

Status add_training_baseline(const Case& test_case, Rig& rig,
                             const std::shared_ptr<CublasLt>& library,
                             std::vector<std::unique_ptr<Baseline>>& out) {
  const std::int64_t behind =
      test_case.problem.h *
      operand_specs(test_case.problem)[static_cast<std::size_t>(Operand::kWGate)]
          .layout.row_stride_bytes;
  if (!fits(test_case.problem) || test_case.up_first ||
      pair_offset_bytes(test_case, Operand::kWGate) != behind) {
    return {};
  }
  auto baseline = std::make_unique<TrainingBaseline>(test_case, library);
  SLUICE_TRY(baseline->open(rig));
  out.push_back(std::move(baseline));
  return {};
}

}  // namespace sluice::harness
