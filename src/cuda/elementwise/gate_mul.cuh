// SPDX-License-Identifier: Apache-2.0
// gate_mul and its gradient at the speed of memory: each thread takes a chunk of 16 bytes of every
// input at a time, and threads enough are resident to keep memory busy. Budget and measurements:
// docs/kernels/gate_mul.md.
//
// One kernel serves both walks and any cut; a second one the launch of whole chunks alone. Their
// bits agree: what an element becomes depends on its inputs alone, by one take_chunk().
#pragma once

#include <type_traits>

#include "cuda/elementwise/gate_mul.hpp"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/pair.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::elementwise {

// Problem::round_gate's rounding: what comes back from a store.
template <class Element>
struct Rounded {
  __device__ __forceinline__ float operator()(float v) const {
    return static_cast<float>(static_cast<Element>(v));
  }
};

template <class ElementType, bool kIsGrad, class RoundType = math::Unrounded>
struct GateMulConfig {
  using Element = ElementType;
  using Round = RoundType;  // math::Unrounded or Rounded<Element>
  using Bits = std::conditional_t<sizeof(Element) == 4, std::uint32_t, std::uint16_t>;
  static constexpr bool kGrad = kIsGrad;
  static constexpr int kElems = kChunkBytes / static_cast<int>(sizeof(Element));
  static constexpr int kInputs = kGrad ? 3 : 2;   // g, u, dh
  static constexpr int kOutputs = kGrad ? 3 : 1;  // h, dg, du
};

// A chunk as it lies in memory.
struct Packed {
  std::uint32_t word[kChunkBytes / 4];
};

template <class Cfg>
__device__ __forceinline__ void unpack(const Packed& in, float (&out)[Cfg::kElems]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(typename Cfg::Element) == 4) {
      out[i] = __uint_as_float(in.word[i]);
    } else {
      const tile::Pair pair = tile::unpack<typename Cfg::Element>(in.word[i]);
      out[2 * i] = pair.lo;
      out[2 * i + 1] = pair.hi;
    }
  }
}

template <class Cfg>
__device__ __forceinline__ Packed pack(const float (&in)[Cfg::kElems]) {
  Packed out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(typename Cfg::Element) == 4) {
      out.word[i] = __float_as_uint(in[i]);
    } else {
      out.word[i] = tile::pack<typename Cfg::Element>({in[2 * i], in[2 * i + 1]});
    }
  }
  return out;
}

// Without a cache hint: streaming loads (ld.cs), inputs being read once, cost 5 to 8 % of the whole
// on an H200.
__device__ __forceinline__ Packed load_whole(const char* at) {
  const uint4 v = *reinterpret_cast<const uint4*>(at);
  return {v.x, v.y, v.z, v.w};
}

__device__ __forceinline__ void store_whole(char* at, const Packed& v) {
  *reinterpret_cast<uint4*>(at) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// Element by element, those in [begin, end) alone; the others read as 0. Neighbours share lines: L1
// serves all but the first access.
template <class Cfg>
__device__ __forceinline__ Packed load_part(const char* at, int begin, int end) {
  using Bits = typename Cfg::Bits;
  Packed out{};
#pragma unroll
  for (int i = 0; i < Cfg::kElems; ++i) {
    constexpr int kAWord = 4 / static_cast<int>(sizeof(Bits));
    const std::uint32_t bits =
        i >= begin && i < end ? std::uint32_t{reinterpret_cast<const Bits*>(at)[i]} : 0U;
    out.word[i / kAWord] |= bits << (32 / kAWord * (i % kAWord));
  }
  return out;
}

template <class Cfg>
__device__ __forceinline__ void store_part(char* at, int begin, int end, const Packed& v) {
  using Bits = typename Cfg::Bits;
#pragma unroll
  for (int i = 0; i < Cfg::kElems; ++i) {
    constexpr int kAWord = 4 / static_cast<int>(sizeof(Bits));
    if (i >= begin && i < end) {
      reinterpret_cast<Bits*>(at)[i] =
          static_cast<Bits>(v.word[i / kAWord] >> (32 / kAWord * (i % kAWord)));
    }
  }
}

// out: h forward; h, dg, du backward.
template <class Cfg>
__device__ __forceinline__ void compute(const Gate& gate, const Packed (&in)[Cfg::kInputs],
                                        Packed (&out)[Cfg::kOutputs]) {
  float g[Cfg::kElems], u[Cfg::kElems], h[Cfg::kElems];
  unpack<Cfg>(in[0], g);
  unpack<Cfg>(in[1], u);
  if constexpr (Cfg::kGrad) {
    float dh[Cfg::kElems];
    unpack<Cfg>(in[2], dh);
#pragma unroll
    for (int i = 0; i < Cfg::kElems; ++i) {
      const auto grad = math::gate_mul_grad(gate, g[i], u[i], dh[i], typename Cfg::Round{});
      h[i] = grad.h;
      g[i] = grad.dg;
      u[i] = grad.du;
    }
    out[1] = pack<Cfg>(g);
    out[2] = pack<Cfg>(u);
  } else {
#pragma unroll
    for (int i = 0; i < Cfg::kElems; ++i) {
      h[i] = math::gate_mul(gate, g[i], u[i], typename Cfg::Round{});
    }
  }
  out[0] = pack<Cfg>(h);
}

// The addresses of one row in every operand, in the order of compute()'s arrays.
template <class Cfg>
struct RowPointers {
  const char* in[Cfg::kInputs];
  char* out[Cfg::kOutputs];  // out[0], h, may be null in the gradient

  __device__ __forceinline__ RowPointers(const GateMulParams& p, std::int64_t row) {
    const auto at = [row](const tile::RowMajor& m) { return m.base + row * m.row_bytes; };
    in[0] = at(p.g);
    in[1] = at(p.u);
    out[0] = p.h.base == nullptr ? nullptr : at(p.h);
    if constexpr (Cfg::kGrad) {
      in[2] = at(p.dh);
      out[1] = at(p.dg);
      out[2] = at(p.du);
    }
  }

  __device__ __forceinline__ RowCut cut() const {
    const auto first = reinterpret_cast<std::uintptr_t>(in[0]);
    std::uintptr_t difference = 0;
    for (int i = 1; i < Cfg::kInputs; ++i) {
      difference |= first ^ reinterpret_cast<std::uintptr_t>(in[i]);
    }
    for (int i = 0; i < Cfg::kOutputs; ++i) {
      const auto address = reinterpret_cast<std::uintptr_t>(out[i]);
      if (address != 0) difference |= first ^ address;
    }
    return cut_row<Cfg::kElems>(first, difference);
  }
};

// A chunk of every operand, `offset` bytes behind the row's start: one access in each where it is
// `whole`, else those of its elements in [begin, end).
template <class Cfg>
__device__ __forceinline__ void take_chunk(const GateMulParams& p, const RowPointers<Cfg>& at,
                                           std::int64_t offset, bool whole, int begin, int end) {
  Packed in[Cfg::kInputs];
  Packed out[Cfg::kOutputs];
  if (whole) {
#pragma unroll
    for (int i = 0; i < Cfg::kInputs; ++i) in[i] = load_whole(at.in[i] + offset);
  } else {
#pragma unroll
    for (int i = 0; i < Cfg::kInputs; ++i) in[i] = load_part<Cfg>(at.in[i] + offset, begin, end);
  }
  tile::with_gate(p.gate, p.plain_gate, [&](Gate gate) {
    gate.gate_multiplier = p.gate.gate_multiplier;
    compute<Cfg>(gate, in, out);
  });
#pragma unroll
  for (int i = 0; i < Cfg::kOutputs; ++i) {
    if (Cfg::kGrad && i == 0 && at.out[0] == nullptr) continue;
    char* to = at.out[i] + offset;
    if (whole) {
      store_whole(to, out[i]);
    } else {
      store_part<Cfg>(to, begin, end, out[i]);
    }
  }
}

// Any rows, by the walk that the grid says.
template <class Cfg>
__global__ void __launch_bounds__(kMaxThreads, Cfg::kGrad ? 5 : 6)
    gate_chunks(const __grid_constant__ GateMulParams p) {
  constexpr int kElem = static_cast<int>(sizeof(typename Cfg::Element));
  const int count = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const RowPointers<Cfg> at(p, row);
    const RowCut cut = at.cut();
    const std::int64_t chunks = chunks_of<Cfg::kElems>(cut, p.cols);
    for (std::int64_t first = std::int64_t{blockIdx.x} * count; first < chunks;
         first += std::int64_t{gridDim.x} * count) {
      const Round round = round_at<Cfg::kElems>(cut, first, count, p.cols);
      // Elements before and up to the end of the row, counted from this thread's chunk.
      const int begin = round.begin - thread * Cfg::kElems;
      const int end = round.end - thread * Cfg::kElems;
      take_chunk<Cfg>(p, at, round.col * kElem + thread * kChunkBytes,
                      cut.alike && begin <= 0 && end >= Cfg::kElems, begin, end);
    }
  }
}

// One row of whole chunks, a thread each (Grid::whole): what joined rows nearly always are. No
// tails and no loops: less before a thread's first load.
template <class Cfg>
__global__ void __launch_bounds__(kMaxThreads, Cfg::kGrad ? 5 : 6)
    gate_whole_chunks(const __grid_constant__ GateMulParams p) {
  constexpr int kElem = static_cast<int>(sizeof(typename Cfg::Element));
  const std::int64_t offset = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kChunkBytes;
  if (offset >= p.cols * kElem) return;
  take_chunk<Cfg>(p, RowPointers<Cfg>(p, 0), offset, true, 0, Cfg::kElems);
}

}  // namespace sluice::cuda::elementwise
