// SPDX-License-Identifier: Apache-2.0
// A rig whose memory is the host's, for a device that says something else.
#pragma once

#include <memory>
#include <utility>

#include "harness/rig.hpp"

namespace sluice::harness {

class HostRig : public Rig {
 public:
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] Stream stream() const noexcept override { return nullptr; }
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    return cpu_->allocate(bytes);
  }
  void free(void* pointer) noexcept override { cpu_->free(pointer); }
  Status upload(void* to, const void* host, std::size_t bytes) override {
    return cpu_->upload(to, host, bytes);
  }
  Status download(void* host, const void* from, std::size_t bytes) override {
    return cpu_->download(host, from, bytes);
  }
  Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) override {
    return cpu_->fill_bytes(pointer, value, bytes);
  }
  Status fill_matrix(const OperandSpec& spec, const FillParams& params, void* base) override {
    return cpu_->fill_matrix(spec, params, base);
  }
  Status synchronize() override { return {}; }
  Status flush_caches() override { return cpu_->flush_caches(); }

 private:
  std::unique_ptr<Rig> cpu_ = std::move(open_rig("cpu").value());

 protected:
  Device device_ = cpu_->device();
};

}  // namespace sluice::harness
