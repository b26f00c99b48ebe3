// SPDX-License-Identifier: Apache-2.0
// Rig: one opened device, as tests, the command line and benchmarks need it: memory, copies, fill.
// The library itself allocates nothing; this is where the memory of tests comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "harness/fill.hpp"
#include "sluice/device.hpp"
#include "sluice/operands.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// One device with one stream. Copies and fills are ordered on stream() and complete when they
/// return. One thread at a time, but for run() on operands that lie here.
class Rig {
 public:
  virtual ~Rig() = default;
  Rig() = default;
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  [[nodiscard]] virtual Stream stream() const noexcept = 0;

  /// Memory of the device, aligned to at least 4096 bytes, of undefined content. Error:
  /// kOutOfMemory. `bytes` may be 0.
  [[nodiscard]] virtual Expected<void*> allocate(std::size_t bytes) = 0;
  virtual void free(void* pointer) noexcept = 0;
  /// Bytes that can be allocated now, as far as the system tells; of a CPU all memory, because free
  /// pages would not count what the file cache gives back.
  [[nodiscard]] virtual std::int64_t free_bytes() const noexcept { return device().memory_bytes; }

  virtual Status upload(void* destination, const void* host, std::size_t bytes) = 0;
  virtual Status download(void* host, const void* source, std::size_t bytes) = 0;
  virtual Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) = 0;

  /// Fills a matrix of the device by fill_value(), the same bits on every rig. `base` is element
  /// (0, 0).
  virtual Status fill_matrix(const OperandSpec& spec, const FillParams& params, void* base) = 0;

  /// Waits for everything on stream(); returns what failed asynchronously.
  virtual Status synchronize() = 0;

  /// Writes or reads enough other memory that operands used before are in no cache.
  virtual Status flush_caches() = 0;

  /// True where device memory can be read and written by the host as it is.
  [[nodiscard]] virtual bool host_memory() const noexcept { return false; }
};

/// What a device is held to, so that it is planned for as one that has less.
struct DeviceLimits {
  const char* max_simd = nullptr;  ///< of a CPU, for limit_simd()
  int max_capability = 0;          ///< of a GPU: 10 · major + minor; 0 for all that it has
};

/// Takes from a GPU's description the kernels above this compute capability: its plans are those of
/// an older chip with as many multiprocessors, as much memory and as fast. 0 changes nothing.
void limit_capability(Device& device, int max_capability) noexcept;

/// Opens a rig: "cpu", "cuda" (device 0), "cuda:N", or "auto": the first GPU if there is one, else
/// the CPU; its device is held to `limits`. Errors: kInvalidArgument for another name, kUnsupported
/// where this build or machine has no such device.
[[nodiscard]] Expected<std::unique_ptr<Rig>> open_rig(std::string_view name,
                                                      const DeviceLimits& limits = {});

/// The CUDA rig; defined in harness/cuda/rig.cpp, only in builds with SLUICE_CUDA.
[[nodiscard]] Expected<std::unique_ptr<Rig>> make_cuda_rig(int ordinal, int max_capability = 0);

/// Memory of a rig that frees itself.
class RigBuffer {
 public:
  RigBuffer() = default;
  RigBuffer(Rig& rig, void* data, std::size_t bytes) : rig_(&rig), data_(data), bytes_(bytes) {}
  RigBuffer(RigBuffer&& other) noexcept { swap(other); }
  RigBuffer& operator=(RigBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~RigBuffer() {
    if (rig_ != nullptr) rig_->free(data_);
  }
  [[nodiscard]] static Expected<RigBuffer> make(Rig& rig, std::size_t bytes);

  [[nodiscard]] char* data() const noexcept { return static_cast<char*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void swap(RigBuffer& other) noexcept {
    std::swap(rig_, other.rig_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Rig* rig_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::harness
