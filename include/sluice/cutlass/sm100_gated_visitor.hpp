// SPDX-License-Identifier: Apache-2.0
// A node of CUTLASS's epilogue visitor tree for sm_100a that multiplies gate and up in registers
// and halves the GEMM's columns. It goes into the standard CollectiveBuilder, with ElementC = void
// and ElementD = HalvedD<Element>. Needs CUTLASS 4.2 or later; docs/cutlass.md. Source: CUTLASS's
// collective epilogue for sm_100a with TMA stores.
//
// Compiled and tested on the host, never run on a GPU of compute capability 10.
#pragma once

#include <cstdint>

#include "cute/tensor.hpp"
#include "cutlass/numeric_conversion.h"
#include "sluice/cutlass/gates.hpp"
#include "sluice/cutlass/node.hpp"

namespace sluice::cutlass {

/// The type of D by which a wide [M, N] matrix is the [M, N/2] one of Element: half of Element's
/// bits, so that the D tile of a wide column tile holds h's bytes, and CUTLASS's own buffers and
/// TMA stores move them. Its values mean nothing.
template <class Element>
using HalvedD = cute::conditional_t<sizeof(Element) == 2, std::uint8_t, ::cutlass::float_e2m1_t>;

/// out[m, i, l] = Element(scale · act(gate[m, i, l], up[m, i, l])), where gate and up are columns
/// of this node's input, the wide [M, N, L] that its child computes from the accumulators.
///
/// Shapes: out [M, N/2, L], given as the builder's D: ptr_D is out's, dD is (2·dM, 1, 2·dL) for
/// out's strides dM and dL. Column i of out reads, with c = Chunk and b = i / c, the wide columns
/// 2cb + i % c and 2cb + c + i % c: gate and up, or up and gate with kUpFirst. Chunk 1 is adjacent
/// columns. N must be a multiple of 2 · Chunk; M, and N beyond that, may end anywhere in a tile.
///
/// Types: Element is 2 bytes (bf16, fp16) or 1 byte (e4m3, e5m2); gates are computed in float and
/// rounded once, as RoundStyle says. `scale` (or *scale_ptr, a float on the device, read when the
/// kernel runs) is used for 1-byte Element alone, where values beyond its range saturate.
///
/// Layout: rows of out are contiguous; out, and its strides in bytes, are multiples of 16 (TMA).
/// N/2 elements are a multiple of 16 bytes too (for 1-byte Element: N of 64). AlignmentD of the
/// builder is 128 / sizeof_bits<HalvedD>, for e2m1 twice that.
/// Errors: can_implement() is false where N is no multiple of 2 · Chunk, the collective's own where
/// rows do not end at 16 bytes. Neither sees ptr_D and dD: their alignment is the caller's to
/// check.
///
/// Composition: any node may be the child (scales, bias by row or column, sums, auxiliary stores of
/// the wide columns). It is the tree's root: its output is h's bytes. The epilogue tile is
/// GatedEpilogueTile<128, Chunk>: each thread holds one row, whole pairs of chunks.
///
/// Numerics: h differs from the formula by the gate's error, math/gate.hpp, and one rounding.
template <class Element, class Act, int Chunk = 1, GateOrder Order = GateOrder::kGateFirst,
          ::cutlass::FloatRoundStyle RoundStyle = ::cutlass::FloatRoundStyle::round_to_nearest>
struct Sm100GatedVisitor : detail::Node {
  static_assert(sizeof(Element) <= 2, "Sm100GatedVisitor: Element must have 1 or 2 bytes");
  static_assert(Chunk == 1 || Chunk == 8 || Chunk == 16 || Chunk == 32 || Chunk == 64,
                "Sm100GatedVisitor: Chunk must be 1, 8, 16, 32 or 64");
  using ElementD = HalvedD<Element>;

  struct Arguments {
    Act act{};
    float scale = 1.0F;
    float const* scale_ptr = nullptr;
  };
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& args,
                                                  void*) {
    return args;
  }

  template <class ProblemShape>
  static bool can_implement(ProblemShape const& problem_shape, Arguments const&) {
    return cute::get<1>(problem_shape) % (2 * Chunk) == 0;
  }

  CUTLASS_HOST_DEVICE Sm100GatedVisitor() {}
  CUTLASS_HOST_DEVICE Sm100GatedVisitor(Params const& params, SharedStorage const&)
      : params_ptr(&params) {}

  Params const* params_ptr = nullptr;

  /// h, before it is rounded, of one row of kWide wide columns that begin with a pair of chunks.
  template <int kWide>
  CUTLASS_HOST_DEVICE static ::cutlass::Array<float, kWide / 2> halve(
      Act const& act, float scale, ::cutlass::Array<float, kWide> const& wide) {
    static_assert(kWide % (2 * Chunk) == 0, "Sm100GatedVisitor: see GatedEpilogueTile");
    ::cutlass::Array<float, kWide / 2> h;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWide / 2; ++i) {
      const float first = wide[i / Chunk * 2 * Chunk + i % Chunk];
      const float second = wide[i / Chunk * 2 * Chunk + Chunk + i % Chunk];
      h[i] = Order == GateOrder::kGateFirst ? act(first, second) : act(second, first);
      if constexpr (sizeof(Element) == 1) {
        h[i] *= scale;
      }
    }
    return h;
  }

  struct ConsumerStoreCallbacks : ::cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE explicit ConsumerStoreCallbacks(Params const* params_ptr)
        : params_ptr(params_ptr) {}

    Params const* params_ptr;
    float scale = 1.0F;

    CUTLASS_DEVICE void begin() {
      if constexpr (sizeof(Element) == 1) {
        scale = params_ptr->scale_ptr != nullptr ? *params_ptr->scale_ptr : params_ptr->scale;
      }
    }

    template <class ElementAccumulator, class ElementInput, int kWide>
    CUTLASS_DEVICE ::cutlass::Array<ElementD, kWide> visit(
        ::cutlass::Array<ElementAccumulator, kWide> const&, int, int, int,
        ::cutlass::Array<ElementInput, kWide> const& frg_input) {
      const auto values = ::cutlass::NumericArrayConverter<float, ElementInput, kWide>{}(frg_input);
      const auto rounded =
          ::cutlass::NumericArrayConverter<Element, float, kWide / 2, RoundStyle>{}(
              halve(params_ptr->act, scale, values));
      using Bytes = ::cutlass::Array<ElementD, kWide>;
      static_assert(sizeof(Bytes) == sizeof(rounded));
      return reinterpret_cast<Bytes const&>(rounded);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      ::cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    static_assert(!ReferenceSrc, "Sm100GatedVisitor: the epilogue must be an Sm100 one");
    // A thread's part of an epilogue tile: value i is column i of one row.
    using Part = decltype(cute::coalesce(
        cute::take<0, 3>(args.tCcD(cute::_, cute::_, cute::_, cute::_0{}, cute::_0{}).layout())));
    static_assert(
        cute::is_same_v<decltype(cute::stride(Part{})), cute::E<1>>,
        "Sm100GatedVisitor: a thread must hold adjacent columns of one row: a CTA tile of "
        "128 rows, GatedEpilogueTile<128, Chunk>, row-major D");
    return ConsumerStoreCallbacks(params_ptr);
  }
};

}  // namespace sluice::cutlass
