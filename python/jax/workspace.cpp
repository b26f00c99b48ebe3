// SPDX-License-Identifier: Apache-2.0
#include "workspace.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <sluice/plan.hpp>
#include <utility>

#include "binding/driver.hpp"
#include "binding/errors.hpp"

namespace sluice_jax {
namespace {

using sluice::kWorkspaceAlignment;
using sluice::kWorkspaceHeaderBytes;
using sluice_binding::check;

// Of a host thread's workspace; what a prompt or a training step needs beyond goes back after the
// call.
constexpr std::size_t kThreadBytes = std::size_t{32} << 20;

void zero_header(const sluice_workspace& workspace, const Place& place, void* stream) {
  sluice_error error{};
  check(sluice_workspace_init(workspace, &sluice_binding::device_of(place), stream, &error), error);
}

void run(const sluice_plan& plan, const sluice_operands& operands,
         const sluice_workspace& workspace, void* stream) {
  sluice_error error{};
  const sluice_run_args args{sizeof(args), &operands, workspace, stream, nullptr};
  check(sluice_run(&plan, &args, &error), error);
}

// A CPU's, its header zeroed; or none.
class HostWorkspace {
 public:
  HostWorkspace() = default;
  explicit HostWorkspace(std::size_t bytes)
      : bytes_(bytes), memory_(::operator new(bytes, kAlignment)) {
    zero_header(view(), Place{}, nullptr);
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] sluice_workspace view() const { return {memory_.get(), bytes_, nullptr}; }

 private:
  static constexpr std::align_val_t kAlignment{kWorkspaceAlignment};
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> memory_;
};

// A stream's header.
struct Kept {
  std::mutex mutex;  // two host threads may enqueue on one stream, but a run is several launches
  void* header = nullptr;
};

// Never destroyed: streams outlive this library's statics.
Kept& kept_by(const Place& place, void* stream) {
  static auto& mutex = *new std::mutex;
  static auto& streams = *new std::map<std::pair<std::int32_t, void*>, Kept>;
  const std::lock_guard lock(mutex);
  return streams[{place.index, stream}];
}

}  // namespace

void run_on_cpu(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes) {
  if (bytes == 0) return run(plan, operands, {}, nullptr);
  if (bytes > kThreadBytes) return run(plan, operands, HostWorkspace(bytes).view(), nullptr);
  thread_local HostWorkspace kept;
  if (kept.bytes() < bytes) {
    kept = {};  // its memory goes before more is taken
    kept = HostWorkspace(bytes);
  }
  run(plan, operands, kept.view(), nullptr);
}

void run_on_cuda(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                 const Place& place, void* stream, xla::ffi::ScratchAllocator& scratch) {
  if (bytes == 0) return run(plan, operands, {}, stream);
  Kept& kept = kept_by(place, stream);
  const std::lock_guard lock(kept.mutex);
  if (kept.header == nullptr) {
    void* const header = sluice_binding::allocate_for_good(place, kWorkspaceHeaderBytes);
    zero_header({nullptr, 0, header}, place, stream);
    kept.header = header;
  }
  const std::size_t scratch_bytes = bytes - kWorkspaceHeaderBytes;
  void* data = nullptr;
  if (scratch_bytes > 0) {
    // XLA promises an alignment of 16 bytes at most.
    const auto taken = scratch.Allocate(scratch_bytes + kWorkspaceAlignment);
    if (!taken) throw std::bad_alloc();
    std::size_t room = scratch_bytes + kWorkspaceAlignment;
    data = *taken;
    std::align(kWorkspaceAlignment, scratch_bytes, data, room);
  }
  run(plan, operands, {data, scratch_bytes, kept.header}, stream);
}

}  // namespace sluice_jax
