// SPDX-License-Identifier: Apache-2.0
// A GPU that a description says, whose memory is the host's.
#pragma once

#include "emulator.hpp"
#include "tests/host_rig.hpp"

namespace sluice::emulator {

class EmulatedRig final : public harness::HostRig {
 public:
  explicit EmulatedRig(const Device& device) {
    const std::int64_t memory_bytes = device_.memory_bytes;
    device_ = device;
    device_.memory_bytes = memory_bytes;
    limit_shared_memory(static_cast<std::size_t>(device_.smem_per_block_bytes));
  }
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    auto memory = HostRig::allocate(bytes);
    if (memory) add_memory(*memory, bytes);
    return memory;
  }
  void free(void* pointer) noexcept override {
    remove_memory(pointer);
    HostRig::free(pointer);
  }
};

}  // namespace sluice::emulator
