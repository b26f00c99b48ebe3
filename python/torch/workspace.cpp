// SPDX-License-Identifier: Apache-2.0
// On CUDA a header is kept for each stream and each capture, beside Torch's allocator; scratch is
// the stream's own where it is small, else Torch's and given back after the call. So nothing that
// outlives a call lies in the memory pool of a graph, where Torch counts every tensor
// (torch.compile's mode "reduce-overhead") and which its graphs share.
#include "workspace.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sluice/plan.hpp>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "errors.hpp"

namespace sluice_torch {
namespace {

using sluice::kWorkspaceAlignment;
using sluice::kWorkspaceHeaderBytes;
using torch::stable::Tensor;

// Of a stream's own scratch, one page of the device's with its header: decode up to 16 tokens of a
// 70B model (2·M·H bytes, and 4·M·D behind a norm) stays below, where asking Torch's allocator
// would add a microsecond to calls that the host is busiest with.
constexpr std::size_t kStreamBytes = (std::size_t{2} << 20) - kWorkspaceHeaderBytes;
// Of a host thread's; what a prompt or a training step needs beyond goes back after the call.
constexpr std::size_t kThreadBytes = std::size_t{32} << 20;
constexpr std::size_t kHeadersAtOnce = 64;

void zero_header(const sluice_workspace& workspace, const Place& place, void* stream) {
  sluice_error error{};
  check(sluice_workspace_init(workspace, &device_of(place), stream, &error), error);
}

void run(const sluice_plan& plan, const sluice_operands& operands,
         const sluice_workspace& workspace, void* stream) {
  sluice_error error{};
  check(sluice_run(&plan, &operands, workspace, stream, &error), error);
}

// `bytes` of the place's memory from Torch's allocator: on a stream that captures, from the graph's
// pool, which may give them to later work of the stream once this is gone.
class Scratch {
 public:
  Scratch(std::size_t bytes, const Place& place) : bytes_(bytes), tensor_(take(bytes, place)) {}

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

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

void run_on_cpu(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes) {
  const auto run_in = [&](const Scratch& scratch) {
    run(plan, operands, {scratch.data(), scratch.bytes(), nullptr}, nullptr);
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

// Headers of captures: each is a graph's until the graph is gone, then the next one's.
class Headers {
 public:
  void* take_for(void* graph, const Place& place) {
    auto lease = std::make_unique<Lease>(Lease{this, take(place)});
    at_end_of(
        graph, [](void* ended) { end(static_cast<Lease*>(ended)); }, lease.get());
    return lease.release()->header;
  }

 private:
  struct Lease {
    Headers* from;
    void* header;
  };

  void* take(const Place& place) {
    if (void* const header = take_free()) return header;
    // Not under the lock: the driver may let an allocation wait for `end`, which takes it.
    auto* const slab =
        static_cast<char*>(allocate_for_good(place, kHeadersAtOnce * kWorkspaceHeaderBytes));
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 1; i < kHeadersAtOnce; ++i) {
      free_.push_back(slab + i * kWorkspaceHeaderBytes);
    }
    return slab;
  }

  void* take_free() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    void* const header = free_.back();
    free_.pop_back();
    return header;
  }

  static void end(Lease* lease) {
    const std::unique_ptr<Lease> ended(lease);
    const std::lock_guard lock(ended->from->mutex_);
    ended->from->free_.push_back(ended->header);
  }

  std::mutex mutex_;
  std::vector<void*> free_;
};

// What a stream keeps.
struct Kept {
  std::mutex mutex;     // two host threads may enqueue on one stream, but a run is several launches
  char* own = nullptr;  // a header and kStreamBytes of scratch, for what no graph captures
  Headers* headers = nullptr;  // of the device
  std::uint64_t capture = 0;
  void* header = nullptr;  // of that capture, zeroed by a node of its graph
};

// Never destroyed: streams and graphs may outlive this library's statics.
struct Kepts {
  std::mutex mutex;
  std::map<std::pair<std::int32_t, void*>, Kept> streams;
  std::map<std::int32_t, Headers> headers;
};

Kept& kept_by(const Place& place, void* stream) {
  static auto& all = *new Kepts;
  const std::pair<std::int32_t, void*> key{place.index, stream};
  thread_local std::pair<std::int32_t, void*> last_key;
  thread_local Kept* last = nullptr;
  if (last != nullptr && last_key == key) return *last;
  const std::lock_guard lock(all.mutex);
  last = &all.streams[key];
  last->headers = &all.headers[place.index];
  last_key = key;
  return *last;
}

void run_on_cuda(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                 const Place& place, void* stream) {
  Kept& kept = kept_by(place, stream);
  const std::size_t scratch_bytes = bytes - kWorkspaceHeaderBytes;
  const std::lock_guard lock(kept.mutex);
  const Capture capture = capture_of(stream);
  if (capture.id == 0 && kept.own == nullptr) {
    auto* const own =
        static_cast<char*>(allocate_for_good(place, kWorkspaceHeaderBytes + kStreamBytes));
    zero_header({nullptr, 0, own}, place, stream);
    kept.own = own;
  }
  if (capture.id != 0 && capture.id != kept.capture) {
    kept.header = kept.headers->take_for(capture.graph, place);
    zero_header({nullptr, 0, kept.header}, place, stream);
    kept.capture = capture.id;
  }
  void* const header = capture.id == 0 ? kept.own : kept.header;
  if (capture.id == 0 && scratch_bytes <= kStreamBytes) {
    return run(plan, operands, {kept.own + kWorkspaceHeaderBytes, scratch_bytes, header}, stream);
  }
  const Scratch scratch(scratch_bytes, place);
  run(plan, operands, {scratch.data(), scratch_bytes, header}, stream);
}

}  // namespace

void run_with_workspace(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                        const Place& place) {
  void* const stream = current_stream(place);
  if (bytes == 0) return run(plan, operands, {}, stream);
  if (!place.cuda) return run_on_cpu(plan, operands, bytes);
  run_on_cuda(plan, operands, bytes, place, stream);
}

}  // namespace sluice_torch
