// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "harness/cuda/activation.hpp"
#include "harness/cuda/check.hpp"
#include "math/gate.hpp"

namespace sluice::harness {
namespace {

constexpr int kTileThreads = 128;  // x 8 elements = 1024 columns
constexpr int kVector = 8;

struct Params {
  std::int64_t m;
  std::int64_t h;
  std::int64_t out_stride;  // elements
  Gate gate;
  const void* g_u;
  void* out;
};

struct Bf16 {
  using Pair = __nv_bfloat162;
  static __device__ float2 widen(Pair v) { return __bfloat1622float2(v); }
  static __device__ Pair narrow(float a, float b) { return __floats2bfloat162_rn(a, b); }
};

struct Fp16 {
  using Pair = __half2;
  static __device__ float2 widen(Pair v) { return __half22float2(v); }
  static __device__ Pair narrow(float a, float b) { return __floats2half2_rn(a, b); }
};

template <class Type>
struct alignas(16) Vector {
  typename Type::Pair pair[kVector / 2];
};

template <class Type>
__device__ void eight(const Params& p, std::int64_t row, std::int64_t col) {
  using V = Vector<Type>;
  using Element = typename Type::Pair;
  const auto at = [](const void* base, std::int64_t element) {
    return reinterpret_cast<const V*>(static_cast<const char*>(base) + element * 2);
  };
  static_assert(sizeof(Element) == 4);
  const V g = *at(p.g_u, row * 2 * p.h + col);
  const V u = *at(p.g_u, row * 2 * p.h + p.h + col);
  V out;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 a = Type::widen(g.pair[i]);
    const float2 b = Type::widen(u.pair[i]);
    out.pair[i] = Type::narrow(math::gate_mul(p.gate, a.x, b.x), math::gate_mul(p.gate, a.y, b.y));
  }
  *const_cast<V*>(at(p.out, row * p.out_stride + col)) = out;
}

template <class Type>
__global__ void one_row(const __grid_constant__ Params p) {
  for (std::int64_t row = blockIdx.x; row < p.m; row += gridDim.x) {
    for (std::int64_t col = std::int64_t{kVector} * threadIdx.x; col < p.h;
         col += std::int64_t{kVector} * blockDim.x) {
      eight<Type>(p, row, col);
    }
  }
}

template <class Type>
__global__ void tiled(const __grid_constant__ Params p) {
  const std::int64_t col =
      (std::int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * std::int64_t{kVector};
  if (col >= p.h) return;
  for (std::int64_t row = blockIdx.y; row < p.m; row += gridDim.y) eight<Type>(p, row, col);
}

template <class Type>
void start(const Params& p, ActivationShape shape, cudaStream_t stream) {
  constexpr std::int64_t kMaxGridY = 65535;
  const std::int64_t vectors = p.h / kVector;
  if (shape == ActivationShape::kOneRow) {
    const auto warps = std::clamp<std::int64_t>((vectors + 31) / 32, 1, 32);
    one_row<Type><<<static_cast<unsigned>(p.m), static_cast<unsigned>(32 * warps), 0, stream>>>(p);
    return;
  }
  const dim3 grid(static_cast<unsigned>((vectors + kTileThreads - 1) / kTileThreads),
                  static_cast<unsigned>(std::min(p.m, kMaxGridY)));
  tiled<Type><<<grid, kTileThreads, 0, stream>>>(p);
}

}  // namespace

Status enqueue_activation(const ActivationCall& call, ActivationShape shape, Stream stream) {
  const Params p{call.m, call.h, call.out_stride_bytes / 2, call.gate, call.g_u, call.out};
  auto* const s = static_cast<cudaStream_t>(stream);
  if (call.dtype == DType::kBF16) {
    start<Bf16>(p, shape, s);
  } else {
    start<Fp16>(p, shape, s);
  }
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace sluice::harness
