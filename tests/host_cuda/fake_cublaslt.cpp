// SPDX-License-Identifier: Apache-2.0
#include "fake_cublaslt.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace sluice::fake_cublaslt {
namespace {

struct State {
  std::atomic<int> handles{0};
  std::atomic<int> heuristics{0};
  std::atomic<int> under_way{0};
  std::atomic<int> most_heuristics{0};
  std::atomic<int> launches{0};
  std::atomic<int> foreign_products{0};
  std::atomic<int> biases{0};
  std::atomic<int> last_rank{-1};
  std::atomic<int> offered{8};
  std::atomic<int> takes_ms{0};
  std::atomic<std::int64_t> held{kNone};
  std::atomic<int> holding{0};
  std::atomic<std::size_t> version{130100};
  std::mutex mutex;
  std::vector<Product> products, asked;  // under `mutex`, as the following
  std::vector<Attributes> attributes;
  int withheld_attribute = -1;
  int withheld_rank = -1;
};
State state;
char handle;  // cublasLtHandle_t points here

// The words of a layout. Column-major: its rows are our columns.
enum Word : std::size_t { kCols, kRows, kStride, kCount, kStep };

// A product as its layouts say: our [m, n] is its out's columns and rows, k the side of A that is
// no side of out; and how many there are.
std::array<std::uint64_t, 4> shape_of(cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t out) {
  const std::uint64_t n = out->data[kCols];
  return {out->data[kRows], n, a->data[kCols] == n ? a->data[kRows] : a->data[kCols],
          out->data[kCount]};
}

Matrix matrix_of(const void* base, cublasLtMatrixLayout_t layout) {
  const auto& words = layout->data;
  return {.base = base,
          .rows = words[kRows],
          .cols = words[kCols],
          .stride = static_cast<std::int64_t>(words[kStride]),
          .step = static_cast<std::int64_t>(words[kStep]),
          .count = static_cast<std::int32_t>(words[kCount])};
}

void keep(std::vector<Product> State::*list, const Product& product) {
  const std::lock_guard lock(state.mutex);
  (state.*list).push_back(product);
}
std::vector<Product> kept(const std::vector<Product> State::*list) {
  const std::lock_guard lock(state.mutex);
  return state.*list;
}

}  // namespace

void reset() noexcept {
  state.handles = 0;
  state.heuristics = 0;
  state.most_heuristics = 0;
  state.launches = 0;
  state.foreign_products = 0;
  state.biases = 0;
  state.last_rank = -1;
  state.offered = 8;
  state.takes_ms = 0;
  state.held = kNone;
  const std::lock_guard lock(state.mutex);
  state.products.clear();
  state.asked.clear();
  state.attributes.clear();
  state.withheld_rank = -1;
}

Counts counts() noexcept {
  return {state.handles,  state.heuristics,       state.most_heuristics,
          state.launches, state.foreign_products, state.biases};
}

std::vector<Product> products() { return kept(&State::products); }
std::vector<Product> asked() { return kept(&State::asked); }
int last_rank() noexcept { return state.last_rank; }
void offer(int count) noexcept { state.offered = count; }
void describe(std::vector<Attributes> attributes) {
  const std::lock_guard lock(state.mutex);
  state.attributes = std::move(attributes);
}
void withhold(int attribute, int rank) noexcept {
  const std::lock_guard lock(state.mutex);
  state.withheld_attribute = attribute;
  state.withheld_rank = rank;
}
void take_ms(int milliseconds) noexcept { state.takes_ms = milliseconds; }
void hold(std::int64_t n) noexcept { state.held = n; }
bool holds() noexcept { return state.holding != 0; }
void set_version(std::size_t version) noexcept { state.version = version; }

}  // namespace sluice::fake_cublaslt

using namespace sluice::fake_cublaslt;  // NOLINT(google-build-using-namespace)

extern "C" {

std::size_t cublasLtGetVersion() { return state.version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  ++state.handles;
  *made = reinterpret_cast<cublasLtHandle_t>(&handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*made*/) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t /*desc*/, std::size_t /*size*/,
                                               cublasComputeType_t /*sums*/,
                                               cudaDataType_t /*scale*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t /*desc*/,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* /*value*/, std::size_t /*size*/) {
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) ++state.biases;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 std::size_t /*size*/, cudaDataType /*type*/,
                                                 std::uint64_t rows, std::uint64_t cols,
                                                 std::int64_t stride) {
  layout->data[kCols] = rows;
  layout->data[kRows] = cols;
  layout->data[kStride] = static_cast<std::uint64_t>(stride);
  layout->data[kCount] = 1;
  layout->data[kStep] = 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t size) {
  const bool count = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (!count && attribute != CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (size != (count ? sizeof(std::int32_t) : sizeof(std::int64_t))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::uint64_t& word = layout->data[count ? kCount : kStep];
  word = 0;
  std::memcpy(&word, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t /*preference*/,
                                                     std::size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t /*preference*/, cublasLtMatmulPreferenceAttributes_t /*attribute*/,
    const void* /*value*/, std::size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*made*/, cublasLtMatmulDesc_t /*desc*/, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t out,
    cublasLtMatmulPreference_t /*preference*/, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++state.heuristics;
  const int now = ++state.under_way;
  int most = state.most_heuristics;
  while (most < now && !state.most_heuristics.compare_exchange_weak(most, now)) {
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(state.takes_ms));
  keep(&State::asked, {matrix_of(nullptr, b), matrix_of(nullptr, a), matrix_of(nullptr, out)});
  const auto shape = shape_of(a, out);
  ++state.holding;
  while (state.held == static_cast<std::int64_t>(shape[1])) std::this_thread::yield();
  --state.holding;
  *count = std::min(wanted, state.offered.load());
  for (int rank = 0; rank < *count; ++rank) {
    results[rank].state = CUBLAS_STATUS_SUCCESS;
    // All eight words: who reads an algorithm while another is written over it has some of each.
    auto& words = results[rank].algo.data;
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = shape[i % 4];
    words[std::size(words) - 1] = static_cast<std::uint64_t>(rank);
  }
  --state.under_way;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t size,
                                                    std::size_t* written) {
  const auto rank = static_cast<std::size_t>(algorithm->data[std::size(algorithm->data) - 1]);
  const std::lock_guard lock(state.mutex);
  if (rank >= state.attributes.size() ||
      (static_cast<int>(rank) == state.withheld_rank && attribute == state.withheld_attribute)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto& [id, tile, split_k, custom, cluster] = state.attributes[rank];
  const auto give = [&](const auto& of) {
    if (size != sizeof(of)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(value, &of, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return give(id);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return give(tile);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return give(split_k);
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return give(custom);
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return give(cluster);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t made, cublasLtMatmulDesc_t /*desc*/,
                              const void* /*alpha*/, const void* a_base, cublasLtMatrixLayout_t a,
                              const void* b_base, cublasLtMatrixLayout_t b, const void* /*beta*/,
                              const void* /*c_base*/, cublasLtMatrixLayout_t /*c*/, void* out_base,
                              cublasLtMatrixLayout_t out, const cublasLtMatmulAlgo_t* algorithm,
                              void* /*workspace*/, std::size_t /*workspace_bytes*/,
                              cudaStream_t /*stream*/) {
  ++state.launches;
  keep(&State::products, {matrix_of(b_base, b), matrix_of(a_base, a), matrix_of(out_base, out)});
  const auto shape = shape_of(a, out);
  const auto& words = algorithm->data;
  bool own = made == reinterpret_cast<cublasLtHandle_t>(&handle);
  for (std::size_t i = 0; i + 1 < std::size(words); ++i) own = own && words[i] == shape[i % 4];
  if (!own) ++state.foreign_products;
  state.last_rank = static_cast<int>(words[std::size(words) - 1]);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
