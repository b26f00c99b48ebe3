// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "harness/cuda/check.hpp"
#include "harness/cuda/compare.hpp"

namespace sluice::harness {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1 << 20;
constexpr unsigned long long kNone = ~0ULL;

struct Side {
  Layout layout;
  DType dtype;
  const char* base;
};

// Combined by integer atomics, so that the result does not depend on the order of blocks.
struct Sums {
  unsigned long long failed;
  unsigned long long worst_bits;  // of a non-negative double: ordered as integers
  unsigned long long first;
};

__device__ double read(const Side& side, std::int64_t row, std::int64_t col) {
  const char* at = side.base + offset_bytes(side.layout, side.dtype, row, col);
  switch (side.dtype) {
    case DType::kBF16:
      return static_cast<double>(__bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at)));
    case DType::kF16:
      return static_cast<double>(__half2float(*reinterpret_cast<const __half*>(at)));
    case DType::kF32:
      return static_cast<double>(*reinterpret_cast<const float*>(at));
    case DType::kF64:
      return *reinterpret_cast<const double*>(at);
    default:  // outputs are never in blocks
      break;
  }
  return 0;
}

__global__ void compare(Side expected, Side got, std::int64_t rows, std::int64_t cols,
                        double absolute, double relative, Sums* sums) {
  const std::int64_t chunks = (cols + kThreads - 1) / kThreads;
  for (std::int64_t item = blockIdx.x; item < rows * chunks; item += gridDim.x) {
    const std::int64_t row = item / chunks;
    const std::int64_t col = item % chunks * kThreads + threadIdx.x;
    if (col >= cols) continue;
    const double want = read(expected, row, col);
    const double have = read(got, row, col);
    if (want == have || (isnan(want) && isnan(have))) continue;
    const double bound = absolute + relative * fabs(want);
    const double off = fabs(have - want);
    const bool passes = off <= bound && isfinite(want);  // false for NaN
    const double ratio = bound > 0 ? off / bound : off;
    if (isfinite(ratio)) {
      atomicMax(&sums->worst_bits, static_cast<unsigned long long>(__double_as_longlong(ratio)));
    }
    if (!passes) {
      atomicAdd(&sums->failed, 1ULL);
      atomicMin(&sums->first, static_cast<unsigned long long>(row * cols + col));
    }
  }
}

}  // namespace

Expected<GpuComparison> compare_on_gpu(const OperandSpec& expected_spec, const void* expected,
                                       const OperandSpec& got_spec, const void* got,
                                       double absolute, double relative, Rig& rig) {
  if (expected_spec.rows != got_spec.rows || expected_spec.cols != got_spec.cols) {
    return make_error(ErrorCode::kInvalidArgument, "compare: shapes differ");
  }
  GpuComparison out;
  out.compared = got_spec.rows * got_spec.cols;
  if (out.compared == 0) return out;
  auto buffer = RigBuffer::make(rig, sizeof(Sums));
  if (!buffer) return buffer.error();
  Sums sums{0, 0, kNone};
  SLUICE_TRY(rig.upload(buffer->data(), &sums, sizeof(sums)));
  const std::int64_t items = got_spec.rows * ((got_spec.cols + kThreads - 1) / kThreads);
  compare<<<static_cast<unsigned>(std::min(items, kMaxBlocks)), kThreads, 0,
            static_cast<cudaStream_t>(rig.stream())>>>(
      Side{expected_spec.layout, expected_spec.dtype, static_cast<const char*>(expected)},
      Side{got_spec.layout, got_spec.dtype, static_cast<const char*>(got)}, got_spec.rows,
      got_spec.cols, absolute, relative, reinterpret_cast<Sums*>(buffer->data()));
  HARNESS_CUDA_TRY(cudaGetLastError());
  SLUICE_TRY(rig.download(&sums, buffer->data(), sizeof(sums)));
  out.failed = static_cast<std::int64_t>(sums.failed);
  out.worst_ratio = __builtin_bit_cast(double, sums.worst_bits);
  out.first_failed = sums.first == kNone ? -1 : static_cast<std::int64_t>(sums.first);
  return out;
}

}  // namespace sluice::harness
