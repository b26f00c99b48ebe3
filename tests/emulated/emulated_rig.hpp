// SPDX-License-Identifier: Apache-2.0
// A GPU that a description says, whose memory is the host's.
#pragma once

#include <memory>
#include <utility>

#include "emulator.hpp"
#include "harness/rig.hpp"

namespace sluice::emulator {

class EmulatedRig final : public harness::Rig {
 public:
  explicit EmulatedRig(const Device& device) : device_(device) {
    device_.memory_bytes = cpu_->device().memory_bytes;
    limit_shared_memory(static_cast<std::size_t>(device_.smem_per_block_bytes));
  }
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] Stream stream() const noexcept override { return nullptr; }
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    auto memory = cpu_->allocate(bytes);
    if (memory) add_memory(*memory, bytes);
    return memory;
  }
  void free(void* pointer) noexcept override {
    remove_memory(pointer);
    cpu_->free(pointer);
  }
  Status upload(void* to, const void* host, std::size_t bytes) override {
    return cpu_->upload(to, host, bytes);
  }
  Status download(void* host, const void* from, std::size_t bytes) override {
    return cpu_->download(host, from, bytes);
  }
  Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) override {
    return cpu_->fill_bytes(pointer, value, bytes);
  }
  Status fill_matrix(const OperandSpec& spec, const harness::FillParams& params,
                     void* base) override {
    return cpu_->fill_matrix(spec, params, base);
  }
  Status synchronize() override { return {}; }
  Status flush_caches() override { return {}; }

 private:
  std::unique_ptr<harness::Rig> cpu_ = std::move(harness::open_rig("cpu").value());
  Device device_;
};

}  // namespace sluice::emulator
