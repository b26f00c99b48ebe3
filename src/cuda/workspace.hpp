// SPDX-License-Identifier: Apache-2.0
// The workspace header: 4 KiB that mean the same to every kernel, zeroed once by workspace_init().
// Words advance or wrap by themselves, so no launch clears them and captured graphs replay. See
// docs/kernels/groundwork.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/plan.hpp"

namespace sluice::cuda {

/// One grid barrier: a word on a cache line of its own. Arrivals of one barrier add up to exactly
/// 2^31, so that the top bit flips when the last CTA arrives (tile/grid_barrier.cuh).
struct alignas(128) BarrierWord {
  std::uint32_t arrived;
};

struct WorkspaceHeader {
  static constexpr int kBarriers = 8;
  static constexpr int kTickets = 736;
  BarrierWord barriers[kBarriers];  ///< [0, 1024): grid barriers, by use: kernels start at 0
  BarrierWord stuck;                ///< [1024, 1152): barriers that a watchdog gave up on
  /// [1152, 4096): arrivals of groups of CTAs, 0 between launches: the last of a group sets its
  /// word back.
  std::uint32_t tickets[kTickets];
};
static_assert(sizeof(BarrierWord) == 128);
static_assert(sizeof(WorkspaceHeader) == kWorkspaceHeaderBytes);
static_assert(offsetof(WorkspaceHeader, stuck) == 1024);

/// Splits a workspace payload into aligned parts; with a null base it only counts.
class PayloadCursor {
 public:
  explicit PayloadCursor(void* base) noexcept : base_(static_cast<char*>(base)) {}

  /// The next `bytes`, aligned to kWorkspaceAlignment; null where the base is.
  void* take(std::int64_t bytes) noexcept {
    void* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(bytes) + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
             kWorkspaceAlignment;
    return part;
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace sluice::cuda
