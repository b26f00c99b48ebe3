// SPDX-License-Identifier: Apache-2.0
// cublaslt_product() on the host, in fp64, where what the heuristic is promised holds.
#include "cuda/cublaslt/cublaslt.hpp"

#include "math/float_types.hpp"

namespace sluice::cuda {
namespace {

double at(DType dtype, const void* base, std::int64_t i) {
  return math::load(static_cast<const char*>(base) + i * size_bytes(dtype), dtype);
}

bool holds(const LtProduct& p) {
  const auto is_multiple = [&](std::int64_t bytes) { return bytes % p.alignment_bytes == 0; };
  const auto is_aligned = [&](const void* base) {
    return is_multiple(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base)));
  };
  return is_aligned(p.a.base) && is_aligned(p.b.base) && is_aligned(p.out) && is_aligned(p.bias) &&
         is_multiple(p.b_step_bytes) && is_multiple(p.out_step_elems * size_bytes(p.out_dtype));
}

}  // namespace

Status cublaslt_product(const LtProduct& p, int /*rank*/, const Device& /*device*/,
                        void* /*scratch*/, Stream /*stream*/) noexcept {
  if (!holds(p)) {
    return make_error(ErrorCode::kInternal, "a matrix is no multiple of %lld bytes",
                      static_cast<long long>(p.alignment_bytes));
  }
  for (std::int64_t i = 0; i < p.count; ++i) {
    const char* const b = static_cast<const char*>(p.b.base) + i * p.b_step_bytes;
    for (std::int64_t m = 0; m < p.m; ++m) {
      for (std::int64_t n = 0; n < p.n; ++n) {
        double sum = p.bias == nullptr ? 0 : at(p.dtype, p.bias, n);
        for (std::int64_t k = 0; k < p.k; ++k) {
          sum +=
              at(p.dtype, p.a.base,
                 p.a.transposed ? k * p.a.stride_elems + m : m * p.a.stride_elems + k) *
              at(p.dtype, b, p.b.transposed ? n * p.b.stride_elems + k : k * p.b.stride_elems + n);
        }
        const std::int64_t place = m * p.out_stride_elems + i * p.out_step_elems + n;
        if (p.accumulate) sum += at(p.out_dtype, p.out, place);
        math::store(static_cast<char*>(p.out) + place * size_bytes(p.out_dtype), p.out_dtype, sum);
      }
    }
  }
  return {};
}

}  // namespace sluice::cuda
