// SPDX-License-Identifier: Apache-2.0
// What the gated nodes are to CUTLASS's collectives alike: they load nothing and need no workspace.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace sluice::cutlass::detail {

struct Node {
  struct SharedStorage {};

  template <class ProblemShape, class Arguments>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  template <class ProblemShape, class Arguments>
  static ::cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*,
                                                cudaStream_t,
                                                ::cutlass::CudaHostAdapter* = nullptr) {
    return ::cutlass::Status::kSuccess;
  }

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      ::cutlass::epilogue::fusion::detail::ProducerLoadArgs<Args...> const&) {
    return ::cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks{};
  }
};

}  // namespace sluice::cutlass::detail
