// SPDX-License-Identifier: Apache-2.0
// A bf16 GEMM for sm_90a out of CUTLASS's standard builders, with the gated visitor or with the
// stock epilogue.
#pragma once

#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#include "gemm.hpp"
#include "sluice/cutlass/gated_visitor.hpp"

namespace example {

template <Output kOutput, Act kAct, int kChunk, bool kUpFirst, bool kBias>
struct Config {
  static constexpr Output output = kOutput;
  static constexpr Act act = kAct;
  static constexpr int chunk = kChunk;
  static constexpr bool up_first = kUpFirst;
  static constexpr bool bias = kBias;
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

using Bf16 = cutlass::bfloat16_t;
using E4m3 = cutlass::float_e4m3_t;
using CtaTile = cute::Shape<cute::_128, cute::_256, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using MainSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

// The epilogue with the gated visitor.
template <class C, bool kGated = C::output == Output::kGatedBf16 || C::output == Output::kGatedE4m3>
struct Epilogue {
  using Element = cute::conditional_t<C::output == Output::kGatedE4m3, E4m3, Bf16>;
  using ElementD = void;
  using GateAct = typename ActOf<C::act>::Type;
  using Tile = sluice::cutlass::GatedEpilogueTile<128, C::chunk>;
  using Visitor =
      sluice::cutlass::GatedVisitor<Tile, Element, GateAct, C::chunk,
                                    C::up_first ? sluice::cutlass::GateOrder::kUpFirst
                                                : sluice::cutlass::GateOrder::kGateFirst>;
  using Acc = cutlass::epilogue::fusion::Sm90AccFetch;
  using Bias = cutlass::epilogue::fusion::Sm90RowBroadcast<0, CtaTile, float>;
  using Sum = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<cutlass::plus, float, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      Acc, Bias>;
  using Child = cute::conditional_t<C::bias, Sum, Acc>;
  using Fusion = cutlass::epilogue::fusion::Sm90EVT<Visitor, Child>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    if constexpr (C::bias) {
      auto& sum = args.thread.op_0;
      sum.op_1.ptr_row = call.bias;
    }
    auto& visitor = args.thread.op_1;
    if constexpr (C::act == Act::kLibrarySilu) {
      visitor.act.gate = call.gate;
    }
    visitor.ptr = static_cast<Element*>(call.out);
    visitor.stride = cute::make_stride(call.out_stride, cute::_1{}, int64_t(0));
    visitor.scale = call.scale;
  }
};

// The stock epilogue, D = a · bᵀ.
template <class C>
struct Epilogue<C, false> {
  using Element = cute::conditional_t<C::output == Output::kWideE4m3, E4m3, Bf16>;
  using ElementD = Element;
  using Tile = cutlass::epilogue::collective::EpilogueTileAuto;
  using Fusion = cutlass::epilogue::fusion::LinearCombination<Element, float, void>;

  template <class Arguments>
  static void set(Arguments& args, const Call& call) {
    args.thread.alpha = 1;
    args.thread.beta = 0;
    args.ptr_D = static_cast<Element*>(call.out);
    args.dD = cute::make_stride(call.out_stride, cute::_1{}, int64_t(0));
  }
};

template <class C>
class GemmOf final : public Gemm {
  using Parts = Epilogue<C>;
  using Element = typename Parts::Element;
  static constexpr int kAlign = 16 / sizeof(Element);
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, CtaTile, Cluster, typename Parts::Tile,
      float, float, void, RowMajor, kAlign, typename Parts::ElementD, RowMajor, kAlign,
      EpilogueSchedule, typename Parts::Fusion>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, RowMajor, 8, Bf16, ColumnMajor, 8,
      float, CtaTile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>,
                                                      CollectiveMainloop, CollectiveEpilogue>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  [[nodiscard]] bool init(const Call& call) {
    typename Adapter::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {call.m, call.n, call.k, 1};
    args.mainloop.ptr_A = static_cast<const Bf16*>(call.a);
    args.mainloop.dA = cute::make_stride(int64_t(call.k), cute::_1{}, int64_t(0));
    args.mainloop.ptr_B = static_cast<const Bf16*>(call.b);
    args.mainloop.dB = cute::make_stride(int64_t(call.k), cute::_1{}, int64_t(0));
    Parts::set(args.epilogue, call);
    args.hw_info.device_id = 0;
    args.hw_info.sm_count =
        cutlass::KernelHardwareInfo::query_device_multiprocessor_count(args.hw_info.device_id);
    args.scheduler.max_swizzle_size = call.swizzle;
    return Adapter::get_workspace_size(args) == 0 &&
           Adapter::can_implement(args) == cutlass::Status::kSuccess &&
           adapter_.initialize(args) == cutlass::Status::kSuccess;
  }
  [[nodiscard]] bool run(cudaStream_t stream) override {
    return adapter_.run(stream) == cutlass::Status::kSuccess;
  }

 private:
  Adapter adapter_;
};

template <class C>
std::unique_ptr<Gemm> make(const Call& call) {
  auto gemm = std::make_unique<GemmOf<C>>();
  return gemm->init(call) ? std::move(gemm) : nullptr;
}

template <class C>
bool add(const char* name, C) {
  instances().push_back({name, C::output, C::act, C::chunk, C::up_first, C::bias, &make<C>});
  return true;
}

}  // namespace example
