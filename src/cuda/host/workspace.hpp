// SPDX-License-Identifier: Apache-2.0
// The workspace header: 16 KiB that mean the same to every kernel, zeroed once by workspace_init().
// Words advance or wrap by themselves, so no launch clears them and captured graphs replay. See
// docs/kernels/groundwork.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/plan.hpp"

namespace sluice::cuda {

struct WorkspaceHeader {
  static constexpr int kTickets = 736;
  std::uint32_t unused[288];  ///< [0, 1152)
  /// [1152, 4096): arrivals of groups of CTAs, 0 between launches: the last of a group sets its
  /// word back.
  std::uint32_t tickets[kTickets];
  std::uint32_t room[3072];  ///< [4096, 16384): for what later versions leave between runs
};
static_assert(sizeof(WorkspaceHeader) == kWorkspaceHeaderBytes);
static_assert(offsetof(WorkspaceHeader, tickets) == 1152);

/// Splits a workspace payload into aligned parts; with a null base it only counts.
class ScratchCursor {
 public:
  explicit ScratchCursor(void* base) noexcept : base_(static_cast<char*>(base)) {}

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
