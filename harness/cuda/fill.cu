// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "harness/cuda/check.hpp"
#include "harness/cuda/fill.hpp"

namespace sluice::harness {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1 << 20;

struct Params {
  FillParams fill;
  Layout layout;
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  char* base;
};

// The bits that math::store() writes. A NaN keeps its sign and becomes the quiet NaN of the type,
// where the device's own conversions would make another.
__device__ void put(char* at, DType dtype, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  switch (dtype) {
    case DType::kBF16:
      *reinterpret_cast<std::uint16_t*>(at) =
          nan ? static_cast<std::uint16_t>((bits >> 16) | 0x40U)
              : __bfloat16_as_ushort(__float2bfloat16_rn(value));
      return;
    case DType::kF16:
      *reinterpret_cast<std::uint16_t*>(at) =
          nan ? static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x7E00U)
              : __half_as_ushort(__float2half_rn(value));
      return;
    case DType::kF32:
      *reinterpret_cast<float*>(at) = value;
      return;
    case DType::kF64:
      *reinterpret_cast<double*>(at) = static_cast<double>(value);
      return;
    default:  // fill_matrix_on_gpu() refuses block types
      return;
  }
}

// A work item is kThreads columns of one row.
__global__ void fill(const __grid_constant__ Params p) {
  const std::int64_t chunks = (p.cols + kThreads - 1) / kThreads;
  for (std::int64_t item = blockIdx.x; item < p.rows * chunks; item += gridDim.x) {
    const std::int64_t row = item / chunks;
    const std::int64_t col = item % chunks * kThreads + threadIdx.x;
    if (col < p.cols) {
      put(p.base + offset_bytes(p.layout, p.dtype, row, col), p.dtype,
          fill_value(p.fill, row, col));
    }
  }
}

}  // namespace

Status fill_matrix_on_gpu(const OperandSpec& spec, const FillParams& params, void* base,
                          Stream stream) {
  if (is_block_type(spec.dtype)) {
    return make_error(ErrorCode::kUnsupported, "%s: %s cannot be filled on a GPU", spec.name,
                      to_string(spec.dtype));
  }
  const bool one_row = spec.layout.row_stride_bytes == 0 && spec.layout.block_rows == 0;
  const std::int64_t rows = one_row ? std::min<std::int64_t>(spec.rows, 1) : spec.rows;
  if (rows == 0 || spec.cols == 0) return {};
  const Params p{params, spec.layout, spec.dtype, rows, spec.cols, static_cast<char*>(base)};
  const std::int64_t items = rows * ((spec.cols + kThreads - 1) / kThreads);
  fill<<<static_cast<unsigned>(std::min(items, kMaxBlocks)), kThreads, 0,
         static_cast<cudaStream_t>(stream)>>>(p);
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace sluice::harness
