// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/cublaslt.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "cuda/cublaslt/api.hpp"
#include "harness/cuda/check.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr int kAlgorithms = 8;
constexpr int kTimedRuns = 3;

Error lt_error(cublasStatus_t status, const char* what) {
  Error error = make_error(ErrorCode::kDevice, "cuBLASLt: %s failed with status %d", what,
                           static_cast<int>(status));
  error.cuda_code = static_cast<int>(status);
  return error;
}

#define LT_TRY(call, what)                                                         \
  do {                                                                             \
    if (const cublasStatus_t status_ = (call); status_ != CUBLAS_STATUS_SUCCESS) { \
      return lt_error(status_, what);                                              \
    }                                                                              \
  } while (false)

cudaDataType_t data_type(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F; }

// Row-major out = a · bᵀ is column-major outᵀ = b · aᵀ: cuBLASLt's A is b (transposed, where it is
// [N, K]), its B is a.
class Plan final : public LtPlan {
 public:
  Plan(const cuda::CublasLtApi& api, cublasLtHandle_t handle, void* workspace)
      : api_(api), handle_(handle), workspace_(workspace) {}

  Status describe(const LtGemm& gemm) {
    const cudaDataType_t type = data_type(gemm.dtype);
    LT_TRY(api_.desc_init(&desc_, sizeof(desc_), CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescInit");
    const cublasOperation_t b_operation = gemm.b_is_k_by_n ? CUBLAS_OP_N : CUBLAS_OP_T;
    LT_TRY(api_.desc_set(&desc_, CUBLASLT_MATMUL_DESC_TRANSA, &b_operation, sizeof(b_operation)),
           "MatmulDescSetAttribute");
    const cublasOperation_t a_operation = gemm.a_is_k_by_m ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_TRY(api_.desc_set(&desc_, CUBLASLT_MATMUL_DESC_TRANSB, &a_operation, sizeof(a_operation)),
           "MatmulDescSetAttribute");
    const auto u = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
    const std::int64_t b_cols = gemm.b_is_k_by_n ? gemm.n : gemm.k;
    const std::int64_t b_rows = gemm.b_is_k_by_n ? gemm.k : gemm.n;
    const std::int64_t a_cols = gemm.a_is_k_by_m ? gemm.m : gemm.k;
    const std::int64_t a_rows = gemm.a_is_k_by_m ? gemm.k : gemm.m;
    const cudaDataType_t out_type = gemm.out_is_fp32 ? CUDA_R_32F : type;
    LT_TRY(api_.layout_init(&b_, sizeof(b_), type, u(b_cols), u(b_rows), gemm.b_stride),
           "MatrixLayoutInit");
    LT_TRY(api_.layout_init(&a_, sizeof(a_), type, u(a_cols), u(a_rows), gemm.a_stride),
           "MatrixLayoutInit");
    LT_TRY(api_.layout_init(&out_, sizeof(out_), out_type, u(gemm.n), u(gemm.m), gemm.out_stride),
           "MatrixLayoutInit");
    return {};
  }

  Expected<int> offers(std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms>& results) {
    cublasLtMatmulPreferenceOpaque_t preference;
    LT_TRY(api_.preference_init(&preference, sizeof(preference)), "MatmulPreferenceInit");
    LT_TRY(api_.preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
           "MatmulPreferenceSetAttribute");
    int count = 0;
    LT_TRY(api_.heuristic(handle_, &desc_, &b_, &a_, &out_, &out_, &preference, kAlgorithms,
                          results.data(), &count),
           "MatmulAlgoGetHeuristic");
    if (count == 0) {
      return make_error(ErrorCode::kUnsupported, "cuBLASLt: no algorithm for this product");
    }
    return count;
  }

  void choose(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }

  Status run(const void* a, const void* b, void* out, Stream stream) override {
    const float one = 1.0F;
    const float zero = 0.0F;
    LT_TRY(api_.matmul(handle_, &desc_, &one, b, &b_, a, &a_, &zero, out, &out_, out, &out_,
                       &algorithm_, workspace_, kWorkspaceBytes, static_cast<cudaStream_t>(stream)),
           "Matmul");
    return {};
  }

 private:
  const cuda::CublasLtApi& api_;
  cublasLtHandle_t handle_;
  void* workspace_;
  cublasLtMatmulDescOpaque_t desc_{};
  cublasLtMatrixLayoutOpaque_t a_{};
  cublasLtMatrixLayoutOpaque_t b_{};
  cublasLtMatrixLayoutOpaque_t out_{};
  cublasLtMatmulAlgo_t algorithm_{};
};

// The shortest of a few runs, each between two events, in milliseconds.
Expected<float> shortest_ms(LtPlan& plan, const void* a, const void* b, void* out,
                            cudaStream_t stream) {
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events) HARNESS_CUDA_TRY(cudaEventCreate(&event));
  float best = std::numeric_limits<float>::infinity();
  Status status = plan.run(a, b, out, stream);  // warm-up
  for (int i = 0; i < kTimedRuns && status; ++i) {
    HARNESS_CUDA_TRY(cudaEventRecord(events[0], stream));
    status = plan.run(a, b, out, stream);
    HARNESS_CUDA_TRY(cudaEventRecord(events[1], stream));
    HARNESS_CUDA_TRY(cudaEventSynchronize(events[1]));
    float ms = 0;
    HARNESS_CUDA_TRY(cudaEventElapsedTime(&ms, events[0], events[1]));
    best = std::min(best, ms);
  }
  for (cudaEvent_t event : events) HARNESS_CUDA_TRY(cudaEventDestroy(event));
  if (!status) return status.error();
  return best;
}

}  // namespace

struct CublasLt::State {
  explicit State(Rig& r) : rig(r) {}
  Rig& rig;
  const cuda::CublasLtApi* api = nullptr;
  cublasLtHandle_t handle = nullptr;
  RigBuffer workspace;
};

CublasLt::CublasLt(std::unique_ptr<State> state) : state_(std::move(state)) {}

CublasLt::~CublasLt() {
  if (state_->handle != nullptr) static_cast<void>(state_->api->destroy(state_->handle));
}

Expected<std::unique_ptr<CublasLt>> CublasLt::open(Rig& rig) {
  const cuda::CublasLtApi* api = cuda::cublaslt_api();
  if (api == nullptr) {
    return make_error(ErrorCode::kUnsupported, "cuBLASLt: %s", cuda::kCublasLtAbsent);
  }
  auto state = std::make_unique<State>(rig);
  state->api = api;
  HARNESS_CUDA_TRY(cudaSetDevice(rig.device().ordinal));
  LT_TRY(api->create(&state->handle), "Create");
  auto out = std::unique_ptr<CublasLt>(new CublasLt(std::move(state)));
  auto workspace = RigBuffer::make(rig, kWorkspaceBytes);
  if (!workspace) return workspace.error();
  out->state_->workspace = std::move(*workspace);
  return out;
}

std::int64_t CublasLt::workspace_bytes() noexcept {
  return static_cast<std::int64_t>(kWorkspaceBytes);
}

Expected<std::unique_ptr<LtPlan>> CublasLt::plan(const LtGemm& gemm, const void* a, const void* b,
                                                 void* out) {
  auto plan = std::make_unique<Plan>(*state_->api, state_->handle, state_->workspace.data());
  SLUICE_TRY(plan->describe(gemm));
  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> results{};
  const auto count = plan->offers(results);
  if (!count) return count.error();
  int best = -1;
  float best_ms = std::numeric_limits<float>::infinity();
  auto* const stream = static_cast<cudaStream_t>(state_->rig.stream());
  for (int i = 0; i < *count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    plan->choose(result.algo);
    const auto ms = shortest_ms(*plan, a, b, out, stream);
    if (ms && *ms < best_ms) best = i, best_ms = *ms;
  }
  if (best < 0) {
    return make_error(ErrorCode::kUnsupported, "cuBLASLt: none of %d algorithms ran", *count);
  }
  plan->choose(results[static_cast<std::size_t>(best)].algo);
  return std::unique_ptr<LtPlan>(std::move(plan));
}

}  // namespace sluice::harness
