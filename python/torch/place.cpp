// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <mutex>
#include <stdexcept>

#include "errors.hpp"

namespace sluice_torch {
namespace {

// More than a host holds; a device number beyond it is refused.
constexpr std::int32_t kMaxDevices = 64;

struct Described {
  std::once_flag once;
  sluice_device device{};
};

// A function of a library that the process has already loaded; null where it is not. Neither
// Torch's CUDA half nor the driver may be linked: this file also serves where they do not exist.
template <class Function>
Function loaded_function(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle, name));
}

}  // namespace

Place place_of(const char* name, const torch::stable::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  const std::int32_t index = tensor.get_device_index();
  if (!tensor.is_cuda() || index < 0 || index >= kMaxDevices) {
    refuse(name, "expected a tensor on the CPU or a CUDA device");
  }
  return {.cuda = true, .index = index};
}

const sluice_device& device_of(const Place& place) {
  static std::array<Described, kMaxDevices + 1> table;
  Described& entry = table[place.cuda ? static_cast<std::size_t>(place.index) + 1 : 0];
  std::call_once(entry.once, [&] {
    sluice_error error{};
    check(place.cuda ? sluice_cuda_device(place.index, &entry.device, sizeof(entry.device), &error)
                     : sluice_cpu_device(&entry.device, sizeof(entry.device), &error),
          error);
  });
  return entry.device;
}

void* current_stream(const Place& place) {
  if (!place.cuda) return nullptr;
  using CurrentStream = AOTITorchError (*)(std::int32_t, void**);
  static const auto ask =
      loaded_function<CurrentStream>("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  if (ask == nullptr)
    throw std::runtime_error("this Torch has CUDA tensors but no libtorch_cuda.so");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(ask(place.index, &stream));
  return stream;
}

std::uint64_t capture_id(void* stream) {
  // cuStreamGetCaptureInfo as of CUDA 11.3: stream, status, id, then three that may be null.
  using CaptureInfo = int (*)(void*, int*, std::uint64_t*, void*, void*, void*);
  constexpr int kActive = 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
  static const auto ask = loaded_function<CaptureInfo>("libcuda.so.1", "cuStreamGetCaptureInfo_v2");
  int status = 0;
  std::uint64_t id = 0;
  if (ask == nullptr || ask(stream, &status, &id, nullptr, nullptr, nullptr) != 0) return 0;
  return status == kActive ? id : 0;
}

}  // namespace sluice_torch
