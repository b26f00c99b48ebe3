// SPDX-License-Identifier: Apache-2.0
// The sum over ranks behind down, with bias, residual and the next RMSNorm: docs/kernels/
// all_reduce.md. A CTA has tiles of rows, the same ones on every rank:
//
//   one-shot   push(parts of its tiles to all)  wait(tile) add -> y, y_norm
//   two-shot   push(segments of its rows to who adds them) wait(tile) add, push(sums to all)
//              wait(tile's sums) -> y, y_norm
//   one-shot LL  push(packets of its rows to all) load(packets until their flags fit) add -> ...
//
// A CTA pushes all that its peers wait for in a phase before it waits for anything of that phase,
// and all CTAs are resident, so that no rank waits for one that waits for it.
//
// Barriers: a tile's signal is released by one thread a peer after a barrier of its CTA behind the
// stores, and acquired by one thread a peer before a barrier ahead of the loads. One-shot LL has
// packets and no tiles: rows are dealt to grid.x, and grid.y cuts each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/all_reduce/all_reduce.hpp"
#include "cuda/ptx/global_timer.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/ordered.cuh"
#include "cuda/ptx/prefetch.cuh"
#include "cuda/ptx/system_scope.cuh"
#include "cuda/tile/block_sum.cuh"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::all_reduce {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kWarp = 32;
constexpr int kHeld = 2;  // vectors of a row that a thread keeps for the norm: 8192 columns in all
constexpr int kLlBatch = 2;  // ranks whose packets are in flight: more would not fit in registers

// kLl: the form one_shot_ll, a kernel of its own, whose registers and code are its own too.
template <class Element, bool kLlForm>
struct AllReduceConfig {
  using Type = Element;
  static constexpr bool kLl = kLlForm;
};

__device__ __forceinline__ uint4* at(const tile::RowMajor& rows, std::int64_t row) {
  return reinterpret_cast<uint4*>(rows.base + row * rows.row_bytes);
}

// Everything that a CTA does, in phases.
template <class Cfg>
class Cta {
 public:
  using Element = typename Cfg::Type;
  using Vector = Vector8<Element>;

  __device__ Cta(const AllReduceParams& p)
      : p_(p),
        first_(static_cast<int>(threadIdx.x + (Cfg::kLl ? blockIdx.y * blockDim.x : 0))),
        step_(static_cast<int>(blockDim.x * (Cfg::kLl ? gridDim.y : 1))),
        tiles_(p.geometry.tiles()),
        epoch_(Cfg::kLl ? 0 : header(p.rank)->epoch + 1),
        dead_(!Cfg::kLl && header(p.rank)->dead != 0),
        half_(half_offset(p.peer_bytes, half_of(epoch_))) {}

  __device__ void one_shot() {
    if (!dead_) {
      for_tiles([&](int tile) {
        for_rows(tile, [&](std::int64_t row) { push_part(row); });
        signal(kPart, tile);
      });
    }
    for_tiles([&](int tile) {
      wait(kPart, tile);
      for_rows(tile, [&](std::int64_t row) { finish(row, [&](int v) { return sum(row, v); }); });
    });
  }

  __device__ void two_shot() {
    if (!dead_) {
      for_tiles([&](int tile) {
        for_pairs(tile, [&](std::int64_t row, int rows) { push_segments(row, rows); });
        signal(kPart, tile);
      });
    }
    for_tiles([&](int tile) {
      wait(kPart, tile);
      for_pairs(tile, [&](std::int64_t row, int rows) { add_segments(row, rows); });
      if (!dead_) signal(kSum, tile);
    });
    for_tiles([&](int tile) {
      wait(kSum, tile);
      for_rows(tile, [&](std::int64_t row) {
        const auto* const from =
            reinterpret_cast<const uint4*>(inbox(p_.rank) + p_.geometry.sum_offset(row));
        finish(row, [&](int v) { return failed_ ? nan() : Vector::of(__ldcg(from + v)); });
      });
    });
  }

  __device__ void one_shot_ll() {
    for_ll_rows([&](int row) { push_ll(row); });
    // The last CTA to have read the header makes it that of the next run, while packets travel.
    // Thread 0 has read it: no CTA is without a vector.
    __syncthreads();
    PeerHeader* const own = header(p_.rank);
    if (threadIdx.x == 0 && atomicAdd(&own->tickets, 1U) == gridDim.x * gridDim.y - 1) {
      own->tickets = 0;
      own->ll_epoch = ll_epoch_;
    }
    for_ll_rows([&](int row) { finish(row, [&](int v) { return sum_ll(row, v); }); });
  }

  // The last CTA to end makes the header that of the next run.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    PeerHeader* const own = header(p_.rank);
    if (ptx::add_release(&own->tickets, 1) != gridDim.x - 1) return;
    own->tickets = 0;
    own->dead = own->failed;
    own->epoch = epoch_;
  }

 private:
  [[nodiscard]] __device__ PeerHeader* header(int rank) const {
    return reinterpret_cast<PeerHeader*>(p_.peers[rank]);
  }
  [[nodiscard]] __device__ char* inbox(int rank) const { return p_.peers[rank] + half_; }
  [[nodiscard]] __device__ std::int64_t end_of(int tile) const {
    const std::int64_t end = (tile + 1) * p_.geometry.tile_rows();
    return end < p_.geometry.rows() ? end : p_.geometry.rows();
  }

  template <class Visit>
  __device__ void for_tiles(const Visit& visit) const {
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles_; tile += gridDim.x) visit(tile);
  }
  template <class Visit>
  __device__ void for_rows(int tile, const Visit& visit) const {
    for (std::int64_t row = tile * p_.geometry.tile_rows(); row < end_of(tile); ++row) visit(row);
  }
  // Two rows, or the last one: their loads take one latency.
  template <class Visit>
  __device__ void for_pairs(int tile, const Visit& visit) const {
    const std::int64_t end = end_of(tile);
    for (std::int64_t row = tile * p_.geometry.tile_rows(); row < end; row += 2) {
      visit(row, row + 1 < end ? 2 : 1);
    }
  }
  template <class Visit>
  __device__ void for_ll_rows(const Visit& visit) const {
    const auto rows = static_cast<int>(p_.geometry.rows());
    for (int row = static_cast<int>(blockIdx.x); row < rows; row += gridDim.x) visit(row);
  }
  [[nodiscard]] __device__ bool is_other(int rank) const {
    return rank < p_.geometry.world() && rank != p_.rank;
  }

  __device__ void load_part(const uint4* from, int v, uint4 (&held)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (v + i * step_ < p_.vectors) held[i] = __ldcg(from + v + i * step_);
    }
  }

  __device__ void push_part(std::int64_t row) const {
    const uint4* const from = at(p_.part, row);
    const std::int64_t offset = p_.geometry.part_offset(p_.rank, row);
    for (int v = first_; v < p_.vectors; v += kHeld * step_) {
      uint4 held[kHeld];
      load_part(from, v, held);
      for (int peer = 0; peer < p_.geometry.world(); ++peer) {
        if (!is_other(peer)) continue;
        auto* const to = reinterpret_cast<uint4*>(inbox(peer) + offset);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          if (v + i * step_ < p_.vectors) to[v + i * step_] = held[i];
        }
      }
    }
  }

  // Two-shot: each segment of one or two rows to the rank that adds it.
  __device__ void push_segments(std::int64_t row, int rows) const {
    const int segment = p_.geometry.segment();
    for (int v = first_; v < p_.vectors; v += kHeld * step_) {
      uint4 held[2][kHeld];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (r < rows) load_part(at(p_.part, row + r), v, held[r]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t offset = p_.geometry.part_offset(p_.rank, row + r);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          const int w = v + i * step_;
          const int owner = w / segment;
          if (r >= rows || w >= p_.vectors || owner == p_.rank) continue;
          reinterpret_cast<uint4*>(inbox(owner) + offset)[w - owner * segment] = held[r][i];
        }
      }
    }
  }

  // Two-shot: this rank's segment of one or two rows, to all ranks and itself.
  __device__ void add_segments(std::int64_t row, int rows) const {
    const Geometry& g = p_.geometry;
    const int begin = g.segment_begin(p_.rank);
    const int length = g.segment_end(p_.rank) - begin;
    for (int i = first_; i < rows * length; i += step_) {
      const int second = i >= length ? 1 : 0;
      const int v = begin + i - second * length;
      const uint4 packed = sum(row + second, v).packed();
      for (int rank = 0; rank < g.world(); ++rank) {
        if (dead_ && rank != p_.rank) continue;
        reinterpret_cast<uint4*>(inbox(rank) + g.sum_offset(row + second))[v] = packed;
      }
    }
  }

  __device__ void signal(Phase phase, int tile) const {
    __syncthreads();
    const int peer = first_;
    if (!is_other(peer)) return;
    ptx::store_release_system(&header(peer)->signals[phase][p_.rank][tile], epoch_);
  }

  // Sets failed_, alike in all threads: no tile of this CTA is waited for any more.
  __device__ void wait(Phase phase, int tile) {
    const int peer = first_;
    bool late = false;
    if (!failed_ && !dead_ && is_other(peer)) {
      const std::uint64_t* const word = &header(p_.rank)->signals[phase][peer][tile];
      late = !arrives(word);
      if (late) fail(peer, tile);
    }
    failed_ = __syncthreads_or(static_cast<int>(late || failed_ || dead_)) != 0;
  }

  __device__ void fail(int peer, int tile) const {
    atomicCAS(&header(p_.rank)->failed, 0U,
              static_cast<unsigned>(1 + peer) + 256U * static_cast<unsigned>(tile));
  }

  __device__ bool arrives(const std::uint64_t* word) const {
    if (p_.time_limit_ns == 0) {
      while (!has_arrived(ptx::load_acquire_system(word), epoch_)) {
      }
      return true;
    }
    const std::uint64_t begin = ptx::global_timer_ns();
    while (!has_arrived(ptx::load_acquire_system(word), epoch_)) {
      if (ptx::global_timer_ns() - begin > static_cast<std::uint64_t>(p_.time_limit_ns)) {
        return false;
      }
    }
    return true;
  }

  // A vector's share of the next run's half, which no peer stores to before this one has come to
  // it.
  __device__ void clear_ll(int vector) const {
    Packet* const half = header(p_.rank)->ll[half_of(ll_epoch_ + 1)];
    const int all = static_cast<int>(p_.geometry.rows()) * p_.vectors;
    for (int i = vector; i < kLlPackets; i += all) half[i] = {};
    __threadfence_system();
  }

  [[nodiscard]] __device__ Packet* packets(int reader, int sender, int row, int v) const {
    return header(reader)->ll[half_of(ll_epoch_)] + p_.geometry.ll_packet(sender, row, v);
  }

  __device__ void read_ll_header() {
    const PeerHeader* const own = header(p_.rank);
    ll_epoch_ = __ldcg(&own->ll_epoch) + 1;
    failed_ = __ldcg(&own->dead) != 0;
  }

  __device__ void push_ll(int row) {
    for (int v = first_; v < p_.vectors; v += kHeld * step_) {
      uint4 held[kHeld]{};
      load_part(at(p_.part, row), v, held);
      read_ll_header();  // here, where its loads and those of the part take one latency
      if (failed_) return;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (v + i * step_ >= p_.vectors) continue;
        if (clears_ll(ll_epoch_)) clear_ll(row * p_.vectors + v + i * step_);
        const std::uint64_t flag = std::uint64_t{ll_flag(ll_epoch_)} << 32;
#pragma unroll 1
        for (int peer = 0; peer < p_.geometry.world(); ++peer) {
          Packet* const to = packets(peer, p_.rank, row, v + i * step_);
          ptx::store_relaxed_system(to[0].words, flag | held[i].x, flag | held[i].y);
          ptx::store_relaxed_system(to[kLlApart].words, flag | held[i].z, flag | held[i].w);
        }
      }
    }
  }

  // Eight columns of ranks from `first` on; returns one that has not come within the time limit, or
  // -1. Worlds are even: of two ranks in flight both are there.
  __device__ int receive(int first, int row, int v, uint4 (&raw)[kLlBatch]) const {
    const std::uint32_t flag = ll_flag(ll_epoch_);
    std::uint64_t begin = 0;
    while (true) {
      std::uint64_t words[kLlBatch][4];
#pragma unroll
      for (int i = 0; i < kLlBatch; ++i) {
        const Packet* const from = packets(p_.rank, first + i, row, v);
        ptx::load_relaxed_system(from[0].words, words[i][0], words[i][1]);
        ptx::load_relaxed_system(from[kLlApart].words, words[i][2], words[i][3]);
      }
      int missing = -1;
#pragma unroll
      for (int i = 0; i < kLlBatch; ++i) {
        raw[i] = {static_cast<unsigned>(words[i][0]), static_cast<unsigned>(words[i][1]),
                  static_cast<unsigned>(words[i][2]), static_cast<unsigned>(words[i][3])};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (static_cast<std::uint32_t>(words[i][k] >> 32) != flag) missing = first + i;
        }
      }
      if (missing < 0) return -1;
      if (p_.time_limit_ns == 0) continue;
      const std::uint64_t now = ptx::global_timer_ns();
      if (begin == 0) begin = now;
      if (now - begin > static_cast<std::uint64_t>(p_.time_limit_ns)) return missing;
    }
  }

  // As sum. This thread waits no more once it has done so for too long.
  [[nodiscard]] __device__ Vector sum_ll(int row, int v) {
    if (failed_) return nan();
    // What no peer sends is on its way while that is waited for.
    uint4 bias{};
    uint4 residual{};
    if (p_.bias != nullptr) bias = __ldcg(static_cast<const uint4*>(p_.bias) + v);
    if (p_.residual.base != nullptr) residual = __ldcg(at(p_.residual, row) + v);
    Vector y{};
    for (int first = 0; first < p_.geometry.world(); first += kLlBatch) {
      uint4 raw[kLlBatch];
      const int missing = receive(first, row, v, raw);
      if (missing >= 0) {
        fail(missing, row / static_cast<int>(p_.geometry.tile_rows()));
        header(p_.rank)->dead = 1;
        failed_ = true;
        return nan();
      }
#pragma unroll
      for (int i = 0; i < kLlBatch; ++i) add(y, raw[i]);
    }
    if (p_.bias != nullptr) add(y, bias);
    if (p_.residual.base != nullptr) add(y, residual);
    y.round();
    return y;
  }

  [[nodiscard]] static __device__ Vector nan() {
    Vector v;
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] = __int_as_float(0x7FFFFFFF);
    return v;
  }

  // Eight columns of y, rounded: the ranks in their order, then bias and residual.
  [[nodiscard]] __device__ Vector sum(std::int64_t row, int v) const {
    if (failed_) return nan();
    Vector y{};
    const int begin = p_.geometry.segment_begin(p_.rank);
    // Four loads at a time: what eight in flight would gain costs registers of all.
    constexpr int kBatch = 4;
    for (int first = 0; first < p_.geometry.world(); first += kBatch) {
      uint4 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int r = first + i;
        if (r >= p_.geometry.world()) continue;
        const char* const from = inbox(p_.rank) + p_.geometry.part_offset(r, row);
        raw[i] = r == p_.rank ? __ldcg(at(p_.part, row) + v)
                              : __ldcg(reinterpret_cast<const uint4*>(from) + (v - begin));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < p_.geometry.world()) add(y, raw[i]);
      }
    }
    if (p_.bias != nullptr) add(y, __ldcg(static_cast<const uint4*>(p_.bias) + v));
    if (p_.residual.base != nullptr) add(y, __ldcg(at(p_.residual, row) + v));
    y.round();
    return y;
  }
  static __device__ void add(Vector& to, const uint4& raw) {
    const Vector other = Vector::of(raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) to.at[i] += other.at[i];
  }

  // Stores a row of y, and its norm where that is asked for.
  template <class Source>
  __device__ void finish(std::int64_t row, const Source& source) {
    uint4 held[kHeld] = {};
    float squares = 0;
    for (int v = first_, i = 0; v < p_.vectors; v += step_, ++i) {
      const Vector y = source(v);
      const uint4 packed = y.packed();
      at(p_.y, row)[v] = packed;
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        if (k == i) held[k] = packed;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) squares = fmaf(y.at[k], y.at[k], squares);
    }
    if (p_.y_norm.base == nullptr) return;
    const float columns = 8.0F * static_cast<float>(p_.vectors);
    const float scale = rsqrtf(block_sum<kMaxThreads>(squares) / columns + p_.norm_eps);
    for (int v = first_, i = 0; v < p_.vectors; v += step_, ++i) {
      uint4 packed = held[0];
#pragma unroll
      for (int k = 1; k < kHeld; ++k) {
        if (k == i) packed = held[k];
      }
      if (i >= kHeld) packed = at(p_.y, row)[v];  // this thread's own
      const Vector y = Vector::of(packed);
      const Vector weight = Vector::of(__ldcg(static_cast<const uint4*>(p_.norm_weight) + v));
      Vector n;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        n.at[k] = y.at[k] * (scale * (weight.at[k] + p_.norm_weight_offset));
      }
      at(p_.y_norm, row)[v] = n.packed();
    }
    __syncthreads();  // block_sum's memory is free again
  }

  const AllReduceParams& p_;
  int first_;
  int step_;
  int tiles_;
  std::uint64_t epoch_;
  std::uint32_t ll_epoch_ = 0;
  bool dead_;
  bool failed_ = false;
  std::size_t half_;
};

template <class Cfg>
// Two CTAs an SM: registers are left for what precedes and follows.
__global__ void __launch_bounds__(kMaxThreads, 2)
    sum_over_ranks(const __grid_constant__ AllReduceParams p) {
  // The next kernel may fetch its weights meanwhile; what it reads of this one it waits for.
  if (p.early) ptx::launch_dependents();
  // Neither is written by what runs ahead; layers' weights have streamed through L2 since.
  for (int v = static_cast<int>(threadIdx.x); v < p.vectors; v += static_cast<int>(blockDim.x)) {
    if (p.norm_weight != nullptr) ptx::prefetch_l2(static_cast<const uint4*>(p.norm_weight) + v);
    if (p.bias != nullptr) ptx::prefetch_l2(static_cast<const uint4*>(p.bias) + v);
  }
  ptx::wait_for_prerequisites();
  Cta<Cfg> cta(p);
  if constexpr (Cfg::kLl) {
    cta.one_shot_ll();
    return;
  } else if (p.geometry.form() == Form::kOneShot) {
    cta.one_shot();
  } else {
    cta.two_shot();
  }
  cta.end();
}

int threads_of(Grid grid, const AllReduceParams& p) {
  const bool ll = p.geometry.form() == Form::kOneShotLl;
  const int each = ll ? 1 : kHeld;  // vectors of a row, where its CTA may have that many threads
  const int warps = ((p.vectors + each - 1) / each + kWarp - 1) / kWarp;
  return std::min(warps * kWarp, grid.cuts > 1 ? kCutThreads : kMaxThreads);
}

template <bool kLl>
Status launch_form(const Device& device, const LaunchShape& shape, DType dtype,
                   const AllReduceParams& params, Stream stream) {
  if (dtype == DType::kBF16) {
    return launch<&sum_over_ranks<AllReduceConfig<__nv_bfloat16, kLl>>>(device.ordinal, shape,
                                                                        stream, params);
  }
  return launch<&sum_over_ranks<AllReduceConfig<__half, kLl>>>(device.ordinal, shape, stream,
                                                               params);
}

}  // namespace

Status launch_all_reduce(const Device& device, Grid grid, DType dtype,
                         const AllReduceParams& params, Stream stream) noexcept {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(grid.ctas), static_cast<unsigned>(grid.cuts));
  shape.block = dim3(static_cast<unsigned>(threads_of(grid, params)));
  shape.programmatic = device.compute_capability >= 90;
  return params.geometry.form() == Form::kOneShotLl
             ? launch_form<true>(device, shape, dtype, params, stream)
             : launch_form<false>(device, shape, dtype, params, stream);
}

}  // namespace sluice::cuda::all_reduce
