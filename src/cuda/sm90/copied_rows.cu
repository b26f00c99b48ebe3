// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/host/launch.hpp"
#include "cuda/operands.hpp"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/copied_rows.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90 {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kWarp = 32;
constexpr int kHeld = 2;  // vectors of a row that a thread has on their way at once

struct CopyParams {
  tile::RowMajor from;
  tile::RowMajor to;
  std::int64_t rows = 0;
  int vectors = 0;  // of 16 bytes in a row
};

using Short = unsigned short;

union Vector {
  uint4 whole;
  Short shorts[sizeof(uint4) / sizeof(Short)];
};

template <class Word>
__device__ __forceinline__ Vector load(const Word* row, int v) {
  Vector vector;
  if constexpr (sizeof(Word) == sizeof(uint4)) {
    vector.whole = __ldcg(row + v);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) vector.shorts[i] = __ldcg(row + v * 8 + i);
  }
  return vector;
}

template <class Word>
__device__ __forceinline__ void store(Word* row, int v, const Vector& vector) {
  if constexpr (sizeof(Word) == sizeof(uint4)) {
    row[v] = vector.whole;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) row[v * 8 + i] = vector.shorts[i];
  }
}

// A CTA a row: 16 bytes at once where the rows begin at such, else two.
template <class From, class To>
__global__ void __launch_bounds__(kMaxThreads) copy_row(const __grid_constant__ CopyParams p) {
  // The GEMM may fetch its weights meanwhile.
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int step = static_cast<int>(blockDim.x);
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto* const from = reinterpret_cast<const From*>(p.from.base + row * p.from.row_bytes);
    auto* const to = reinterpret_cast<To*>(p.to.base + row * p.to.row_bytes);
    for (int first = static_cast<int>(threadIdx.x); first < p.vectors; first += kHeld * step) {
      Vector held[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int v = first + i * step;
        if (v < p.vectors) held[i] = load(from, v);
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int v = first + i * step;
        if (v < p.vectors) store(to, v, held[i]);
      }
    }
  }
}

std::int64_t copy_stride(const OperandSpec& spec) {
  return gemm::whole_line_stride(bytes_of(spec.dtype, spec.cols));
}

// Whether a tensor map takes the distance of the rows.
bool is_walked(const OperandSpec& spec) {
  const std::int64_t stride = spec.layout.row_stride_bytes;
  return spec.rows <= 1 ||
         (stride > 0 && stride < kTensorStrideLimit && stride % kTensorStrideMultiple == 0);
}

tile::RowMajor copied_to(const OperandSpec& spec, char* scratch) {
  return {scratch, copy_stride(spec)};
}

Status launch_copy(const detail::Step& step, const OperandSpec& spec, tile::RowMajor from,
                   tile::RowMajor to) {
  constexpr std::int64_t kVectorBytes = sizeof(uint4);
  const CopyParams params{
      .from = from,
      .to = to,
      .rows = spec.rows,
      .vectors = static_cast<int>(bytes_of(spec.dtype, spec.cols) / kVectorBytes)};
  constexpr std::int64_t kMostRows = std::int64_t{1} << 20;
  const int threads = (params.vectors + kHeld - 1) / kHeld;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(spec.rows, kMostRows)));
  shape.block =
      dim3(static_cast<unsigned>(std::min((threads + kWarp - 1) / kWarp * kWarp, kMaxThreads)));
  shape.programmatic = true;
  const int device = step.device.ordinal;
  if (from.row_bytes % kVectorBytes != 0) {
    return launch<&copy_row<Short, uint4>>(device, shape, step.stream, params);
  }
  return to.row_bytes % kVectorBytes != 0
             ? launch<&copy_row<uint4, Short>>(device, shape, step.stream, params)
             : launch<&copy_row<uint4, uint4>>(device, shape, step.stream, params);
}

}  // namespace

std::int64_t copy_bytes(const OperandSpec& spec) noexcept { return spec.rows * copy_stride(spec); }

gemm::CopyRows copy_of(const OperandSpec& spec) noexcept {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  if (!is_walked(spec)) return gemm::CopyRows::kMust;
  return copy_bytes(spec) <= kMostBytes ? gemm::CopyRows::kMay : gemm::CopyRows::kNever;
}

detail::Reason copied_view_refusal(const OperandSpec& spec) noexcept {
  OperandSpec copied = spec;
  if (copy_of(spec) == gemm::CopyRows::kMust) {
    copied.layout = {.row_stride_bytes = copy_stride(spec)};
  }
  return matrix_view_refusal(copied);
}

CopiedRows::CopiedRows(const detail::Step& step) noexcept
    : given_(step),
      problem_(step.problem),
      operands_(step.operands),
      scratch_(static_cast<char*>(step.scratch)) {}

Status CopiedRows::copy(Operand id) noexcept {
  const OperandSpec spec = given_.spec(id);
  SLUICE_TRY(launch_copy(given_, spec, row_major(given_, id), copied_to(spec, scratch_)));
  hold(id);
  return {};
}

void CopiedRows::hold(Operand id) noexcept {
  const OperandSpec spec = given_.spec(id);
  const Layout rows{.row_stride_bytes = copy_stride(spec)};
  switch (id) {
    case Operand::kX:
      problem_.layout.x = rows, operands_.x = scratch_;
      break;
    case Operand::kH:
      problem_.layout.h = rows, operands_.h = scratch_;
      break;
    case Operand::kY:
      problem_.layout.y = rows, operands_.y = scratch_;
      break;
    default:
      problem_.layout.residual = rows, operands_.residual = scratch_;
  }
  scratch_ += copy_bytes(spec);
}

Status CopiedRows::copy_back(Operand id) noexcept {
  return launch_copy(given_, given_.spec(id), row_major(step(), id), row_major(given_, id));
}

detail::Step CopiedRows::step() const noexcept {
  return {.kernel = given_.kernel,
          .problem = problem_,
          .operands = operands_,
          .device = given_.device,
          .config = given_.config,
          .scratch = scratch_,
          .header = given_.header,
          .stream = given_.stream};
}

}  // namespace sluice::cuda::sm90
