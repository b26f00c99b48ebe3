// SPDX-License-Identifier: Apache-2.0
// A GEMM out of CUTLASS's standard builders, for sm_90a or sm_100a, with the gated node or with the
// stock epilogue.
#pragma once

#include <algorithm>

#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/device_memory.h"
#include "gemm.hpp"
#include "sluice/cutlass/gated_visitor.hpp"
#include "sluice/cutlass/sm100_gated_visitor.hpp"

namespace example {

template <int kCapability, Input kInput, Output kOutput, Act kAct, int kChunk, bool kUpFirst,
          bool kBias>
struct Config {
  static constexpr int capability = kCapability;
  static constexpr Input input = kInput;
  static constexpr Output output = kOutput;
  static constexpr Act act = kAct;
  static constexpr int chunk = kChunk;
  static constexpr bool up_first = kUpFirst;
  static constexpr bool bias = kBias;
  static constexpr bool scaled = kOutput == Output::kScaledBf16;
  static constexpr bool gated =
      kOutput == Output::kGatedBf16 || kOutput == Output::kGatedE4m3 || scaled;
  static constexpr bool e4m3_out = kOutput == Output::kGatedE4m3 || kOutput == Output::kWideE4m3;
};

template <Act kAct>
struct ActOf;
template <>
struct ActOf<Act::kSilu> {
  using Type = sluice::cutlass::PlainGate<sluice::Activation::kSilu>;
};
template <>
struct ActOf<Act::kGeluTanh> {
  using Type = sluice::cutlass::PlainGate<sluice::Activation::kGeluTanh>;
};
template <>
struct ActOf<Act::kGeluErf> {
  using Type = sluice::cutlass::PlainGate<sluice::Activation::kGeluErf>;
};
template <>
struct ActOf<Act::kRelu> {
  using Type = sluice::cutlass::PlainGate<sluice::Activation::kRelu>;
};
template <>
struct ActOf<Act::kLibrarySilu> {
  using Type = sluice::cutlass::LibraryGate<sluice::Activation::kSilu>;
};
template <>
struct ActOf<Act::kTanh> {
  using Type = sluice::cutlass::TanhGate;
};
template <>
struct ActOf<Act::kHardSwish> {
  using Type = sluice::cutlass::HardSwishGate;
};
template <>
struct ActOf<Act::kLeakyRelu> {
  using Type = sluice::cutlass::LeakyReluGate;
};
template <>
struct ActOf<Act::kTakeGate> {
  using Type = sluice::cutlass::TakeGate;
};

namespace gemm = cutlass::gemm;
namespace epilogue = cutlass::epilogue;
namespace fusion = cutlass::epilogue::fusion;
using Bf16 = cutlass::bfloat16_t;
using E4m3 = cutlass::float_e4m3_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

// Of an input: what the builder is told of A and of B, elements of 16 bytes, k of a tile, the class
// and the 2-SM schedule of compute capability 10.
template <Input kInput>
struct InputOf;
template <>
struct InputOf<Input::kBf16> {
  using Element = Bf16;
  using Stored = Bf16;
  static constexpr int kAlign = 8;
  using TileK = cute::_64;
  using OpClass = cutlass::arch::OpClassTensorOp;
  using Sm90Schedule = gemm::KernelTmaWarpSpecializedCooperative;
  using Sm100Schedule = gemm::KernelTmaWarpSpecialized2SmSm100;
};
template <>
struct InputOf<Input::kE4m3> {
  using Element = E4m3;
  using Stored = E4m3;
  static constexpr int kAlign = 16;
  using TileK = cute::_128;
  using OpClass = cutlass::arch::OpClassTensorOp;
  using Sm90Schedule = gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum;
  using Sm100Schedule = gemm::KernelTmaWarpSpecialized2SmSm100;
};
template <>
struct InputOf<Input::kMxf8> {
  using Element = cutlass::mx_float8_t<E4m3>;
  using Stored = E4m3;
  static constexpr int kAlign = 16;
  static constexpr int kScaled = 32;
  using TileK = cute::_128;
  using OpClass = cutlass::arch::OpClassBlockScaledTensorOp;
  using Sm100Schedule = gemm::KernelTmaWarpSpecialized2SmMxf8f6f4Sm100;
};
template <>
struct InputOf<Input::kNvf4> {
  using Element = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
  using Stored = cutlass::float_e2m1_t;
  static constexpr int kAlign = 32;
  static constexpr int kScaled = 16;
  using TileK = cute::_256;
  using OpClass = cutlass::arch::OpClassBlockScaledTensorOp;
  using Sm100Schedule = gemm::KernelTmaWarpSpecialized2SmNvf4Sm100;
};

template <Input kInput>
constexpr bool kHasScales = kInput == Input::kMxf8 || kInput == Input::kNvf4;

// Of a chip: its schedules and tiles. On both a CTA has 128 rows and 256 wide columns.
template <class C, int kCapability = C::capability>
struct ChipOf {
  using Arch = cutlass::arch::Sm90;
  using MainTile = cute::Shape<cute::_128, cute::_256, typename InputOf<C::input>::TileK>;
  using MainSchedule = typename InputOf<C::input>::Sm90Schedule;
  using EpilogueSchedule = epilogue::TmaWarpSpecializedCooperative;
};
template <class C>
struct ChipOf<C, 10> {
  using Arch = cutlass::arch::Sm100;
  using MainTile = cute::Shape<cute::_256, cute::_256, typename InputOf<C::input>::TileK>;
  using MainSchedule = typename InputOf<C::input>::Sm100Schedule;
  using EpilogueSchedule = epilogue::TmaWarpSpecialized2Sm;
};

template <class C>
using ElementOf = cute::conditional_t<C::e4m3_out, E4m3, Bf16>;

template <template <class> class Function, class To = float>
using Compute =
    fusion::Sm90Compute<Function, To, float, cutlass::FloatRoundStyle::round_to_nearest>;

// What the gated node gates: the sums, with a bias where there is one, behind scales of rows and
// columns where it asks for them.
template <class C>
struct WideOf {
  using CtaTile = cute::Shape<cute::_128, cute::_256, typename InputOf<C::input>::TileK>;
  using OfColumns = fusion::Sm90RowBroadcast<0, CtaTile, float>;
  using OfTokens = fusion::Sm90ColBroadcast<0, CtaTile, float>;
  using Sum = fusion::Sm90EVT<Compute<cutlass::plus>, fusion::Sm90AccFetch, OfColumns>;
  using Scaled = fusion::Sm90EVT<
      Compute<cutlass::homogeneous_multiply_add>, OfTokens,
      fusion::Sm90EVT<Compute<cutlass::multiplies>, OfColumns, fusion::Sm90AccFetch>, OfColumns>;
  using Type = cute::conditional_t<C::scaled, Scaled,
                                   cute::conditional_t<C::bias, Sum, fusion::Sm90AccFetch>>;
};

template <class C, class Arguments>
void set_wide(Arguments& wide, const Call& call) {
  if constexpr (C::scaled) {
    wide.op_0.ptr_col = call.token_scales;
    wide.op_1.op_0.ptr_row = call.column_scales;
    wide.op_2.ptr_row = call.bias;
  } else if constexpr (C::bias) {
    wide.op_1.ptr_row = call.bias;
  }
}

template <class C, class Node>
void set_node(Node& node, const Call& call) {
  if constexpr (C::act == Act::kLibrarySilu) {
    node.act.gate = call.gate;
  }
  node.scale = call.scale;
}

template <class C>
constexpr auto kOrder =
    C::up_first ? sluice::cutlass::GateOrder::kUpFirst : sluice::cutlass::GateOrder::kGateFirst;

// The epilogue on compute capability 9: the node stores by itself, D is void.
template <class C, bool kGated = C::gated, int kCapability = C::capability>
struct Epilogue {
  using Element = ElementOf<C>;
  using ElementD = void;
  static constexpr int kAlign = 16 / sizeof(Element);
  using Tile = sluice::cutlass::GatedEpilogueTile<128, C::chunk>;
  using Node = sluice::cutlass::GatedVisitor<Tile, Element, typename ActOf<C::act>::Type, C::chunk,
                                             kOrder<C>>;
  using Fusion = fusion::Sm90EVT<Node, typename WideOf<C>::Type>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    set_wide<C>(args.thread.op_0, call);
    auto& node = args.thread.op_1;
    set_node<C>(node, call);
    node.ptr = static_cast<Element*>(call.out);
    node.stride = cute::make_stride(call.out_stride, cute::_1{}, call.out_batch_stride);
  }
};

// On compute capability 10: D is out, by a type of half its bits.
template <class C>
struct Epilogue<C, true, 10> {
  using Tile = sluice::cutlass::GatedEpilogueTile<128, C::chunk>;
  using Node = sluice::cutlass::Sm100GatedVisitor<ElementOf<C>, typename ActOf<C::act>::Type,
                                                  C::chunk, kOrder<C>>;
  using ElementD = typename Node::ElementD;
  // e2m1: of 32 bytes, as CUTLASS has its 4-bit outputs.
  static constexpr int kAlign = C::e4m3_out ? 64 : 16;
  using Fusion = fusion::Sm90EVT<Node, typename WideOf<C>::Type>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    set_wide<C>(args.thread.op_0, call);
    set_node<C>(args.thread.op_1, call);
    args.ptr_D = static_cast<ElementD*>(call.out);
    args.dD = cute::make_stride(2 * call.out_stride, cute::_1{}, 2 * call.out_batch_stride);
  }
};

// The stock epilogue, D = a · bᵀ.
template <class C, int kCapability>
struct Epilogue<C, false, kCapability> {
  using ElementD = ElementOf<C>;
  static constexpr int kAlign = 16 / sizeof(ElementD);
  using Tile = epilogue::collective::EpilogueTileAuto;
  using Fusion = fusion::LinearCombination<ElementD, float, void>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    args.thread.alpha = 1;
    args.thread.beta = 0;
    args.ptr_D = static_cast<ElementD*>(call.out);
    args.dD = cute::make_stride(call.out_stride, cute::_1{}, call.out_batch_stride);
  }
};

// D = max(scale · a · bᵀ + bias, 0).
template <class C>
struct ChainEpilogue {
  using ElementD = Bf16;
  static constexpr int kAlign = 8;
  using Tile = epilogue::collective::EpilogueTileAuto;
  using Sum = fusion::Sm90EVT<Compute<cutlass::homogeneous_multiply_add>,
                              fusion::Sm90ScalarBroadcast<float>, fusion::Sm90AccFetch,
                              typename WideOf<C>::OfColumns>;
  using Fusion = fusion::Sm90EVT<Compute<cutlass::epilogue::thread::ReLu, Bf16>, Sum>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    args.thread.op_0.op_0.scalars[0] = call.scale;
    args.thread.op_0.op_2.ptr_row = call.bias;
    args.ptr_D = static_cast<ElementD*>(call.out);
    args.dD = cute::make_stride(call.out_stride, cute::_1{}, call.out_batch_stride);
  }
};

// The same with a scale of each token; its values are summed over tokens, columns and both before
// they are rounded.
template <class C>
struct ReducedEpilogue {
  using ElementD = Bf16;
  static constexpr int kAlign = 8;
  using Tile = epilogue::collective::EpilogueTileAuto;
  static constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
  using CtaTile = typename WideOf<C>::CtaTile;
  using OverTokens = fusion::Sm90RowReduction<cutlass::plus, cutlass::plus, cutlass::plus, 0,
                                              CtaTile, float, float, kRound>;
  using OverColumns = fusion::Sm90ColReduction<cutlass::plus, cutlass::plus, cutlass::plus, 0,
                                               CtaTile, float, float, kRound>;
  using OverAll =
      fusion::Sm90ScalarReduction<cutlass::plus, cutlass::atomic_add, float, float, kRound>;
  using Scaled = fusion::Sm90EVT<Compute<cutlass::multiplies>, fusion::Sm90ScalarBroadcast<float>,
                                 fusion::Sm90AccFetch>;
  using Sum = fusion::Sm90EVT<Compute<cutlass::homogeneous_multiply_add>,
                              typename WideOf<C>::OfTokens, Scaled, typename WideOf<C>::OfColumns>;
  using Values = fusion::Sm90EVT<Compute<cutlass::epilogue::thread::ReLu>, Sum>;
  using Columns = fusion::Sm90EVT<OverTokens, Values>;
  using Tokens = fusion::Sm90EVT<OverColumns, Columns>;
  using Whole = fusion::Sm90EVT<OverAll, Tokens>;
  using Fusion = fusion::Sm90EVT<Compute<cutlass::epilogue::thread::Identity, Bf16>, Whole>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    auto& whole = args.thread.op_0;
    auto& tokens = whole.op_0;
    auto& columns = tokens.op_0;
    whole.op_1.ptr_scalar = call.sum;
    tokens.op_1.ptr_col = call.token_sums;
    columns.op_1.ptr_row = call.column_sums;
    auto& sum = columns.op_0.op_0;
    sum.op_0.ptr_col = call.token_scales;
    sum.op_1.op_0.scalars[0] = call.scale;
    sum.op_2.ptr_row = call.bias;
    args.ptr_D = static_cast<ElementD*>(call.out);
    args.dD = cute::make_stride(call.out_stride, cute::_1{}, call.out_batch_stride);
  }
};

template <class C, Output kOutput = C::output>
struct PartsOf {
  using Type = Epilogue<C>;
};
template <class C>
struct PartsOf<C, Output::kChainBf16> {
  using Type = ChainEpilogue<C>;
};
template <class C>
struct PartsOf<C, Output::kReducedBf16> {
  using Type = ReducedEpilogue<C>;
};

template <class C>
class GemmOf final : public Gemm {
  using In = InputOf<C::input>;
  using Chip = ChipOf<C>;
  using Parts = typename PartsOf<C>::Type;
  using CollectiveEpilogue = typename epilogue::collective::CollectiveBuilder<
      typename Chip::Arch, typename In::OpClass, typename Chip::MainTile, Cluster,
      typename Parts::Tile, float, float, void, RowMajor, Parts::kAlign, typename Parts::ElementD,
      RowMajor, Parts::kAlign, typename Chip::EpilogueSchedule,
      typename Parts::Fusion>::CollectiveOp;
  using CollectiveMainloop = typename gemm::collective::CollectiveBuilder<
      typename Chip::Arch, typename In::OpClass, typename In::Element, RowMajor, In::kAlign,
      typename In::Element, ColumnMajor, In::kAlign, float, typename Chip::MainTile, Cluster,
      gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      typename Chip::MainSchedule>::CollectiveOp;
  using Kernel = gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                             CollectiveEpilogue>;
  using Adapter = gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  [[nodiscard]] bool init(const Call& call) {
    typename Adapter::Arguments args{};
    args.mode = gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {call.m, call.n, call.k, call.batches};
    args.mainloop.ptr_A = static_cast<const typename In::Stored*>(call.a);
    args.mainloop.dA = cute::make_stride(int64_t(call.k), cute::_1{}, int64_t(call.m) * call.k);
    args.mainloop.ptr_B = static_cast<const typename In::Stored*>(call.b);
    args.mainloop.dB = cute::make_stride(int64_t(call.k), cute::_1{}, int64_t(call.n) * call.k);
    if constexpr (kHasScales<C::input>) {
      using Scale = typename In::Element::ScaleFactorType;
      args.mainloop.ptr_SFA = static_cast<const Scale*>(call.a_scales);
      args.mainloop.layout_SFA = scale_layout(call.m, call.n, call.k, std::false_type{});
      args.mainloop.ptr_SFB = static_cast<const Scale*>(call.b_scales);
      args.mainloop.layout_SFB = scale_layout(call.m, call.n, call.k, std::true_type{});
    }
    Parts::set(args.epilogue, call);
    args.hw_info.device_id = 0;
    args.hw_info.sm_count =
        cutlass::KernelHardwareInfo::query_device_multiprocessor_count(args.hw_info.device_id);
    args.scheduler.max_swizzle_size = call.swizzle;
    workspace_.reset(Adapter::get_workspace_size(args));  // of sums over tokens and columns
    return Adapter::can_implement(args) == cutlass::Status::kSuccess &&
           adapter_.initialize(args, workspace_.get()) == cutlass::Status::kSuccess;
  }
  [[nodiscard]] bool run(cudaStream_t stream) override {
    return adapter_.run(stream) == cutlass::Status::kSuccess;
  }

  template <bool kOfB>
  static auto scale_layout(int m, int n, int k, std::bool_constant<kOfB>) {
    using Scales = cutlass::detail::Sm1xxBlockScaledConfig<In::kScaled>;
    const auto shape = cute::make_shape(m, n, k, 1);
    if constexpr (kOfB) {
      return Scales::tile_atom_to_shape_SFB(shape);
    } else {
      return Scales::tile_atom_to_shape_SFA(shape);
    }
  }

  static std::vector<std::int64_t> scale_offsets(int m, int n, int k, bool of_b) {
    const auto of = [&](int rows, const auto& layout) {
      std::vector<std::int64_t> offsets;
      for (int row = 0; row < rows; ++row) {
        for (int at = 0; at < k; at += In::kScaled) offsets.push_back(layout(row, at, 0));
      }
      return offsets;
    };
    return of_b ? of(n, scale_layout(m, n, k, std::true_type{}))
                : of(m, scale_layout(m, n, k, std::false_type{}));
  }

 private:
  cutlass::device_memory::allocation<std::uint8_t> workspace_;
  Adapter adapter_;
};

template <class C>
std::unique_ptr<Gemm> make(const Call& call) {
  auto made = std::make_unique<GemmOf<C>>();
  return made->init(call) ? std::move(made) : nullptr;
}

template <class C>
bool add(const char* name, C) {
  Instance instance{name,     C::capability, C::input, C::output, C::act,
                    C::chunk, C::up_first,   C::bias,  &make<C>};
  if constexpr (kHasScales<C::input>) {
    instance.scale_offsets = &GemmOf<C>::scale_offsets;
  }
  instances().push_back(instance);
  return true;
}

}  // namespace example
