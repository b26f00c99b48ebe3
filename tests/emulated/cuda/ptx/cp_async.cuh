// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/mbarrier.cuh"
#include "emulator.hpp"

namespace sluice::cuda::ptx {

inline void cp_async_16(std::uint32_t to, const void* from, bool valid) {
  emulator::copy_later(to, from, valid);
}

inline void cp_async_commit() { emulator::commit_copies(); }

template <int kPending>
void cp_async_wait() {
  emulator::wait_for_copies(kPending);
}

inline void cp_async_arrive(const std::uint64_t& barrier) {
  emulator::arrive_after_copies(shared_address(&barrier));
}

}  // namespace sluice::cuda::ptx
