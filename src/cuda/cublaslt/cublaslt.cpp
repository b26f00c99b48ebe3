// SPDX-License-Identifier: Apache-2.0
// Row-major out = a·b is column-major outᵀ = bᵀ·aᵀ: cuBLASLt's A is our b, its B our a. Descriptors
// live on the stack and algorithms in a static table, so that a run allocates nothing here.
#include "cuda/cublaslt/cublaslt.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <span>

#include "cuda/cublaslt/api.hpp"
#include "cuda/cublaslt/ranking.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda {
namespace {

Error lt_error(cublasStatus_t status, const char* what) {
  return make_error(ErrorCode::kDevice, "cuBLASLt: %s failed with status %d", what,
                    static_cast<int>(status));
}

#define LT_TRY(call, what)                                                         \
  do {                                                                             \
    if (const cublasStatus_t status_ = (call); status_ != CUBLAS_STATUS_SUCCESS) { \
      return lt_error(status_, what);                                              \
    }                                                                              \
  } while (false)

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Everything that the heuristic and the ranking see: a product at any addresses.
struct Key {
  LtProduct product;
  int device;
  LtGpu gpu;

  friend bool operator==(const Key&, const Key&) = default;
};

Key key_of(const LtProduct& product, const Device& device) {
  static constexpr char kAnyBias = 0;
  LtProduct p = product;
  p.a.base = p.b.base = p.out = nullptr;
  p.b_step_bytes = 0;
  if (p.bias != nullptr) p.bias = &kAnyBias;
  return {p, device.ordinal, {device.sm_count, sm90::gemm::has_narrow_l2(device.l2_bytes)}};
}

// The heuristic's answers for a product, ranked: at least one.
struct Algorithms {
  std::array<cublasLtMatmulAlgo_t, kCublasLtRanks> ranked;
  int count;

  const cublasLtMatmulAlgo_t& at(int rank) const {
    return ranked[static_cast<std::size_t>(std::min(rank, count - 1))];
  }
};

// A process has a few shapes a layer kind; beyond that the oldest goes and is asked for again.
class AlgorithmTable {
 public:
  const Algorithms* find(const Key& key) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (entries_[i].key == key) return &entries_[i].algorithms;
    }
    return nullptr;
  }
  const Algorithms& add(const Key& key, const Algorithms& algorithms) {
    Entry& entry = entries_[next_];
    entry = {key, algorithms};
    next_ = (next_ + 1) % entries_.size();
    count_ = std::min(count_ + 1, entries_.size());
    return entry.algorithms;
  }

 private:
  struct Entry {
    Key key;
    Algorithms algorithms;
  };
  std::array<Entry, 128> entries_{};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
};

// What all runs share.
struct Shared {
  // Held by who makes a handle or asks the heuristic: tens of microseconds, once a product.
  std::mutex asking;
  // One a device, made under `asking` before the device's first algorithms are added; never
  // destroyed: the driver may be gone before a static's destructor runs.
  std::array<cublasLtHandle_t, kMaxDevices> handles{};
  std::mutex mutex;
  AlgorithmTable algorithms;  // under `mutex`
};
Shared& shared() {
  static Shared instance;
  return instance;
}

// While a thread captures in global mode, calls that might allocate are errors; what cuBLASLt does
// for a handle is not part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

struct Descriptors {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, out;  // cuBLASLt's A is our b

  cublasStatus_t bias(const CublasLtApi& api, const void* pointer) {
    return api.desc_set(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof(pointer));
  }
  static cublasStatus_t step(const CublasLtApi& api, cublasLtMatrixLayoutOpaque_t& layout,
                             std::int64_t elems) {
    return api.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &elems,
                          sizeof(elems));
  }

  Status init(const CublasLtApi& api, const LtProduct& p) {
    LT_TRY(api.desc_init(&desc, sizeof(desc), CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescInit");
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      return api.desc_set(&desc, attribute, &value, sizeof(value));
    };
    const cublasOperation_t a_operation = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b_operation = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, a_operation), "MatmulDescSetAttribute");
    LT_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, b_operation), "MatmulDescSetAttribute");
    if (p.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const cudaDataType_t type = data_type(p.dtype);
      LT_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue), "MatmulDescSetAttribute");
      // The heuristic reads the pointer's alignment: the least that is promised, for the same
      // algorithm whatever the first run's pointer is.
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that nobody reads from
      LT_TRY(
          bias(api, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(p.alignment_bytes))),
          "MatmulDescSetAttribute");
      LT_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type), "MatmulDescSetAttribute");
    }
    // Row-major [rows, cols] is column-major [cols, rows].
    const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, DType type, std::int64_t rows,
                            std::int64_t cols, std::int64_t stride) {
      return api.layout_init(&to, sizeof(to), data_type(type), static_cast<std::uint64_t>(cols),
                             static_cast<std::uint64_t>(rows), stride);
    };
    const bool at = p.a.transposed;
    const bool bt = p.b.transposed;
    LT_TRY(layout(a, p.dtype, bt ? p.n : p.k, bt ? p.k : p.n, p.b.stride_elems),
           "MatrixLayoutInit");
    LT_TRY(layout(b, p.dtype, at ? p.k : p.m, at ? p.m : p.k, p.a.stride_elems),
           "MatrixLayoutInit");
    LT_TRY(layout(out, p.out_dtype, p.m, p.n, p.out_stride_elems), "MatrixLayoutInit");
    if (p.count == 1) return {};
    const std::int32_t count = p.count;
    for (auto* of : {&a, &b, &out}) {
      LT_TRY(api.layout_set(of, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
             "MatrixLayoutSetAttribute");
    }
    // The heuristic sees a step of one matrix, whatever the distance of the pointers is: each
    // model's layer has another, and all have one algorithm.
    LT_TRY(step(api, a, (bt ? p.n : p.k) * p.b.stride_elems), "MatrixLayoutSetAttribute");
    LT_TRY(step(api, b, 0), "MatrixLayoutSetAttribute");
    LT_TRY(step(api, out, p.out_step_elems), "MatrixLayoutSetAttribute");
    return {};
  }
};

LtAttributes attributes_of(const CublasLtApi& api, const cublasLtMatmulAlgo_t& algorithm) {
  LtAttributes out;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    std::size_t written = 0;
    return api.algorithm_get(&algorithm, attribute, &value, sizeof(value), &written) ==
           CUBLAS_STATUS_SUCCESS;
  };
  const bool all = read(CUBLASLT_ALGO_CONFIG_ID, out.id) &&
                   read(CUBLASLT_ALGO_CONFIG_TILE_ID, out.tile) &&
                   read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, out.split_k) &&
                   read(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, out.custom) &&
                   read(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, out.cluster);
  return all ? out : LtAttributes{};
}

// All that the heuristic offers, up to kCublasLtRanks, the fastest by lt_ranking() first.
Expected<Algorithms> ask(const CublasLtApi& api, cublasLtHandle_t handle, Descriptors& d,
                         const LtProduct& p, const LtGpu& gpu) {
  cublasLtMatmulPreferenceOpaque_t preference;
  LT_TRY(api.preference_init(&preference, sizeof(preference)), "MatmulPreferenceInit");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return api.preference_set(&preference, attribute, &value, sizeof(value));
  };
  const auto scratch = static_cast<std::uint64_t>(kCublasLtScratchBytes);
  // Sums of a split k in fp32, in the workspace; never in the output or its type.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  LT_TRY(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch), "MatmulPreferenceSetAttribute");
  LT_TRY(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions),
         "MatmulPreferenceSetAttribute");
  const auto alignment = static_cast<std::uint32_t>(p.alignment_bytes);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    LT_TRY(set(attribute, alignment), "MatmulPreferenceSetAttribute");
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCublasLtRanks> results{};
  int count = 0;
  LT_TRY(api.heuristic(handle, &d.desc, &d.a, &d.b, &d.out, &d.out, &preference, kCublasLtRanks,
                       results.data(), &count),
         "MatmulAlgoGetHeuristic");
  std::array<LtAttributes, kCublasLtRanks> attributes;
  Algorithms offered{};
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    const auto place = static_cast<std::size_t>(offered.count++);
    offered.ranked[place] = result.algo;
    attributes[place] = attributes_of(api, result.algo);
  }
  if (offered.count == 0) {
    return make_error(ErrorCode::kUnsupported, "cuBLASLt: no algorithm for this product");
  }
  const std::span answers(attributes.data(), static_cast<std::size_t>(offered.count));
  const auto order = lt_ranking(p, answers, gpu);
  Algorithms ranked{.ranked = {}, .count = offered.count};
  std::transform(order.begin(), order.end(), ranked.ranked.begin(),
                 [&](int place) { return offered.at(place); });
  return ranked;
}

struct Chosen {
  cublasLtHandle_t handle;
  cublasLtMatmulAlgo_t algorithm;
};

// What is known waits for nobody that asks.
Expected<Chosen> choose(const CublasLtApi& api, Descriptors& d, const LtProduct& p,
                        const Device& device, int rank) {
  const Key key = key_of(p, device);
  Shared& s = shared();
  cublasLtHandle_t& handle = s.handles[static_cast<std::size_t>(key.device)];
  const auto known = [&]() -> std::optional<Chosen> {
    const std::lock_guard lock(s.mutex);
    const Algorithms* found = s.algorithms.find(key);
    if (found == nullptr) return std::nullopt;
    return Chosen{handle, found->at(rank)};
  };
  if (const auto chosen = known()) return *chosen;
  const std::lock_guard one_at_a_time(s.asking);
  if (const auto chosen = known()) return *chosen;  // another thread has asked meanwhile
  const RelaxedCapture relaxed;
  if (handle == nullptr) LT_TRY(api.create(&handle), "Create");
  const auto asked = ask(api, handle, d, p, key.gpu);
  if (!asked) return asked.error();
  const std::lock_guard lock(s.mutex);
  return Chosen{handle, s.algorithms.add(key, *asked).at(rank)};
}

// Without a batch, or where cuBLASLt may take b's step.
bool is_one_call(const LtProduct& p) {
  return p.count == 1 || (p.b_step_bytes >= 0 && p.b_step_bytes < kCublasLtStepLimitBytes &&
                          p.b_step_bytes % p.alignment_bytes == 0);
}

// The i-th product of a batch, alone.
LtProduct one_of(LtProduct p, int i) {
  p.b.base = static_cast<const char*>(p.b.base) + i * p.b_step_bytes;
  p.out = static_cast<char*>(p.out) + i * p.out_step_elems * size_bytes(p.out_dtype);
  p.count = 1;
  p.out_step_elems = 0;
  return p;
}

}  // namespace

int cublaslt_version(int driver_version) noexcept {
  const CublasLtApi* api = cublaslt_api();
  const int version = api == nullptr ? 0 : static_cast<int>(api->get_version());
  return version / 10000 <= driver_version / 1000 ? version : 0;
}

Status cublaslt_product(const LtProduct& p, int rank, const Device& device, void* scratch,
                        Stream stream) noexcept {
  const CublasLtApi* api = cublaslt_api();
  if (api == nullptr) return make_error(ErrorCode::kUnsupported, "cuBLASLt: %s", kCublasLtAbsent);
  if (device.ordinal < 0 || device.ordinal >= kMaxDevices) {
    return make_error(ErrorCode::kInvalidArgument, "device: got ordinal %d, wanted 0 to %d",
                      device.ordinal, kMaxDevices - 1);
  }
  if (!is_one_call(p)) {
    for (int i = 0; i < p.count; ++i) {
      SLUICE_TRY(cublaslt_product(one_of(p, i), rank, device, scratch, stream));
    }
    return {};
  }
  Descriptors d;
  SLUICE_TRY(d.init(*api, p));
  const auto chosen = choose(*api, d, p, device, rank);
  if (!chosen) return chosen.error();
  if (p.bias != nullptr) LT_TRY(d.bias(*api, p.bias), "MatmulDescSetAttribute");
  if (p.count > 1) {
    LT_TRY(Descriptors::step(*api, d.a, p.b_step_bytes / size_bytes(p.dtype)),
           "MatrixLayoutSetAttribute");
  }
  const float one = 1.0F;
  const float beta = p.accumulate ? 1.0F : 0.0F;
  LT_TRY(api->matmul(chosen->handle, &d.desc, &one, p.b.base, &d.a, p.a.base, &d.b, &beta, p.out,
                     &d.out, p.out, &d.out, &chosen->algorithm, scratch,
                     static_cast<std::size_t>(kCublasLtScratchBytes),
                     static_cast<cudaStream_t>(stream)),
         "Matmul");
  return {};
}

#undef LT_TRY

}  // namespace sluice::cuda
