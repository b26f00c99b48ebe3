// SPDX-License-Identifier: Apache-2.0
#include "timing/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace sluice::timing {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class CpuArena final : public Arena {
 public:
  ~CpuArena() override { CpuArena::free_all(); }

  [[nodiscard]] Stream stream() const noexcept override { return nullptr; }

  [[nodiscard]] std::int64_t free_bytes() const noexcept override {
    // All of it: free pages would not count what the file cache gives back when it is asked for.
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    const std::size_t alignment = bytes >= kHugePage / 2 ? kHugePage : kPage;
    const std::size_t rounded = (bytes / alignment + 1) * alignment;
    void* const pointer = std::aligned_alloc(alignment, rounded);
    if (pointer == nullptr) {
      return make_error(ErrorCode::kOutOfMemory, "cpu: no memory for %zu bytes", bytes);
    }
    if (alignment == kHugePage) static_cast<void>(madvise(pointer, rounded, MADV_HUGEPAGE));
    blocks_.push_back(pointer);
    return pointer;
  }
  void free_all() noexcept override {
    for (void* const block : blocks_) std::free(block);
    blocks_.clear();
  }

  Status upload(void* to, const void* host, std::size_t bytes) override {
    return copy(to, host, bytes);
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status clear(void* to, std::size_t bytes) override {
    std::memset(to, 0, bytes);
    return {};
  }

  [[nodiscard]] Expected<std::unique_ptr<Stopwatch>> make_stopwatch() override {
    return make_cpu_stopwatch();
  }

 private:
  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Arena> make_cpu_arena() { return std::make_unique<CpuArena>(); }

}  // namespace sluice::timing
