// SPDX-License-Identifier: Apache-2.0
// The sum over ranks behind down, with bias, residual and the next RMSNorm: docs/kernels/
// all_reduce.md. A CTA has tiles of rows, the same ones on every rank:
//
//   one-shot   push(parts of its tiles to all)  wait(tile) add -> y, y_norm
//   two-shot   push(parts to each tile's owner) wait(own tile) add -> y, push(sum to all)
//              wait(others' tile) sum -> y, y_norm
//
// A CTA pushes all that its peers wait for in a phase before it waits for anything of that phase,
// and all CTAs are resident, so that no rank waits for one that waits for it.
//
// Barriers: a tile's signal is released by one thread a peer after a barrier of its CTA behind the
// stores, and acquired by one thread a peer before a barrier ahead of the loads.
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

template <class Element>
struct AllReduceConfig {
  using Type = Element;
};

__device__ __forceinline__ uint4* at(const Rows& rows, std::int64_t row) {
  return reinterpret_cast<uint4*>(rows.base + row * rows.row_stride_bytes);
}

// Everything that a CTA does, in phases.
template <class Element>
class Cta {
 public:
  using Vector = Vector8<Element>;

  __device__ Cta(const AllReduceParams& p)
      : p_(p),
        first_(static_cast<int>(threadIdx.x)),
        step_(static_cast<int>(blockDim.x)),
        tiles_(p.geometry.tiles()),
        epoch_(header(p.rank)->epoch + 1),
        dead_(header(p.rank)->dead != 0),
        half_(half_offset(p.peer_bytes, half_of(epoch_))) {}

  __device__ void one_shot() {
    if (!dead_) {
      for_tiles([&](int tile) {
        for_rows(tile, [&](std::int64_t row) { push_part(tile, row, -1); });
        signal(kPart, tile, -1);
      });
    }
    for_tiles([&](int tile) {
      wait(kPart, tile, -1);
      for_rows(tile, [&](std::int64_t row) {
        finish(
            row, [&](int v) { return sum(tile, row, v); }, false, [] {});
      });
    });
  }

  __device__ void two_shot() {
    const Geometry& g = p_.geometry;
    if (!dead_) {
      for_tiles([&](int tile) {
        const int owner = g.owner(tile);
        if (owner == p_.rank) return;
        for_rows(tile, [&](std::int64_t row) { push_part(tile, row, owner); });
        signal(kPart, tile, owner);
      });
    }
    for_tiles([&](int tile) {
      if (g.owner(tile) != p_.rank) return;
      wait(kPart, tile, -1);
      const std::int64_t last = end_of(tile) - 1;
      for_rows(tile, [&](std::int64_t row) {
        finish(
            row, [&](int v) { return sum(tile, row, v); }, !dead_,
            [&] {
              if (row == last && !dead_) signal(kSum, tile, -1);
            });
      });
    });
    for_tiles([&](int tile) {
      const int owner = g.owner(tile);
      if (owner == p_.rank) return;
      wait(kSum, tile, owner);
      for_rows(tile, [&](std::int64_t row) {
        const auto* const from = reinterpret_cast<const uint4*>(inbox(p_.rank) + g.sum_offset(row));
        finish(
            row, [&](int v) { return failed_ ? nan() : Vector::of(__ldcg(from + v)); }, false,
            [] {});
      });
    });
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
  // Of all ranks but this one, or of `only` where that is one.
  [[nodiscard]] __device__ bool concerns(int peer, int only) const {
    return peer < p_.geometry.world() && peer != p_.rank && (only < 0 || peer == only);
  }

  __device__ void push_part(int tile, std::int64_t row, int only) const {
    const uint4* const from = at(p_.part, row);
    const std::int64_t offset = p_.geometry.part_offset(p_.rank, tile, row);
    for (int v = first_; v < p_.vectors; v += kHeld * step_) {
      uint4 held[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (v + i * step_ < p_.vectors) held[i] = __ldcg(from + v + i * step_);
      }
      for (int peer = 0; peer < p_.geometry.world(); ++peer) {
        if (!concerns(peer, only)) continue;
        auto* const to = reinterpret_cast<uint4*>(inbox(peer) + offset);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          if (v + i * step_ < p_.vectors) to[v + i * step_] = held[i];
        }
      }
    }
  }

  __device__ void signal(Phase phase, int tile, int only) const {
    __syncthreads();
    const int peer = first_;
    if (!concerns(peer, only)) return;
    ptx::store_release_system(&header(peer)->signals[phase][p_.rank][tile], epoch_);
  }

  // Sets failed_, alike in all threads: no tile of this CTA is waited for any more.
  __device__ void wait(Phase phase, int tile, int only) {
    const int peer = first_;
    bool late = false;
    if (!failed_ && !dead_ && concerns(peer, only)) {
      const std::uint64_t* const word = &header(p_.rank)->signals[phase][peer][tile];
      late = !arrives(word);
      if (late) {
        atomicCAS(&header(p_.rank)->failed, 0U,
                  static_cast<unsigned>(1 + peer) + 256U * static_cast<unsigned>(tile));
      }
    }
    failed_ = __syncthreads_or(static_cast<int>(late || failed_ || dead_)) != 0;
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

  [[nodiscard]] static __device__ Vector nan() {
    Vector v;
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] = __int_as_float(0x7FFFFFFF);
    return v;
  }

  // Eight columns of y, rounded: the ranks in their order, then bias and residual.
  [[nodiscard]] __device__ Vector sum(int tile, std::int64_t row, int v) const {
    if (failed_) return nan();
    Vector y{};
    // Four loads at a time: what eight in flight would gain costs registers of all.
    constexpr int kBatch = 4;
    for (int first = 0; first < p_.geometry.world(); first += kBatch) {
      uint4 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int r = first + i;
        if (r >= p_.geometry.world()) continue;
        const char* const from = r == p_.rank
                                     ? reinterpret_cast<const char*>(at(p_.part, row))
                                     : inbox(p_.rank) + p_.geometry.part_offset(r, tile, row);
        raw[i] = __ldcg(reinterpret_cast<const uint4*>(from) + v);
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

  // Stores a row of y, to peers too where `push`, and its norm where that is asked for; between
  // the two, `stored`.
  template <class Source, class Stored>
  __device__ void finish(std::int64_t row, const Source& source, bool push, const Stored& stored) {
    uint4 held[kHeld] = {};
    float squares = 0;
    for (int v = first_, i = 0; v < p_.vectors; v += step_, ++i) {
      const Vector y = source(v);
      const uint4 packed = y.packed();
      at(p_.y, row)[v] = packed;
      if (push) push_sum(row, v, packed);
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        if (k == i) held[k] = packed;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) squares = fmaf(y.at[k], y.at[k], squares);
    }
    stored();
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

  __device__ void push_sum(std::int64_t row, int v, const uint4& packed) const {
    for (int peer = 0; peer < p_.geometry.world(); ++peer) {
      if (!concerns(peer, -1)) continue;
      reinterpret_cast<uint4*>(inbox(peer) + p_.geometry.sum_offset(row))[v] = packed;
    }
  }

  const AllReduceParams& p_;
  int first_;
  int step_;
  int tiles_;
  std::uint64_t epoch_;
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
  Cta<typename Cfg::Type> cta(p);
  if (p.geometry.form() == Form::kOneShot) {
    cta.one_shot();
  } else {
    cta.two_shot();
  }
  cta.end();
}

}  // namespace

Status launch_all_reduce(const Device& device, int ctas, DType dtype, const AllReduceParams& params,
                         Stream stream) noexcept {
  const int threads = (params.vectors + kHeld - 1) / kHeld;
  const int warps = (threads + kWarp - 1) / kWarp;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ctas));
  shape.block = dim3(static_cast<unsigned>(std::min(warps * kWarp, kMaxThreads)));
  shape.programmatic = device.compute_capability >= 90;
  if (dtype == DType::kBF16) {
    return launch<&sum_over_ranks<AllReduceConfig<__nv_bfloat16>>>(device.ordinal, shape, stream,
                                                                   params);
  }
  return launch<&sum_over_ranks<AllReduceConfig<__half>>>(device.ordinal, shape, stream, params);
}

}  // namespace sluice::cuda::all_reduce
