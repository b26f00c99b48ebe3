// SPDX-License-Identifier: Apache-2.0
// A GEMM out of CUTLASS's builders for tcgen05, tiles of 256 x 256 by pairs of CTAs, with the
// library's gated node or the stock epilogue. Compiled, never run.
#pragma once

#include "cuda/sm100/silence.hpp"
// The order counts: what is below sees that one's macros.
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/sm100/gemm.hpp"
#include "sluice/cutlass/sm100_gated_visitor.hpp"

namespace sluice::cuda::sm100 {

using Bf16 = ::cutlass::bfloat16_t;

/// silu with all its parameters; which of a pair is the gate's is the problem's. One activation:
/// the others in the same kernel would spill.
struct SiluGate {
  sluice::cutlass::LibraryGate<Activation::kSilu> gate;
  bool up_first = false;
  CUTLASS_HOST_DEVICE float operator()(float first, float second) const {
    return gate(up_first ? second : first, up_first ? first : second);
  }
};

template <int kRows>
struct GatedParts {
  using Node = sluice::cutlass::Sm100GatedVisitor<Bf16, SiluGate, kRows>;
  using ElementD = typename Node::ElementD;
  using Tile = sluice::cutlass::GatedEpilogueTile<128, kRows>;
  using Fusion =
      ::cutlass::epilogue::fusion::Sm90EVT<Node, ::cutlass::epilogue::fusion::Sm90AccFetch>;

  template <class Arguments>
  static void set(Arguments& args, const GemmParams& p) {
    args.thread.op_1.act = {{p.gate}, p.up_first};
    args.dD = cute::make_stride(2 * p.out_stride, cute::_1{}, std::int64_t{0});
  }
};

struct PlainParts {
  using ElementD = Bf16;
  using Tile = ::cutlass::epilogue::collective::EpilogueTileAuto;
  using Fusion = ::cutlass::epilogue::fusion::LinearCombination<Bf16, float, void>;

  template <class Arguments>
  static void set(Arguments& args, const GemmParams& p) {
    args.thread.alpha = 1;
    args.thread.beta = 0;
    args.dD = cute::make_stride(p.out_stride, cute::_1{}, std::int64_t{0});
  }
};

template <class Parts>
Status run(const GemmParams& p, const Device& device, Stream stream) noexcept {
  namespace gemm = ::cutlass::gemm;
  namespace collective = ::cutlass::epilogue::collective;
  using Arch = ::cutlass::arch::Sm100;
  using OpClass = ::cutlass::arch::OpClassTensorOp;
  using Rows = ::cutlass::layout::RowMajor;
  using Columns = ::cutlass::layout::ColumnMajor;
  using Tile = cute::Shape<cute::_256, cute::_256, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  constexpr int kAlignD = 128 / cute::sizeof_bits_v<typename Parts::ElementD>;
  using Epilogue = typename collective::CollectiveBuilder<
      Arch, OpClass, Tile, Cluster, typename Parts::Tile, float, float, void, Rows, kAlignD,
      typename Parts::ElementD, Rows, kAlignD, ::cutlass::epilogue::TmaWarpSpecialized2Sm,
      typename Parts::Fusion>::CollectiveOp;
  using Mainloop = typename gemm::collective::CollectiveBuilder<
      Arch, OpClass, Bf16, Rows, 8, Bf16, Columns, 8, float, Tile, Cluster,
      gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      gemm::KernelTmaWarpSpecialized2SmSm100>::CollectiveOp;
  using Adapter = gemm::device::GemmUniversalAdapter<
      gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>>;

  typename Adapter::Arguments args{};
  args.mode = gemm::GemmUniversalMode::kGemm;
  args.problem_shape = {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1};
  args.mainloop.ptr_A = static_cast<const Bf16*>(p.x);
  args.mainloop.dA = cute::make_stride(p.x_stride, cute::_1{}, std::int64_t{0});
  args.mainloop.ptr_B = static_cast<const Bf16*>(p.w);
  args.mainloop.dB = cute::make_stride(p.w_stride, cute::_1{}, std::int64_t{0});
  Parts::set(args.epilogue, p);
  args.epilogue.ptr_D = static_cast<typename Parts::ElementD*>(p.out);
  args.hw_info.device_id = device.ordinal;
  args.hw_info.sm_count = device.sm_count;
  Adapter adapter;
  ::cutlass::Status status = Adapter::can_implement(args);
  if (status == ::cutlass::Status::kSuccess && Adapter::get_workspace_size(args) != 0) {
    status = ::cutlass::Status::kErrorWorkspaceNull;
  }
  if (status == ::cutlass::Status::kSuccess) status = adapter.initialize(args);
  if (status == ::cutlass::Status::kSuccess) {
    status = adapter.run(static_cast<cudaStream_t>(stream));
  }
  if (status == ::cutlass::Status::kSuccess) return {};
  return make_error(ErrorCode::kDevice, "CUTLASS: %s", ::cutlass::cutlassGetStatusString(status));
}

}  // namespace sluice::cuda::sm100
