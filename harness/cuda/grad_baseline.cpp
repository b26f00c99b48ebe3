// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/grad_baseline.hpp"

#include <utility>

#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

class GradBaseline final : public Baseline {
 public:
  GradBaseline(const Case& c, std::shared_ptr<CublasLt> library, bool with_gate)
      : problem_(c.problem), library_(std::move(library)), with_gate_(with_gate) {}

  [[nodiscard]] std::string name() const override {
    return with_gate_ ? "cublaslt+act" : "cublaslt_gemm";
  }
  [[nodiscard]] std::int64_t extra_bytes() const override {
    return static_cast<std::int64_t>(dh_.bytes()) + CublasLt::workspace_bytes();
  }

  Status open(Rig& rig) {
    auto buffer = RigBuffer::make(
        rig, static_cast<std::size_t>(problem_.m * problem_.h * size_bytes(problem_.x_dtype)));
    if (!buffer) return buffer.error();
    dh_ = std::move(*buffer);
    Problem gate = problem_;
    gate.op = Op::kGateMulGrad;
    gate.layout.dh = Layout{};
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
    return [this, operands](Stream stream) -> Status {
      SLUICE_TRY(gemm_->run(operands.dy, operands.w_down, dh_.data(), stream));
      if (!with_gate_) return {};
      Operands gate;
      gate.g = operands.g;
      gate.u = operands.u;
      gate.dh = dh_.data();
      gate.h = operands.h;
      gate.dg = operands.dg;
      gate.du = operands.du;
      return sluice::run(gate_, gate, Workspace{}, stream);
    };
  }

 private:
  Status prepare(const Operands& operands) {
    if (gemm_ != nullptr) return {};
    const auto specs = operand_specs(problem_);
    const auto stride = [&](Operand id) {
      const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
      return spec.layout.row_stride_bytes / size_bytes(spec.dtype);
    };
    const LtGemm gemm{.m = problem_.m,
                      .n = problem_.h,
                      .k = problem_.d,
                      .dtype = problem_.x_dtype,
                      .a_stride = stride(Operand::kDy),
                      .b_stride = stride(Operand::kWDown),
                      .out_stride = problem_.h,
                      .b_is_k_by_n = true};
    auto made = library_->plan(gemm, operands.dy, operands.w_down, dh_.data());
    if (!made) return made.error();
    gemm_ = std::move(*made);
    return {};
  }

  Problem problem_;
  std::shared_ptr<CublasLt> library_;
  bool with_gate_;
  RigBuffer dh_;  // [M, H]
  Plan gate_{};
  std::unique_ptr<LtPlan> gemm_;
};

}  // namespace

Status add_grad_baselines(const Case& test_case, Rig& rig, const std::shared_ptr<CublasLt>& library,
                          std::vector<std::unique_ptr<Baseline>>& out) {
  for (const bool with_gate : {true, false}) {
    auto baseline = std::make_unique<GradBaseline>(test_case, library, with_gate);
    SLUICE_TRY(baseline->open(rig));
    out.push_back(std::move(baseline));
  }
  return {};
}

}  // namespace sluice::harness
