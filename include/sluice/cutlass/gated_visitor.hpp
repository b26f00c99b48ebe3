// SPDX-License-Identifier: Apache-2.0
// A node of CUTLASS's epilogue visitor tree (sm_90a, TMA epilogues) that multiplies gate and up in
// registers and stores half of the GEMM's columns. It goes into the standard CollectiveBuilder,
// with ElementC = ElementD = void. Needs CUTLASS 4.2 or later; docs/cutlass.md. Source: the hooks
// of Sm90AuxStore, cutlass/epilogue/fusion/.
#pragma once

#include <cstdint>

#include "cute/tensor.hpp"
#include "cutlass/numeric_conversion.h"
#include "sluice/cutlass/gates.hpp"
#include "sluice/cutlass/node.hpp"

namespace sluice::cutlass {

/// out[m, i, l] = Element(scale · act(gate[m, i, l], up[m, i, l])), where gate and up are columns
/// of this node's input, the wide [M, N, L] that its child computes from the accumulators.
///
/// Shapes: out [M, N/2, L]. Column i of out reads, with c = Chunk and b = i / c, the wide columns
/// 2cb + i % c and 2cb + c + i % c: gate and up, or up and gate with kUpFirst. Chunk 1 is adjacent
/// columns. N must be a multiple of 2 · Chunk; M, and N beyond that, may end anywhere in a tile.
///
/// Types: Element is 2 bytes (bf16, fp16) or 1 byte (e4m3, e5m2); gates are computed in float and
/// rounded once, as RoundStyle says. `scale` (or *scale_ptr, a float on the device, read when the
/// kernel runs) is used for 1-byte Element alone, where values beyond its range saturate.
///
/// Layout: strides (dM, 1, dL) in elements. ptr, dM and, for L > 1, dL in bytes are multiples of
/// 16 (TMA). Out may not overlap any input. A null ptr stores nothing.
/// N/2 elements are a multiple of 16 bytes too.
/// Errors: can_implement() is false where N or an alignment is not as above.
///
/// Composition: any node may be the child (scales, bias by row or column, sums); visit() returns
/// its input unchanged, so that wide nodes (auxiliary stores, reductions) may be parents. Stores
/// use the collective's own D buffers, which void D leaves free: no further shared memory.
///
/// Numerics: h differs from the formula by the gate's error, math/gate.hpp, and one rounding.
template <class EpilogueTile, class Element, class Act, int Chunk = 1,
          GateOrder Order = GateOrder::kGateFirst,
          class StrideMNL = cute::Stride<int64_t, cute::_1, int64_t>,
          ::cutlass::FloatRoundStyle RoundStyle = ::cutlass::FloatRoundStyle::round_to_nearest>
struct GatedVisitor : detail::Node {
  static constexpr int kTileM = cute::size<0>(EpilogueTile{});
  static constexpr int kTileN = cute::size<1>(EpilogueTile{});
  static constexpr int kHalfN = kTileN / 2;
  static_assert(sizeof(Element) <= 2, "GatedVisitor: Element must have 1 or 2 bytes");
  static_assert(Chunk == 1 || Chunk == 8 || Chunk == 16 || Chunk == 32 || Chunk == 64,
                "GatedVisitor: Chunk must be 1, 8, 16, 32 or 64");
  static_assert(kTileN % 32 == 0 && kTileN % (2 * Chunk) == 0,
                "GatedVisitor: the epilogue tile must hold whole pairs of chunks: see "
                "GatedEpilogueTile");

  // With D void the collective sizes its D buffers by this type: at one byte a wide column they
  // hold exactly two bytes a column of out.
  using ElementAux = std::uint8_t;

  using HalfTile = cute::Shape<cute::Int<kTileM>, cute::Int<kHalfN>>;
  using SmemLayoutAtom =
      decltype(::cutlass::epilogue::collective::detail::sm90_get_epilogue_smem_swizzle_layout_atom<
               StrideMNL, Element, HalfTile>());
  using SmemLayout = decltype(cute::tile_to_shape(SmemLayoutAtom{}, HalfTile{}));
  // stmatrix places 2-byte elements of a chunk. Adjacent columns leave lanes in an order of their
  // own, and 1-byte elements are not stmatrix's: both store the two elements that a lane holds.
  using CopyOpR2S =
      cute::conditional_t<(Chunk > 1 && sizeof(Element) == 2), cute::SM90_U32x4_STSM_N,
                          cute::UniversalCopy<cute::uint_byte_t<2 * sizeof(Element)>>>;

  struct Arguments {
    Act act{};
    Element* ptr = nullptr;  // [M, N/2, L]
    StrideMNL stride{};
    float scale = 1.0F;
    float const* scale_ptr = nullptr;
  };

  struct Params {
    using TmaOut = decltype(cute::make_tma_copy(
        cute::SM90_TMA_STORE{},
        cute::make_tensor(static_cast<Element*>(nullptr),
                          cute::repeat_like(StrideMNL{}, int32_t(0)), StrideMNL{}),
        SmemLayout{}));
    TmaOut tma_out;
    Act act{};
    float scale = 1.0F;
    float const* scale_ptr = nullptr;
    bool is_nullptr = true;
  };

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const& problem_shape,
                                                  Arguments const& args, void*) {
    auto [M, N, K, L] = cute::append<4>(problem_shape, 1);
    typename Params::TmaOut tma_out;
    if (args.ptr != nullptr) {
      auto out = cute::make_tensor(args.ptr,
                                   cute::make_layout(cute::make_shape(M, N / 2, L), args.stride));
      tma_out = cute::make_tma_copy(cute::SM90_TMA_STORE{}, out, SmemLayout{});
    }
    return {tma_out, args.act, args.scale, args.scale_ptr, args.ptr == nullptr};
  }

  template <class ProblemShape>
  static bool can_implement(ProblemShape const& problem_shape, Arguments const& args) {
    auto [M, N, K, L] = cute::append<4>(problem_shape, 1);
    constexpr int64_t kTmaElems = 16 / sizeof(Element);
    const bool aligned = reinterpret_cast<std::uintptr_t>(args.ptr) % 16 == 0 &&
                         int64_t(cute::get<0>(args.stride)) % kTmaElems == 0 &&
                         (L == 1 || int64_t(cute::get<2>(args.stride)) % kTmaElems == 0);
    // A row that ends inside 16 bytes: TMA stores were seen to write the rest of them on an H100.
    return N % (2 * Chunk) == 0 && N / 2 % kTmaElems == 0 && aligned;
  }

  CUTLASS_HOST_DEVICE GatedVisitor() {}
  CUTLASS_HOST_DEVICE GatedVisitor(Params const& params, SharedStorage const&)
      : params_ptr(&params) {}

  Params const* params_ptr = nullptr;

  // Fragments, as wgmma leaves them: value 4j + 2r + e of a lane is row lane / 4 + 8r of its warp,
  // column 8j + 2 (lane % 4) + e of the epilogue tile.
  template <int kValues, class RTensor, class TiledR2S, class GTensor>
  struct ConsumerStoreCallbacks : ::cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE ConsumerStoreCallbacks(RTensor const& shape_like, TiledR2S tiled_r2s,
                                          GTensor const& g_out, int thread_idx,
                                          Params const* params_ptr)
        : r_out(shape_like),
          tiled_r2s(tiled_r2s),
          g_out(g_out),
          thread_idx(thread_idx),
          params_ptr(params_ptr) {}

    ::cutlass::Array<float, kValues> wide;  // this lane's part of the epilogue tile
    RTensor r_out;                          // this lane's part of the half tile
    TiledR2S tiled_r2s;
    GTensor g_out;  // (EPI_M, EPI_N) tiles of out, as TMA coordinates
    int thread_idx;
    Params const* params_ptr;
    Element* tile = nullptr;  // the D buffer in use, in shared memory
    float scale = 1.0F;

    CUTLASS_DEVICE void begin() {
      if constexpr (sizeof(Element) == 1) {
        scale = params_ptr->scale_ptr != nullptr ? *params_ptr->scale_ptr : params_ptr->scale;
      }
    }

    template <class ElementAccumulator, class ElementInput, int kFragment>
    CUTLASS_DEVICE auto visit(::cutlass::Array<ElementAccumulator, kFragment> const&, int epi_v,
                              int, int,
                              ::cutlass::Array<ElementInput, kFragment> const& frg_input) {
      static_assert(kValues % kFragment == 0);
      const auto values =
          ::cutlass::NumericArrayConverter<float, ElementInput, kFragment>{}(frg_input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kFragment; ++i) {
        wide[epi_v * kFragment + i] = values[i];
      }
      // Here rather than in postreduce(): the math runs while earlier TMA stores drain.
      if (epi_v == kValues / kFragment - 1) {
        if constexpr (Chunk == 1) {
          halve_adjacent();
        } else {
          halve_chunks();
        }
      }
      return frg_input;
    }

    // Delayed or not, tma_store() of a tile comes before reduce() of the next one, so one pointer
    // serves both.
    template <class STensor, class SyncFn, class VTensor>
    CUTLASS_DEVICE void reduce(STensor&& buffer, SyncFn const&, int, int, bool, VTensor) {
      // Element (0, 0) of a stage is where the stage begins: stages are multiples of the swizzle.
      tile = reinterpret_cast<Element*>(
          cute::raw_pointer_cast(&buffer(cute::Int<0>{}, cute::Int<0>{})));
    }

    // NOTE: not in reduce(): other nodes may use the buffer there.
    CUTLASS_DEVICE void postreduce(int, int, int, bool issue_smem_store) {
      if (params_ptr->is_nullptr || !issue_smem_store) {
        return;
      }
      auto thread_r2s = tiled_r2s.get_slice(lane_order(thread_idx));
      using RLayout = decltype(cute::layout(TiledR2S{}.get_slice(0).retile_S(RTensor{})));
      auto source = cute::make_tensor(r_out.data(), RLayout{});
      cute::copy(tiled_r2s, source, thread_r2s.partition_D(smem_tile()));
    }

    CUTLASS_DEVICE void tma_store(int epi_m, int epi_n, int, bool issue_tma_store) {
      if (params_ptr->is_nullptr || !issue_tma_store) {
        return;
      }
      auto slice = params_ptr->tma_out.get_slice(cute::Int<0>{});
      auto target = slice.partition_D(g_out);  // (TMA, TMA_M, TMA_N, EPI_M, EPI_N)
      cute::copy(params_ptr->tma_out, slice.partition_S(smem_tile()),
                 target(cute::_, cute::_, cute::_, epi_m, epi_n));
    }

   private:
    CUTLASS_DEVICE auto smem_tile() const {
      return cute::as_position_independent_swizzle_tensor(
          cute::make_tensor(cute::make_smem_ptr(tile), SmemLayout{}));
    }

    // The lane of wgmma's layout whose columns this lane holds: halve_adjacent() leaves columns
    // 0-1, 4-5, 2-3, 6-7 in lanes 0 to 3.
    CUTLASS_DEVICE static int lane_order(int thread) {
      return Chunk == 1 ? (thread & ~3) | ((thread & 1) << 1) | ((thread >> 1) & 1) : thread;
    }

    template <int kCount>
    CUTLASS_DEVICE ::cutlass::Array<Element, kCount> round(
        ::cutlass::Array<float, kCount> values) const {
      if constexpr (sizeof(Element) == 1) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) {
          values[i] *= scale;
        }
      }
      return ::cutlass::NumericArrayConverter<Element, float, kCount, RoundStyle>{}(values);
    }

    CUTLASS_DEVICE float gated(float first, float second) const {
      return Order == GateOrder::kGateFirst ? params_ptr->act(first, second)
                                            : params_ptr->act(second, first);
    }

    // Block j of 8 columns of the half tile comes from two blocks of the wide one, in one lane.
    CUTLASS_DEVICE void halve_chunks() {
      constexpr int kBlocks = Chunk / 8 > 0 ? Chunk / 8 : 1;  // of 8 columns, a chunk
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kValues / 8; ++j) {
        const int first = j / kBlocks * 2 * kBlocks + j % kBlocks;
        ::cutlass::Array<float, 4> h;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          h[i] = gated(wide[4 * first + i], wide[4 * (first + kBlocks) + i]);
        }
        const auto rounded = round(h);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          r_out(4 * j + i) = rounded[i];
        }
      }
    }

    // A lane has one column of each 4 of the half tile: 4j + lane % 4. Even lanes give their
    // neighbour the odd j's and odd lanes the even j's, both rows in one shuffle, so that each
    // lane holds two adjacent columns: even lanes 8j + lane % 4, odd ones 8j + 3 + lane % 4.
    CUTLASS_DEVICE void halve_adjacent() {
      const bool odd = (thread_idx & 1) != 0;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kValues / 8; ++j) {
        ::cutlass::Array<float, 4> h;  // (row, even or odd j): 2·(j odd) + r
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          h[i] = gated(wide[8 * j + 2 * i], wide[8 * j + 2 * i + 1]);
        }
        const auto rounded = round(h);
        const std::uint32_t even_j = pack(rounded[0], rounded[1]);
        const std::uint32_t odd_j = pack(rounded[2], rounded[3]);
        const std::uint32_t kept = odd ? odd_j : even_j;
        const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFU, odd ? even_j : odd_j, 1);
        const std::uint32_t left = odd ? got : kept;
        const std::uint32_t right = odd ? kept : got;
        // Row 0 and row 1: the lower and the upper element of both words.
        unpack(4 * j, __byte_perm(left, right, sizeof(Element) == 2 ? 0x5410 : 0x0040));
        unpack(4 * j + 2, __byte_perm(left, right, sizeof(Element) == 2 ? 0x7632 : 0x0051));
      }
    }

    CUTLASS_DEVICE static std::uint32_t pack(Element low, Element high) {
      constexpr int kBits = 8 * sizeof(Element);
      return std::uint32_t(low.raw()) | (std::uint32_t(high.raw()) << kBits);
    }

    CUTLASS_DEVICE void unpack(int at, std::uint32_t word) {
      constexpr int kBits = 8 * sizeof(Element);
      r_out(at) = Element::bitcast(word & ((1U << kBits) - 1));
      r_out(at + 1) = Element::bitcast((word >> kBits) & ((1U << kBits) - 1));
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      ::cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    namespace fusion = ::cutlass::epilogue::fusion;
    static_assert(ReferenceSrc, "GatedVisitor: fragments must be wgmma's, of an Sm90 epilogue");
    auto [M, N, K, L] = args.problem_shape_mnkl;
    auto [m, n, k, l] = args.tile_coord_mnkl;
    constexpr int kCtaM = cute::size<0>(decltype(args.tile_shape_mnk){});
    constexpr int kCtaN = cute::size<1>(decltype(args.tile_shape_mnk){});

    auto out = params_ptr->tma_out.get_tma_tensor(cute::make_shape(M, N / 2, L));
    auto cta = cute::local_tile(out, cute::Shape<cute::Int<kCtaM>, cute::Int<kCtaN / 2>>{},
                                cute::make_coord(m, n, l));
    auto g_out = cute::flat_divide(cta, HalfTile{});  // (TILE_M, HALF_N, EPI_M, EPI_N)

    auto tiled_r2s =
        cute::make_tiled_copy_S(cute::Copy_Atom<CopyOpR2S, Element>{}, args.tiled_copy);
    auto thread_ref = args.tiled_copy.get_slice(args.thread_idx);
    auto wide = thread_ref.partition_S(cute::make_identity_tensor(EpilogueTile{}));
    auto half = thread_ref.partition_S(cute::make_identity_tensor(HalfTile{}));
    auto r_out = cute::make_tensor<Element>(cute::shape(half));
    constexpr int kValues = cute::size(decltype(wide.layout()){});
    static_assert(kValues == 2 * cute::size(decltype(half.layout()){}));
    static_assert(kValues * 2 == kTileN, "GatedVisitor: a lane must hold 2 rows of the tile");

    return ConsumerStoreCallbacks<kValues, decltype(r_out), decltype(tiled_r2s), decltype(g_out)>(
        r_out, tiled_r2s, g_out, args.thread_idx, params_ptr);
  }
};

}  // namespace sluice::cutlass
