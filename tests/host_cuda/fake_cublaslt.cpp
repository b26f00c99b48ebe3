// SPDX-License-Identifier: Apache-2.0
#include "fake_cublaslt.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace sluice::fake_cublaslt {
namespace {

struct State {
  std::atomic<int> handles{0};
  std::atomic<int> heuristics{0};
  std::atomic<int> under_way{0};
  std::atomic<int> most_heuristics{0};
  std::atomic<int> products{0};
  std::atomic<int> foreign_products{0};
  std::atomic<int> last_rank{-1};
  std::atomic<int> offered{8};
  std::atomic<int> takes_ms{0};
  std::atomic<std::int64_t> held{kNone};
  std::atomic<int> holding{0};
  std::atomic<std::size_t> version{130100};
};
State state;
char handle;  // cublasLtHandle_t points here

// A product as its layouts say: our [m, n] is its out's columns and rows, k the side of A that is
// no side of out.
std::array<std::uint64_t, 3> shape_of(cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t out) {
  const std::uint64_t n = out->data[0];
  return {out->data[1], n, a->data[0] == n ? a->data[1] : a->data[0]};
}

}  // namespace

void reset() noexcept {
  state.handles = 0;
  state.heuristics = 0;
  state.most_heuristics = 0;
  state.products = 0;
  state.foreign_products = 0;
  state.last_rank = -1;
  state.offered = 8;
  state.takes_ms = 0;
  state.held = kNone;
}

Counts counts() noexcept {
  return {state.handles, state.heuristics, state.most_heuristics, state.products,
          state.foreign_products};
}

int last_rank() noexcept { return state.last_rank; }
void offer(int count) noexcept { state.offered = count; }
void take_ms(int milliseconds) noexcept { state.takes_ms = milliseconds; }
void hold(std::int64_t n) noexcept { state.held = n; }
bool holds() noexcept { return state.holding != 0; }
void set_version(std::size_t version) noexcept { state.version = version; }

}  // namespace sluice::fake_cublaslt

using sluice::fake_cublaslt::handle;
using sluice::fake_cublaslt::shape_of;
using sluice::fake_cublaslt::state;

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
                                              cublasLtMatmulDescAttributes_t /*attribute*/,
                                              const void* /*value*/, std::size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 std::size_t /*size*/, cudaDataType /*type*/,
                                                 std::uint64_t rows, std::uint64_t cols,
                                                 std::int64_t /*stride*/) {
  layout->data[0] = rows;
  layout->data[1] = cols;
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
    cublasLtMatrixLayout_t /*b*/, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t out,
    cublasLtMatmulPreference_t /*preference*/, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++state.heuristics;
  const int now = ++state.under_way;
  int most = state.most_heuristics;
  while (most < now && !state.most_heuristics.compare_exchange_weak(most, now)) {
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(state.takes_ms));
  const auto shape = shape_of(a, out);
  ++state.holding;
  while (state.held == static_cast<std::int64_t>(shape[1])) std::this_thread::yield();
  --state.holding;
  *count = std::min(wanted, state.offered.load());
  for (int rank = 0; rank < *count; ++rank) {
    results[rank].state = CUBLAS_STATUS_SUCCESS;
    // All eight words: who reads an algorithm while another is written over it has some of each.
    auto& words = results[rank].algo.data;
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = shape[i % 3];
    words[std::size(words) - 1] = static_cast<std::uint64_t>(rank);
  }
  --state.under_way;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t made, cublasLtMatmulDesc_t /*desc*/,
                              const void* /*alpha*/, const void* /*a_base*/,
                              cublasLtMatrixLayout_t a, const void* /*b_base*/,
                              cublasLtMatrixLayout_t /*b*/, const void* /*beta*/,
                              const void* /*c_base*/, cublasLtMatrixLayout_t /*c*/,
                              void* /*out_base*/, cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t* algorithm, void* /*workspace*/,
                              std::size_t /*workspace_bytes*/, cudaStream_t /*stream*/) {
  ++state.products;
  const auto shape = shape_of(a, out);
  const auto& words = algorithm->data;
  bool own = made == reinterpret_cast<cublasLtHandle_t>(&handle);
  for (std::size_t i = 0; i + 1 < std::size(words); ++i) own = own && words[i] == shape[i % 3];
  if (!own) ++state.foreign_products;
  state.last_rank = static_cast<int>(words[std::size(words) - 1]);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
