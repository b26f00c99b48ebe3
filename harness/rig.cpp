// SPDX-License-Identifier: Apache-2.0
// The CPU rig, and the choice between rigs.
#include "harness/rig.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace sluice::harness {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class CpuRig final : public Rig {
 public:
  explicit CpuRig(const Device& device) : device_(device) {}
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] Stream stream() const noexcept override { return nullptr; }
  [[nodiscard]] bool host_memory() const noexcept override { return true; }

  // Blocks that fill half of a huge page ask for whole ones: over 4 KiB pages the TLB would be
  // measured, and not the memory that the ceilings read in huge pages.
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    // What the machine does not have is refused here: overcommitted memory would end the process
    // when it is first written.
    if (bytes > static_cast<std::size_t>(device_.memory_bytes)) {
      return make_error(ErrorCode::kOutOfMemory, "cpu: no memory for %zu bytes", bytes);
    }
    const std::size_t alignment = bytes >= kHugePage / 2 ? kHugePage : kPage;
    const std::size_t rounded =
        (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* const pointer = std::aligned_alloc(alignment, rounded);
    if (pointer == nullptr) {
      return make_error(ErrorCode::kOutOfMemory, "cpu: no memory for %zu bytes", bytes);
    }
    if (alignment == kHugePage) static_cast<void>(madvise(pointer, rounded, MADV_HUGEPAGE));
    return pointer;
  }
  void free(void* pointer) noexcept override { std::free(pointer); }

  Status upload(void* destination, const void* host, std::size_t bytes) override {
    return copy(destination, host, bytes);
  }
  Status download(void* host, const void* source, std::size_t bytes) override {
    return copy(host, source, bytes);
  }
  Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) override {
    if (bytes > 0) std::memset(pointer, value, bytes);
    return {};
  }
  Status fill_matrix(const OperandSpec& spec, const FillParams& params, void* base) override {
    harness::fill_matrix(spec, params, base);
    return {};
  }
  Status synchronize() override { return {}; }

  Status flush_caches() override {
    constexpr std::size_t kLeast = std::size_t{64} << 20;
    constexpr std::size_t kMost = std::size_t{1} << 30;
    const std::size_t wanted =
        std::clamp(2 * static_cast<std::size_t>(device_.l3_bytes), kLeast, kMost);
    if (flush_.size() != wanted) flush_.assign(wanted, 0);
    for (std::size_t i = 0; i < wanted; i += 64) flush_[i] = static_cast<unsigned char>(++round_);
    return {};
  }

 private:
  static Status copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }

  Device device_;
  std::vector<unsigned char> flush_;
  unsigned round_ = 0;
};

#if defined(SLUICE_WITH_CUDA)
Expected<std::unique_ptr<Rig>> open_cuda(int ordinal, int max_capability) {
  return make_cuda_rig(ordinal, max_capability);
}
#else
Expected<std::unique_ptr<Rig>> open_cuda(int ordinal, int /*max_capability*/) {
  return make_error(ErrorCode::kUnsupported, "device cuda:%d: this Sluice was built without CUDA",
                    ordinal);
}
#endif

}  // namespace

void limit_capability(Device& device, int max_capability) noexcept {
  if (max_capability == 0 || device.compute_capability <= max_capability) return;
  device.compute_capability = max_capability;
  device.arch = arch_of(max_capability);
}

Expected<std::unique_ptr<Rig>> open_rig(std::string_view name, const DeviceLimits& limits) {
  if (name == "auto") return open_rig(cuda_device_count() > 0 ? "cuda" : "cpu", limits);
  if (name == "cpu") {
    Device cpu = cpu_device();
    SLUICE_TRY(limit_simd(cpu, limits.max_simd));
    return std::unique_ptr<Rig>(std::make_unique<CpuRig>(cpu));
  }
  if (name == "cuda") return open_cuda(0, limits.max_capability);
  constexpr std::string_view kPrefix = "cuda:";
  if (name.starts_with(kPrefix)) {
    const std::string_view digits = name.substr(kPrefix.size());
    int ordinal = -1;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc{} && end == digits.data() + digits.size() && ordinal >= 0) {
      return open_cuda(ordinal, limits.max_capability);
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "device: got \"%.*s\", wanted auto, cpu, cuda or cuda:N",
                    static_cast<int>(std::min<std::size_t>(name.size(), 64)), name.data());
}

Expected<RigBuffer> RigBuffer::make(Rig& rig, std::size_t bytes) {
  const auto memory = rig.allocate(bytes);
  if (!memory) return memory.error();
  return RigBuffer(rig, *memory, bytes);
}

}  // namespace sluice::harness
