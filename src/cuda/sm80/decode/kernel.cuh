// SPDX-License-Identifier: Apache-2.0
// gate_up and linear for up to 64 tokens on Ampere and newer: weights stream once from memory
// through rings of cp.async, tokens are the columns of mma.sync. Drawing: docs/kernels/sm80.md.
//
// roles       a group of warps is alone with its ring and its units of K (64 columns): its copying
//             warps fill a stage with a unit, its others multiply 16 or 32 rows each by all tokens.
//             No group waits for another before a block's end
// shared      exchange | groups x stages x { weight rows x 128 bytes | tokens x 128 bytes } |
//             groups x stages x { full, empty }
// barriers    full, kCopyThreads arrivals: of each copying thread of the group, once its copies
// have
//             landed; the multiplying warps wait. empty, kRowWarps arrivals: of each multiplying
//             warp of the group, once it has read the stage; the copying threads wait. Named 1, all
//             multiplying warps: twice a pass of a block's end, around what groups tell each other
// outside     slots of rows or tokens that do not exist are neither copied nor stored: what lies in
//             them meets no other row or token. Columns from k on are zeros in both operands
#pragma once

#include <cstdint>
#include <iterator>

#include "cuda/host/launch.hpp"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/ordered.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm80/decode/launch.hpp"
#include "cuda/tile/activation.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm80::decode {

template <bool kIsGated, class ElementType, Tiling kTiling>
struct Config {
  using Element = ElementType;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = kTiling.tokens;
  static constexpr int kRows = kTiling.rows;
  static constexpr int kGroups = kTiling.groups;
  static constexpr int kMathThreads = kWarps * 32;
  static constexpr int kCopyThreads = copy_warps(kTiling) * 32 / kGroups;  // of a group
  static constexpr int kThreads = kMathThreads + copy_warps(kTiling) * 32;
  static constexpr int kRowWarps = kWarps / kGroups;  // of a group
  static constexpr int kWarpRows = kRows / kRowWarps;
  static constexpr int kMmas = kWarpRows / kMmaRows;
  static constexpr int kSlices = kTokens / kSliceTokens;
  static constexpr int kPassSlices = pass_slices(kTiling);
  static constexpr int kPasses = kSlices / kPassSlices;
  static constexpr int kPassTiles = pass_tiles(kTiling);
  static constexpr int kRowBytes = kUnitColumns * 2;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kCopyRows = kCopyThreads / kChunks;  // rows that a group copies at once
  static constexpr int kWeightCopies = kRows / kCopyRows;
  static constexpr int kTokenCopies = (kTokens + kCopyRows - 1) / kCopyRows;
  // Tokens in the last quarter of slices are multiplied only where there are some.
  static constexpr int kSureSlices = kSlices < 4 ? kSlices : kSlices - kSlices / 4;
  static constexpr int kStageBytes = stage_bytes(kTiling) / kGroups;  // of one group
  static constexpr int kExchangeBytes = exchange_bytes(kTiling);
  static_assert(kWarpRows % kMmaRows == 0 && kRows % kCopyRows == 0 && kSlices % kPassSlices == 0);
  static_assert(kCopyThreads % 32 == 0 && kMathThreads % kCopyThreads == 0, "see find_rows()");
  static_assert(2 * kCopyRows % 8 == 0, "a thread's copies take two forms of chunk_at()");
  static_assert(kExchangeBytes % 128 == 0 && kStageBytes % 128 == 0,
                "chunk_at() needs whole lines");
};

// A ring as its group goes round in it.
template <class Cfg>
struct Ring {
  std::uint32_t stages;     // where they begin in shared memory
  std::uint64_t* barriers;  // full and empty of each
  int count;
  int stage = 0;
  std::uint32_t lap = 0;  // its parity is that of the stage's phase

  __device__ __forceinline__ Ring(const Params& p, char* smem, int group)
      : stages(ptx::shared_address(smem) + Cfg::kExchangeBytes +
               group * p.stages * Cfg::kStageBytes),
        barriers(barriers_of(p, smem) + group * p.stages * 2),
        count(p.stages) {}

  // Of all groups.
  [[nodiscard]] static __device__ __forceinline__ std::uint64_t* barriers_of(const Params& p,
                                                                             char* smem) {
    return reinterpret_cast<std::uint64_t*>(smem + Cfg::kExchangeBytes +
                                            Cfg::kGroups * p.stages * Cfg::kStageBytes);
  }

  [[nodiscard]] __device__ __forceinline__ std::uint64_t& full() const {
    return barriers[stage * 2];
  }
  [[nodiscard]] __device__ __forceinline__ std::uint64_t& empty() const {
    return barriers[stage * 2 + 1];
  }

  __device__ __forceinline__ void advance() {
    if (++stage < count) return;
    stage = 0;
    ++lap;
  }
};

// Which part of the launch's work is this CTA's, and which of that this thread's group has.
template <class Cfg>
struct Place {
  int cta_group = static_cast<int>(blockIdx.x);  // of CTAs that share rows
  int rank = 0;                                  // in it
  int group;
  int first;  // units of K of this group of warps: first, first + kGroups, ...
  int units;  // how many of them a block has

  __device__ __forceinline__ Place(const Params& p, int own_group) : group(own_group) {
    if (p.split > 1) {
      cta_group = static_cast<int>(blockIdx.x) / p.split;
      rank = static_cast<int>(blockIdx.x) % p.split;
    }
    const UnitRange columns = p.shares.columns.part(rank);
    first = columns.begin + group;
    units = (columns.size() - group + Cfg::kGroups - 1) / Cfg::kGroups;
  }
};

// Where the rows begin that this thread copies, every kCopyRows-th; null for none. A row's place
// may take a division: each lane finds a few for its warp.
// NOTE: code is cold in a launch: addresses that each thread computed for itself cost 1 us.
template <class Cfg, int kCopies, class At>
__device__ __forceinline__ void find_rows(const char* (&rows)[kCopies], const At& at) {
  constexpr int kWarpRows = 32 / Cfg::kChunks;  // that a warp copies at once
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % Cfg::kCopyThreads / 32;
  unsigned long long found[(kCopies * kWarpRows + 31) / 32];
#pragma unroll
  for (int i = 0; i < static_cast<int>(std::size(found)); ++i) {
    const int index = i * 32 + lane;
    const int row = index / kWarpRows * Cfg::kCopyRows + warp * kWarpRows + index % kWarpRows;
    found[i] = reinterpret_cast<unsigned long long>(at(row));
  }
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int index = i * kWarpRows + lane / Cfg::kChunks;
    rows[i] = reinterpret_cast<const char*>(
        __shfl_sync(0xFFFFFFFFU, found[i * kWarpRows / 32], index % 32));
  }
}

// A copying thread: one column of chunks in every kCopyRows-th row of a stage.
template <class Cfg>
__device__ __forceinline__ void copy(const Params& p, char* smem) {
  const int thread = static_cast<int>(threadIdx.x) - Cfg::kMathThreads;
  const Place<Cfg> place(p, thread / Cfg::kCopyThreads);
  const int first_row = thread % Cfg::kCopyThreads / Cfg::kChunks;
  const int chunk = thread % Cfg::kChunks;
  const char* tokens[Cfg::kTokenCopies];
  find_rows<Cfg>(tokens, [&](int i) { return i < p.m ? p.x.at(i) : nullptr; });
  Ring<Cfg> ring(p, smem, place.group);
  // Rows that are eight apart have a chunk at one place: of these two follow all.
  const int at[] = {chunk_at(first_row, chunk), chunk_at(first_row + Cfg::kCopyRows, chunk)};
  const auto to = [&](std::uint32_t rows, int i) {
    return rows + at[i % 2] + i / 2 * 2 * Cfg::kCopyRows * Cfg::kRowBytes;
  };
#pragma unroll 1
  for (int block = 0; block < p.shares.blocks; ++block) {
    const UnitRange rows = p.shares.block(place.cta_group, block);
    const char* weights[Cfg::kWeightCopies];
    find_rows<Cfg>(weights, [&](int i) {
      const SlotRow slot = slot_row(i, Cfg::kGated);
      const tile::Rows& w = p.w[Cfg::kGated && slot.up ? 1 : 0];
      return slot.unit < rows.size() ? w.at(rows.begin + slot.unit) : nullptr;
    });
    if (block == 0) __syncthreads();  // the barriers are there
#pragma unroll 1
    for (int unit = 0; unit < place.units; ++unit) {
      const int column = (place.first + unit * Cfg::kGroups) * kUnitColumns + chunk * 8;
      const long long bytes = static_cast<long long>(column) * 2;
      const bool inside = column < p.k;
      const std::uint32_t stage = ring.stages + ring.stage * Cfg::kStageBytes;
      if (ring.lap > 0) ptx::mbarrier_wait(ring.empty(), (ring.lap - 1) & 1);
#pragma unroll
      for (int i = 0; i < Cfg::kWeightCopies; ++i) {
        if (weights[i] == nullptr) continue;
        ptx::cp_async_16(to(stage, i), weights[i] + bytes, inside);
      }
#pragma unroll
      for (int i = 0; i < Cfg::kTokenCopies; ++i) {
        if (tokens[i] == nullptr) continue;
        ptx::cp_async_16(to(stage + Cfg::kRows * Cfg::kRowBytes, i), tokens[i] + bytes, inside);
      }
      ptx::cp_async_arrive(ring.full());
      ring.advance();
    }
  }
}

// A warp's sums. Of tile (i, s) a lane has rows g and g + 8 of mma i, tokens 2q and 2q + 1 of slice
// s, g = lane / 4 and q = lane % 4.
template <class Cfg>
using Sums = float[Cfg::kMmas][Cfg::kSlices][4];

// One unit of K: two spans of 32 columns, two steps of mma each. `weights` and `tokens` are what
// this lane reads first of this warp's rows and of the tokens.
template <class Cfg>
__device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t tokens,
                                         bool all_slices, Sums<Cfg>& d) {
  using Element = typename Cfg::Element;
#pragma unroll
  for (int span = 0; span < 2; ++span) {
    std::uint32_t a[2][Cfg::kMmas][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < Cfg::kMmas; ++i) {
        ptx::ldmatrix_x4(a[step][i],
                         (weights ^ (span * 64 + step * 32)) + i * kMmaRows * Cfg::kRowBytes);
      }
    }
#pragma unroll
    for (int s = 0; s < Cfg::kSlices; ++s) {
      if (s == Cfg::kSureSlices && !all_slices) break;
      std::uint32_t b[4];  // of both steps
      ptx::ldmatrix_x4(b, (tokens ^ (span * 64)) + s * kSliceTokens * Cfg::kRowBytes);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < Cfg::kMmas; ++i) {
          ptx::mma_m16n8k16<Element>(d[i][s], a[step][i], b[2 * step], b[2 * step + 1]);
        }
      }
    }
  }
}

// A lane's sums of one tile, where they belong.
struct TileSums {
  float4 v;   // rows g: x, y; rows g + 8: z, w
  int slot;   // of row g in the block
  int token;  // of x and z; y and w are of the next
};

template <class Cfg>
__device__ __forceinline__ float element_or_zero(const void* base, int i) {
  using Element = typename Cfg::Element;
  return base == nullptr ? 0.0F : static_cast<float>(static_cast<const Element*>(base)[i]);
}

template <class Cfg>
__device__ __forceinline__ void store(const Params& p, int token, int col, float value) {
  using Element = typename Cfg::Element;
  char* const row = static_cast<char*>(p.out) + token * p.out_row_bytes;
  reinterpret_cast<Element*>(row)[col] = Element(value);
}

// h = gate(g + bg, u + bu), or y = d + bias + residual, of a tile's elements that exist.
template <class Cfg>
__device__ __forceinline__ void store_tile(const Params& p, const UnitRange& units,
                                           const TileSums& t) {
  if constexpr (Cfg::kGated) {
    const int col = units.begin + slot_row(t.slot, true).unit;
    if (col >= units.end || t.token >= p.m) return;
    const float bg = element_or_zero<Cfg>(p.bias[0], col);
    const float bu = element_or_zero<Cfg>(p.bias[1], col);
    tile::with_epilogue_gate(p.gate, [&](const Gate& gate) {
      store<Cfg>(p, t.token, col, math::gate_mul(gate, t.v.x + bg, t.v.z + bu));
      if (t.token + 1 >= p.m) return;
      store<Cfg>(p, t.token + 1, col, math::gate_mul(gate, t.v.y + bg, t.v.w + bu));
    });
  } else {
    const float v[2][2] = {{t.v.x, t.v.y}, {t.v.z, t.v.w}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = units.begin + t.slot + half * 8;
      if (col >= units.end) continue;
      const float bias = element_or_zero<Cfg>(p.bias[0], col);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (t.token + i >= p.m) continue;
        const char* const row = p.residual.base == nullptr ? nullptr : p.residual.at(t.token + i);
        store<Cfg>(p, t.token + i, col, v[half][i] + bias + element_or_zero<Cfg>(row, col));
      }
    }
  }
}

__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

// The end of a block. A pass's tiles are dealt to the groups, and a warp finishes its own for the
// same rows of all groups: `finish(i, j, v)` has tile j of pass i. Groups are added in order.
template <class Cfg, class Finish>
__device__ __forceinline__ void exchange(const Params& p, float4* shared, int group, int row_warp,
                                         Sums<Cfg>& d, const Finish& finish) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto at = [&](int of_group, int tile) {
    return ((of_group * Cfg::kRowWarps + row_warp) * Cfg::kPassTiles + tile) * 32 + lane;
  };
#pragma unroll 1
  for (int pass = 0; pass < Cfg::kPasses; ++pass) {
    if (pass * Cfg::kPassSlices * kSliceTokens >= p.m) break;
    ptx::named_barrier_sync(1, Cfg::kMathThreads);  // what the last pass left is read
#pragma unroll
    for (int i = 0; i < Cfg::kMmas; ++i) {
#pragma unroll
      for (int s = 0; s < Cfg::kPassSlices; ++s) {
        const float* const v = d[i][s];
        shared[at(group, i * Cfg::kPassSlices + s)] = make_float4(v[0], v[1], v[2], v[3]);
      }
      // Registers have no index: the next pass's sums go where this one's were.
#pragma unroll
      for (int s = 0; s < Cfg::kSlices - Cfg::kPassSlices; ++s) {
#pragma unroll
        for (int c = 0; c < 4; ++c) d[i][s][c] = d[i][s + Cfg::kPassSlices][c];
      }
    }
    ptx::named_barrier_sync(1, Cfg::kMathThreads);  // all groups' sums are there
#pragma unroll 1
    for (int tile = group; tile < Cfg::kPassTiles; tile += Cfg::kGroups) {
      float4 sum = shared[at(0, tile)];
#pragma unroll
      for (int of_group = 1; of_group < Cfg::kGroups; ++of_group) {
        add(sum, shared[at(of_group, tile)]);
      }
      finish(pass, tile, sum);
    }
  }
}

// Where tile `tile` of pass `pass` belongs.
template <class Cfg>
__device__ __forceinline__ TileSums placed(int row_warp, int pass, int tile, const float4& v) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = pass * Cfg::kPassSlices + tile % Cfg::kPassSlices;
  return {v, row_warp * Cfg::kWarpRows + tile / Cfg::kPassSlices * kMmaRows + lane / 4,
          slice * kSliceTokens + lane % 4 * 2};
}

// Where CTA `rank` of this group leaves a tile of this warp's row warp.
template <class Cfg>
__device__ __forceinline__ float4* partial(const Params& p, const Place<Cfg>& place, int rank,
                                           int row_warp, int pass, int tile) {
  const int cta = place.cta_group * p.split + rank;
  const int row = (cta * Cfg::kRowWarps + row_warp) * Cfg::kPasses + pass;
  return reinterpret_cast<float4*>(p.partials) +
         (static_cast<long long>(row) * Cfg::kPassTiles + tile) * 32 + threadIdx.x % 32;
}

// Whether this warp is the last of those that share its tiles to have left its sums: what the
// others left is then there to read. Nobody waits, so CTAs need not run at once.
__device__ __forceinline__ bool is_last(const Params& p, int cta_group) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t& word = p.header->tickets[cta_group * 2 + warp / 4];
  const int shift = warp % 4 * 8;  // a byte a warp
  std::uint32_t before = 0;
  __syncwarp();
  if (threadIdx.x % 32 == 0) before = ptx::add_release(&word, 1U << shift);
  const auto count = static_cast<int>(__shfl_sync(0xFFFFFFFFU, before, 0) >> shift & 0xFF);
  if (count != p.split - 1) return false;
  // The next launch finds the byte at 0.
  if (threadIdx.x % 32 == 0) {
    ptx::add_release(&word, 0U - (static_cast<std::uint32_t>(p.split) << shift));
  }
  __syncwarp();  // what lane 0 acquired holds for all
  return true;
}

template <class Cfg>
__device__ __forceinline__ void finish_block(const Params& p, const Place<Cfg>& place,
                                             const UnitRange& units, int row_warp, float4* shared,
                                             Sums<Cfg>& d) {
  if (p.split == 1) {
    exchange<Cfg>(p, shared, place.group, row_warp, d, [&](int pass, int tile, const float4& v) {
      store_tile<Cfg>(p, units, placed<Cfg>(row_warp, pass, tile, v));
    });
    return;
  }
  exchange<Cfg>(p, shared, place.group, row_warp, d, [&](int pass, int tile, const float4& v) {
    __stcg(partial<Cfg>(p, place, place.rank, row_warp, pass, tile), v);
  });
  if (!is_last(p, place.cta_group)) return;
  // A warp has so many tiles of a pass, and so many are on their way at once.
  constexpr int kOwn = (Cfg::kPassTiles + Cfg::kGroups - 1) / Cfg::kGroups;
  constexpr int kTiles = kOwn * Cfg::kPasses;
  constexpr int kAtOnce = kTiles < 2 ? kTiles : 2;
#pragma unroll 1
  for (int first = 0; first < kTiles; first += kAtOnce) {
    float4 parts[kAtOnce][kMaxSplit];
    const auto tile_of = [&](int i) { return place.group + i % kOwn * Cfg::kGroups; };
    const auto there = [&](int i) {
      return tile_of(i) < Cfg::kPassTiles && i / kOwn * Cfg::kPassSlices * kSliceTokens < p.m;
    };
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!there(first + i)) continue;
#pragma unroll
      for (int rank = 0; rank < kMaxSplit; ++rank) {
        if (rank >= p.split) break;
        parts[i][rank] =
            __ldcg(partial<Cfg>(p, place, rank, row_warp, (first + i) / kOwn, tile_of(first + i)));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!there(first + i)) continue;
      float4 sum = parts[i][0];
#pragma unroll
      for (int rank = 1; rank < kMaxSplit; ++rank) {
        if (rank < p.split) add(sum, parts[i][rank]);
      }
      store_tile<Cfg>(p, units, placed<Cfg>(row_warp, (first + i) / kOwn, tile_of(first + i), sum));
    }
  }
}

// A multiplying warp.
template <class Cfg>
__device__ __forceinline__ void multiply_blocks(const Params& p, char* smem) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_warp = warp % Cfg::kRowWarps;
  const Place<Cfg> place(p, warp / Cfg::kRowWarps);
  const bool all_slices = p.m > Cfg::kSureSlices * kSliceTokens;
  Ring<Cfg> ring(p, smem, place.group);
  // Of a step's four matrices of 8 x 8 weights, rows 0, 8, 0, 8 and columns 0, 0, 8, 8 of 16 x 16;
  // of a span's of tokens, columns 0, 8, 16, 24.
  const std::uint32_t weights =
      ring.stages + chunk_at(row_warp * Cfg::kWarpRows + lane % 16, lane / 16);
  const std::uint32_t tokens =
      ring.stages + Cfg::kRows * Cfg::kRowBytes + chunk_at(lane % 8, lane / 8);
#pragma unroll 1
  for (int block = 0; block < p.shares.blocks; ++block) {
    const UnitRange rows = p.shares.block(place.cta_group, block);
    const bool has_rows = slot_row(row_warp * Cfg::kWarpRows, Cfg::kGated).unit < rows.size();
    Sums<Cfg> d = {};
#pragma unroll 1
    for (int unit = 0; unit < place.units; ++unit) {
      const int stage = ring.stage * Cfg::kStageBytes;
      ptx::mbarrier_wait(ring.full(), ring.lap & 1);
      if (has_rows) multiply<Cfg>(weights + stage, tokens + stage, all_slices, d);
      __syncwarp();  // all lanes have read it
      if (lane == 0) ptx::mbarrier_arrive(ring.empty());
      ring.advance();
    }
    finish_block<Cfg>(p, place, rows, row_warp, reinterpret_cast<float4*>(smem), d);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1) decode(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char smem[];
  if (threadIdx.x % 32 == 0) {
    std::uint64_t* const barriers = Ring<Cfg>::barriers_of(p, smem);
    // NOTE: the lanes of a warp would take turns at `mbarrier.init`.
    for (auto i = static_cast<int>(threadIdx.x) / 32; i < Cfg::kGroups * p.stages;
         i += Cfg::kThreads / 32) {
      ptx::mbarrier_init(barriers[i * 2], Cfg::kCopyThreads);
      ptx::mbarrier_init(barriers[i * 2 + 1], Cfg::kRowWarps);
    }
  }
  if (threadIdx.x >= Cfg::kMathThreads) {
    copy<Cfg>(p, smem);
  } else {
    __syncthreads();  // the barriers are there
    multiply_blocks<Cfg>(p, smem);
  }
}

template <class Cfg>
Status launch_config(const Launch& launch, const Params& p) noexcept {
  const LaunchShape shape{.grid = static_cast<unsigned>(p.shares.groups * p.split),
                          .block = Cfg::kThreads,
                          .smem_bytes = static_cast<std::size_t>(smem_bytes(launch.tiling))};
  return cuda::launch<decode<Cfg>>(launch.device, shape, launch.stream, p);
}

template <bool kGated, class Element, std::size_t kIndex = 0>
Status launch_typed(const Launch& launch, const Params& params) noexcept {
  if constexpr (kIndex < std::size(kTilings)) {
    constexpr Tiling kTiling = kTilings[kIndex];
    if (launch.tiling.tokens == kTiling.tokens && launch.tiling.rows == kTiling.rows) {
      return launch_config<Config<kGated, Element, kTiling>>(launch, params);
    }
    return launch_typed<kGated, Element, kIndex + 1>(launch, params);
  } else {
    return make_error(ErrorCode::kInternal, "sm80 decode: no kernel for %d tokens, %d rows",
                      launch.tiling.tokens, launch.tiling.rows);
  }
}

}  // namespace sluice::cuda::sm80::decode
