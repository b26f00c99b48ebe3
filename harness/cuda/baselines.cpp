// SPDX-License-Identifier: Apache-2.0
// What a serving engine runs without Sluice: one cuBLASLt GEMM over merged gate and up weights, an
// activation kernel, one cuBLASLt GEMM.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "harness/baseline.hpp"
#include "harness/cuda/activation.hpp"
#include "harness/cuda/check.hpp"
#include "harness/cuda/cublaslt.hpp"
#include "harness/cuda/grad_baseline.hpp"
#include "harness/cuda/training_baseline.hpp"
#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

constexpr std::int64_t kVectorElems = 8;

enum class Part : std::uint8_t {
  kGateUpAct,   // cublaslt+act
  kGateUpGemm,  // cublaslt_gemm: the merged product alone
  kDownGemm,    // cublaslt_gemm
  kChain,       // cublaslt_chain
};

const char* name_of(Part part) {
  switch (part) {
    case Part::kGateUpAct:
      return "cublaslt+act";
    case Part::kGateUpGemm:
    case Part::kDownGemm:
      return "cublaslt_gemm";
    case Part::kChain:
      return "cublaslt_chain";
  }
  return "";
}

const OperandSpec& spec_of(const std::array<OperandSpec, kOperandCount>& specs, Operand id) {
  return specs[static_cast<std::size_t>(id)];
}

std::int64_t stride_elems(const OperandSpec& spec) {
  return spec.layout.row_stride_bytes / size_bytes(spec.dtype);
}

// cuBLASLt and the vector loads of the activation want 16 bytes everywhere.
bool aligned(const OperandSpec& spec) {
  return spec.access == Access::kUnused ||
         (spec.layout.row_stride_bytes % 16 == 0 && spec.layout.row_stride_bytes > 0);
}

bool fits(const Case& c) {
  const Problem& p = c.problem;
  const bool op = p.op == Op::kGateUp || p.op == Op::kDown || p.op == Op::kMlp ||
                  p.op == Op::kGateUpGrad || p.op == Op::kMlpGrad;
  const bool types = p.x_dtype == p.w_dtype && p.x_dtype == p.y_dtype &&
                     (p.x_dtype == DType::kBF16 || p.x_dtype == DType::kF16);
  const bool plain = !p.bias_gate_up && !p.bias_down && !p.norm.enabled && !p.save_g_u &&
                     p.residual == Residual::kNone;
  if (!op || !types || !plain || p.m == 0 || p.alignment_bytes < 16 || p.h % kVectorElems != 0 ||
      p.d % kVectorElems != 0) {
    return false;
  }
  const auto specs = operand_specs(p);
  return std::all_of(specs.begin(), specs.end(), aligned);
}

class CudaBaseline final : public Baseline {
 public:
  CudaBaseline(Part part, const Case& c, Rig& rig, std::shared_ptr<CublasLt> library)
      : part_(part),
        problem_(c.problem),
        specs_(operand_specs(c.problem)),
        rig_(rig),
        library_(std::move(library)) {}

  [[nodiscard]] std::string name() const override { return name_of(part_); }

  // Merged weights that were copied from separate ones are not counted: an engine has no others.
  [[nodiscard]] std::int64_t extra_bytes() const override {
    return g_u_bytes() + (part_ == Part::kChain ? h_bytes() : 0) + CublasLt::workspace_bytes();
  }

  Status open() {
    if (part_ != Part::kDownGemm) {
      auto buffer = RigBuffer::make(rig_, static_cast<std::size_t>(g_u_bytes()));
      if (!buffer) return buffer.error();
      g_u_ = std::move(*buffer);
    }
    if (part_ == Part::kChain) {
      auto buffer = RigBuffer::make(rig_, static_cast<std::size_t>(h_bytes()));
      if (!buffer) return buffer.error();
      h_ = std::move(*buffer);
    }
    return {};
  }

  [[nodiscard]] Run bind(const Operands& operands) override {
    auto bound = prepare(operands);
    if (!bound) {
      return [error = bound.error()](Stream) -> Status { return error; };
    }
    const Bound b = *bound;
    return [this, b](Stream stream) { return run(b, stream); };
  }

 private:
  struct Bound {
    const void* x;
    const void* w_gate_up;  // [2H, D]
    const void* w_down;
    const void* h_in;
    void* h_out;
    void* y;
  };

  [[nodiscard]] std::int64_t g_u_bytes() const {
    return part_ == Part::kDownGemm ? 0
                                    : 2 * problem_.m * problem_.h * size_bytes(problem_.x_dtype);
  }
  [[nodiscard]] std::int64_t h_bytes() const {
    return problem_.m * problem_.h * size_bytes(problem_.x_dtype);
  }
  [[nodiscard]] bool has_gate_up() const { return part_ != Part::kDownGemm; }
  [[nodiscard]] bool has_down() const { return part_ == Part::kDownGemm || part_ == Part::kChain; }
  [[nodiscard]] bool has_activation() const {
    return part_ == Part::kGateUpAct || part_ == Part::kChain;
  }

  Expected<Bound> prepare(const Operands& operands) {
    Bound b{};
    b.x = operands.x;
    b.w_down = operands.w_down;
    b.y = operands.y;
    b.h_out = part_ == Part::kChain ? h_.data() : operands.h;
    b.h_in = part_ == Part::kChain ? h_.data() : operands.h;
    if (has_gate_up()) {
      const auto merged = merge(operands);
      if (!merged) return merged.error();
      b.w_gate_up = *merged;
      if (gate_up_ == nullptr) {
        LtGemm gemm{problem_.m, 2 * problem_.h, problem_.d,    problem_.x_dtype,
                    0,          problem_.d,     2 * problem_.h};
        gemm.a_stride = stride_elems(spec_of(specs_, Operand::kX));
        auto plan = library_->plan(gemm, b.x, b.w_gate_up, g_u_.data());
        if (!plan) return plan.error();
        gate_up_ = std::move(*plan);
      }
    }
    if (has_activation() && !shape_chosen_) SLUICE_TRY(choose_activation(b));
    if (has_down() && down_ == nullptr) {
      LtGemm gemm{problem_.m, problem_.d, problem_.h, problem_.x_dtype, problem_.h, 0, 0};
      if (part_ == Part::kDownGemm) gemm.a_stride = stride_elems(spec_of(specs_, Operand::kH));
      gemm.b_stride = stride_elems(spec_of(specs_, Operand::kWDown));
      gemm.out_stride = stride_elems(spec_of(specs_, Operand::kY));
      auto plan = library_->plan(gemm, b.h_in, b.w_down, b.y);
      if (!plan) return plan.error();
      down_ = std::move(*plan);
    }
    return b;
  }

  // [gate; up] as one [2H, D] matrix: the operands' own memory where they lie so, else a copy made
  // once for each pair of pointers.
  Expected<const void*> merge(const Operands& operands) {
    const OperandSpec& spec = spec_of(specs_, Operand::kWGate);
    const std::int64_t row_bytes = problem_.d * size_bytes(spec.dtype);
    const Layout& l = spec.layout;
    const auto* gate = static_cast<const char*>(operands.w_gate);
    const auto* up = static_cast<const char*>(operands.w_up);
    if (l.block_rows == 0 && l.row_stride_bytes == row_bytes &&
        up == gate + problem_.h * row_bytes) {
      return static_cast<const void*>(gate);
    }
    RigBuffer& copy = merged_[{gate, up}];
    if (copy.data() != nullptr) return static_cast<const void*>(copy.data());
    auto buffer = RigBuffer::make(rig_, static_cast<std::size_t>(2 * problem_.h * row_bytes));
    if (!buffer) return buffer.error();
    copy = std::move(*buffer);
    const std::int64_t block = l.block_rows == 0 ? problem_.h : l.block_rows;
    const auto bytes = [](std::int64_t v) { return static_cast<std::size_t>(v); };
    auto* const stream = static_cast<cudaStream_t>(rig_.stream());
    char* to = copy.data();
    for (const char* from : {gate, up}) {
      // One row a block: the blocks' stride is the pitch of a single copy.
      const bool single = l.block_rows == 1;
      const std::int64_t step = single ? problem_.h : block;
      const std::int64_t pitch = single ? l.block_stride_bytes : l.row_stride_bytes;
      for (std::int64_t row = 0; row < problem_.h; row += step) {
        const std::int64_t rows = std::min(step, problem_.h - row);
        HARNESS_CUDA_TRY(cudaMemcpy2DAsync(to + row * row_bytes, bytes(row_bytes),
                                           from + (row / step) * l.block_stride_bytes,
                                           bytes(std::max(pitch, row_bytes)), bytes(row_bytes),
                                           bytes(rows), cudaMemcpyDeviceToDevice, stream));
      }
      to += problem_.h * row_bytes;
    }
    SLUICE_TRY(rig_.synchronize());
    return static_cast<const void*>(copy.data());
  }

  Status activate(const Bound& b, ActivationShape shape, Stream stream) {
    ActivationCall call;
    call.m = problem_.m;
    call.h = problem_.h;
    call.dtype = problem_.x_dtype;
    call.gate = problem_.gate;
    call.g_u = g_u_.data();
    call.out = b.h_out;
    call.out_stride_bytes = part_ == Part::kChain
                                ? problem_.h * size_bytes(problem_.x_dtype)
                                : spec_of(specs_, Operand::kH).layout.row_stride_bytes;
    return enqueue_activation(call, shape, stream);
  }

  // The better of the two on this shape and device, by the shortest of a few runs.
  Status choose_activation(const Bound& b) {
    constexpr int kRuns = 5;
    auto* const stream = static_cast<cudaStream_t>(rig_.stream());
    cudaEvent_t start = nullptr;
    cudaEvent_t stop = nullptr;
    HARNESS_CUDA_TRY(cudaEventCreate(&start));
    HARNESS_CUDA_TRY(cudaEventCreate(&stop));
    float best = std::numeric_limits<float>::infinity();
    for (const ActivationShape shape : {ActivationShape::kOneRow, ActivationShape::kTiled}) {
      SLUICE_TRY(activate(b, shape, stream));
      for (int i = 0; i < kRuns; ++i) {
        HARNESS_CUDA_TRY(cudaEventRecord(start, stream));
        SLUICE_TRY(activate(b, shape, stream));
        HARNESS_CUDA_TRY(cudaEventRecord(stop, stream));
        HARNESS_CUDA_TRY(cudaEventSynchronize(stop));
        float ms = 0;
        HARNESS_CUDA_TRY(cudaEventElapsedTime(&ms, start, stop));
        if (ms < best) best = ms, shape_ = shape;
      }
    }
    HARNESS_CUDA_TRY(cudaEventDestroy(start));
    HARNESS_CUDA_TRY(cudaEventDestroy(stop));
    shape_chosen_ = true;
    return {};
  }

  Status run(const Bound& b, Stream stream) {
    if (has_gate_up()) SLUICE_TRY(gate_up_->run(b.x, b.w_gate_up, g_u_.data(), stream));
    if (has_activation()) SLUICE_TRY(activate(b, shape_, stream));
    if (has_down()) SLUICE_TRY(down_->run(b.h_in, b.w_down, b.y, stream));
    return {};
  }

  Part part_;
  Problem problem_;
  std::array<OperandSpec, kOperandCount> specs_;
  Rig& rig_;
  std::shared_ptr<CublasLt> library_;
  RigBuffer g_u_;
  RigBuffer h_;
  std::map<std::pair<const void*, const void*>, RigBuffer> merged_;
  std::unique_ptr<LtPlan> gate_up_;
  std::unique_ptr<LtPlan> down_;
  ActivationShape shape_ = ActivationShape::kTiled;
  bool shape_chosen_ = false;
};

std::vector<Part> parts_of(Op op) {
  if (op == Op::kGateUp) return {Part::kGateUpAct, Part::kGateUpGemm};
  if (op == Op::kDown) return {Part::kDownGemm};
  return {Part::kChain};
}

}  // namespace

Expected<std::vector<std::unique_ptr<Baseline>>> make_cuda_baselines(const Case& test_case,
                                                                     Rig& rig) {
  std::vector<std::unique_ptr<Baseline>> out;
  if (!fits(test_case)) return out;
  auto opened = CublasLt::open(rig);
  if (!opened) {
    if (opened.error().code == ErrorCode::kUnsupported) return out;
    return opened.error();
  }
  const std::shared_ptr<CublasLt> library = std::move(*opened);
  if (test_case.problem.op == Op::kGateUpGrad) {
    SLUICE_TRY(add_grad_baselines(test_case, rig, library, out));
    return out;
  }
  if (test_case.problem.op == Op::kMlpGrad) {
    SLUICE_TRY(add_training_baseline(test_case, rig, library, out));
    return out;
  }
  for (const Part part : parts_of(test_case.problem.op)) {
    auto baseline = std::make_unique<CudaBaseline>(part, test_case, rig, library);
    SLUICE_TRY(baseline->open());
    out.push_back(std::move(baseline));
  }
  return out;
}

}  // namespace sluice::harness
