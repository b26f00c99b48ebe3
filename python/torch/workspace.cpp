// SPDX-License-Identifier: Apache-2.0
#include "workspace.hpp"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "errors.hpp"

namespace sluice_torch {
namespace {

using torch::stable::Tensor;

// Decode and whatever a graph captures (512 tokens of a 70B model: h takes 2·M·H bytes, 29 MB) stay
// below; what a prompt or a training step needs goes back to Torch's allocator after the call.
constexpr std::size_t kKeptBytes = std::size_t{32} << 20;
constexpr std::size_t kAlignment = 256;

// `bytes` of the place's memory from Torch's allocator, with the header zeroed in stream order. On
// a stream that captures it comes from the graph's own pool.
class Scratch {
 public:
  Scratch(std::size_t bytes, const Place& place, void* stream)
      : bytes_(bytes), tensor_(take(bytes, place)) {
    sluice_error error{};
    check(sluice_workspace_init(get(), &device_of(place), stream, &error), error);
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] sluice_workspace get() const {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor_.mutable_data_ptr());
    return {reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment), bytes_};
  }

 private:
  static Tensor take(std::size_t bytes, const Place& place) {
    const auto size = static_cast<std::int64_t>(bytes + kAlignment);
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

// What one thread or one stream keeps. A capture has scratch of its own, which replays then use:
// its memory belongs to the graph's pool and its header is zeroed by a node of the graph.
struct Kept {
  std::mutex mutex;  // two host threads may enqueue on one stream, but a run is several launches
  std::optional<Scratch> eager;
  std::optional<Scratch> captured;
  std::uint64_t capture = 0;
};

Kept& kept_by(const Place& place, void* stream) {
  if (!place.cuda) {
    thread_local Kept mine;
    return mine;
  }
  static std::mutex mutex;
  // Never destroyed: Torch's CUDA allocator may be gone when the process ends.
  static auto& all = *new std::map<std::pair<std::int32_t, void*>, std::unique_ptr<Kept>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Kept>& kept = all[{place.index, stream}];
  if (!kept) kept = std::make_unique<Kept>();
  return *kept;
}

void run(const sluice_plan& plan, const sluice_operands& operands, sluice_workspace workspace,
         void* stream) {
  sluice_error error{};
  check(sluice_run(&plan, &operands, workspace, stream, &error), error);
}

}  // namespace

void run_with_workspace(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                        const Place& place) {
  void* const stream = current_stream(place);
  if (bytes == 0) return run(plan, operands, {}, stream);
  if (bytes > kKeptBytes) return run(plan, operands, Scratch(bytes, place, stream).get(), stream);
  Kept& kept = kept_by(place, stream);
  const std::lock_guard lock(kept.mutex);
  const std::uint64_t capture = place.cuda ? capture_id(stream) : 0;
  if (capture != 0 && capture != kept.capture) {
    kept.captured.reset();
    kept.capture = capture;
  }
  std::optional<Scratch>& scratch = capture == 0 ? kept.eager : kept.captured;
  if (!scratch || scratch->bytes() < bytes) {
    scratch.reset();
    scratch.emplace(bytes, place, stream);
  }
  run(plan, operands, scratch->get(), stream);
}

}  // namespace sluice_torch
