// SPDX-License-Identifier: Apache-2.0
// On CUDA a header is kept for each stream and each capture, beside Torch's allocator; scratch is
// the stream's own where it is small, else Torch's and given back after the call. So nothing that
// outlives a call lies in the memory pool of a graph, where Torch counts every tensor
// (torch.compile's mode "reduce-overhead") and which its graphs share. A graph that is captured
// outside of Torch has no pool: its scratch is kept like its header.
#include "workspace.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sluice/plan.hpp>
#include <utility>
#include <vector>

#include "binding/driver.hpp"
#include "binding/errors.hpp"

namespace sluice_torch {
namespace {

using sluice::kWorkspaceAlignment;
using sluice::kWorkspaceHeaderBytes;
using sluice_binding::at_end_of;
using sluice_binding::Capture;
using sluice_binding::capture_of;
using sluice_binding::check;
using sluice_binding::device_of;
using torch::stable::Tensor;

// Of a stream's own scratch, one page of the device's with its header: decode up to 16 tokens of a
// 70B model (2·M·H bytes, and 4·M·D behind a norm) stays below, where asking Torch's allocator
// would add a microsecond to calls that the host is busiest with.
constexpr std::size_t kPageBytes = std::size_t{2} << 20;
constexpr std::size_t kStreamBytes = kPageBytes - kWorkspaceHeaderBytes;
// Of a host thread's; what a prompt or a training step needs beyond goes back after the call.
constexpr std::size_t kThreadBytes = std::size_t{32} << 20;
constexpr std::size_t kHeadersAtOnce = 64;

void zero_header(const sluice_workspace& workspace, const Place& place, void* stream) {
  sluice_error error{};
  check(sluice_workspace_init(workspace, &device_of(place), stream, &error), error);
}

// Torch sets devices lazily.
void* allocate(const Place& place, std::size_t bytes) {
  const torch::stable::accelerator::DeviceGuard guard(place.index);
  return sluice_binding::allocate_for_good(place, bytes);
}

void run(const Work& work, const sluice_workspace& workspace, void* stream) {
  sluice_error error{};
  const sluice_run_args args{sizeof(args), &work.operands, workspace, stream, work.peers};
  check(sluice_run(&work.plan, &args, &error), error);
}

// `bytes` of the place's memory from Torch's allocator: on a stream that captures, from the graph's
// pool, which may give them to later work of the stream once this is gone.
class Scratch {
 public:
  Scratch(std::size_t bytes, const Place& place) : bytes_(bytes), tensor_(take(bytes, place)) {}

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const Tensor& tensor() const { return tensor_; }

  [[nodiscard]] void* data() const {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor_.mutable_data_ptr());
    return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
                                   kWorkspaceAlignment);
  }

 private:
  static Tensor take(std::size_t bytes, const Place& place) {
    const auto size = static_cast<std::int64_t>(bytes + kWorkspaceAlignment);
    const std::int64_t stride = 1;
    AtenTensorHandle handle = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
        1, &size, &stride, aoti_torch_dtype_uint8(),
        place.cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(), place.index,
        &handle));
    return Tensor(handle);
  }

  std::size_t bytes_;
  Tensor tensor_;
};

void run_on_cpu(const Work& work, std::size_t bytes) {
  const auto run_in = [&](const Scratch& scratch) {
    run(work, {scratch.data(), scratch.bytes(), nullptr}, nullptr);
  };
  const auto fresh = [&] {
    Scratch scratch(bytes, Place{});
    zero_header({scratch.data(), scratch.bytes(), nullptr}, Place{}, nullptr);
    return scratch;
  };
  if (bytes > kThreadBytes) return run_in(fresh());
  thread_local std::optional<Scratch> kept;
  if (!kept || kept->bytes() < bytes) {
    kept.reset();
    kept.emplace(fresh());
  }
  run_in(*kept);
}

// Memory of captures: each block is a graph's until the graph is gone, then the next one's.
class CaptureMemory {
 public:
  void* take_for(void* graph, const Place& place, std::size_t bytes) {
    auto lease = std::make_unique<Lease>(Lease{this, take(place, bytes)});
    at_end_of(
        graph, [](void* ended) { end(static_cast<Lease*>(ended)); }, lease.get());
    return lease.release()->block.second;
  }

 private:
  using Block = std::pair<const std::size_t, void*>;  // its bytes
  struct Lease {
    CaptureMemory* from;
    Block block;
  };

  Block take(const Place& place, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto fit = free_.lower_bound(bytes);
      if (fit != free_.end() && fit->first <= 2 * bytes) {
        const Block block = *fit;
        free_.erase(fit);
        return block;
      }
    }
    // Not under the lock: the driver may let an allocation wait for `end`, which takes it.
    const std::size_t count = bytes == kWorkspaceHeaderBytes ? kHeadersAtOnce : 1;
    auto* const slab = static_cast<char*>(allocate(place, count * bytes));
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 1; i < count; ++i) free_.emplace(bytes, slab + i * bytes);
    return {bytes, slab};
  }

  static void end(Lease* lease) {
    const std::unique_ptr<Lease> ended(lease);
    const std::lock_guard lock(ended->from->mutex_);
    ended->from->free_.insert(ended->block);
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
};

// What a stream keeps.
struct Kept {
  std::mutex mutex;     // two host threads may enqueue on one stream, but a run is several launches
  char* own = nullptr;  // a header and kStreamBytes of scratch, for what no graph captures
  CaptureMemory* memory = nullptr;  // of the device
  std::uint64_t asked = 0;          // the capture that `borrows` is about
  bool borrows = false;             // Torch's allocator gives memory of the graph's own
  std::uint64_t capture = 0;
  void* header = nullptr;   // of that capture, zeroed by a node of its graph
  void* scratch = nullptr;  // likewise, where nothing is borrowed
  std::size_t scratch_bytes = 0;
};

// Never destroyed: streams and graphs may outlive this library's statics.
struct Kepts {
  std::mutex mutex;
  std::map<std::pair<std::int32_t, void*>, Kept> streams;
  std::map<std::int32_t, CaptureMemory> memory;
};

Kept& kept_by(const Place& place, void* stream) {
  static auto& all = *new Kepts;
  const std::pair<std::int32_t, void*> key{place.index, stream};
  thread_local std::pair<std::int32_t, void*> last_key;
  thread_local Kept* last = nullptr;
  if (last != nullptr && last_key == key) return *last;
  const std::lock_guard lock(all.mutex);
  last = &all.streams[key];
  last->memory = &all.memory[place.index];
  last_key = key;
  return *last;
}

// Does the tensor lie in a memory pool? Torch's C ABI cannot say; Python does (ops.py).
bool lies_in_a_pool(const Tensor& tensor) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(tensor)};
  return torch_call_dispatcher("sluice::_lies_in_a_pool", "", stack.data(), TORCH_ABI_VERSION) ==
             AOTI_TORCH_SUCCESS &&
         torch::stable::detail::to<bool>(stack[0]);
}

// Asked at a stream's first call in a capture, and not under its lock: Python may have to wait.
bool borrows(Kept& kept, const Capture& capture, const Place& place) {
  if (capture.id == 0) return true;
  {
    const std::lock_guard lock(kept.mutex);
    if (kept.asked == capture.id) return kept.borrows;
  }
  const bool answer = lies_in_a_pool(Scratch(1, place).tensor());
  const std::lock_guard lock(kept.mutex);
  kept.asked = capture.id;
  kept.borrows = answer;
  return answer;
}

void run_on_cuda(const Work& work, std::size_t bytes, const Place& place, void* stream) {
  Kept& kept = kept_by(place, stream);
  const std::size_t scratch_bytes = bytes - kWorkspaceHeaderBytes;
  const Capture capture = capture_of(stream);
  const bool borrowed = borrows(kept, capture, place);
  const std::lock_guard lock(kept.mutex);
  if (capture.id == 0 && kept.own == nullptr) {
    auto* const own = static_cast<char*>(allocate(place, kWorkspaceHeaderBytes + kStreamBytes));
    zero_header({nullptr, 0, own}, place, stream);
    kept.own = own;
  }
  if (capture.id != 0 && capture.id != kept.capture) {
    kept.header = kept.memory->take_for(capture.graph, place, kWorkspaceHeaderBytes);
    zero_header({nullptr, 0, kept.header}, place, stream);
    kept.capture = capture.id;
    kept.scratch_bytes = 0;
  }
  void* const header = capture.id == 0 ? kept.own : kept.header;
  if (capture.id == 0 && scratch_bytes <= kStreamBytes) {
    return run(work, {kept.own + kWorkspaceHeaderBytes, scratch_bytes, header}, stream);
  }
  if (borrowed) {
    const Scratch scratch(scratch_bytes, place);
    return run(work, {scratch.data(), scratch_bytes, header}, stream);
  }
  if (kept.scratch_bytes < scratch_bytes) {  // what earlier calls got stays theirs
    const std::size_t whole = (scratch_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    kept.scratch = kept.memory->take_for(capture.graph, place, whole);
    kept.scratch_bytes = whole;
  }
  run(work, {kept.scratch, scratch_bytes, header}, stream);
}

}  // namespace

void run_with_workspace(const Work& work, std::size_t bytes, const Place& place) {
  void* const stream = current_stream(place);
  if (bytes == 0) return run(work, {}, stream);
  if (!place.cuda) return run_on_cpu(work, bytes);
  run_on_cuda(work, bytes, place, stream);
}

bool may_borrow(const Place& place) {
  if (!place.cuda) return true;
  void* const stream = current_stream(place);
  return borrows(kept_by(place, stream), capture_of(stream), place);
}

}  // namespace sluice_torch
