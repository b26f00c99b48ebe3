// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <stdexcept>

#include "errors.hpp"

namespace sluice_torch {
namespace {

// More than a host holds; a device number beyond it is refused.
constexpr std::int32_t kMaxDevices = 64;

// Never destroyed: plans are made as long as the process runs.
struct Described {
  std::once_flag once;
  sluice_device device{};
  sluice_scheduler* scheduler = nullptr;
};

const Described& described(const Place& place) {
  static std::array<Described, kMaxDevices + 1> table;
  Described& entry = table[place.cuda ? static_cast<std::size_t>(place.index) + 1 : 0];
  std::call_once(entry.once, [&] {
    sluice_error error{};
    check(place.cuda ? sluice_cuda_device(place.index, &entry.device, sizeof(entry.device), &error)
                     : sluice_cpu_device(&entry.device, sizeof(entry.device), &error),
          error);
    if (!place.cuda) {
      check(sluice_limit_simd(&entry.device, std::getenv("SLUICE_MAX_SIMD"), &error), error);
    }
    if (entry.scheduler == nullptr) {
      check(sluice_scheduler_create(&entry.device, &entry.scheduler, &error), error);
    }
    if (const char* const path = std::getenv("SLUICE_TUNE_CACHE"); path != nullptr && *path != 0) {
      check(sluice_scheduler_load(entry.scheduler, path, nullptr, 0, &error), error);
    }
  });
  return entry;
}

}  // namespace

Place place_of(const char* name, const torch::stable::Tensor& tensor) {
  static const std::int32_t cpu = aoti_torch_device_type_cpu();
  static const std::int32_t cuda = aoti_torch_device_type_cuda();
  std::int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  if (type == cpu) return {};
  const std::int32_t index = tensor.get_device_index();
  if (type != cuda || index < 0 || index >= kMaxDevices) {
    refuse(name, "expected a tensor on the CPU or a CUDA device");
  }
  return {.cuda = true, .index = index};
}

const sluice_device& device_of(const Place& place) { return described(place).device; }

sluice_scheduler* scheduler_of(const Place& place) { return described(place).scheduler; }

void* current_stream(const Place& place) {
  if (!place.cuda) return nullptr;
  using CurrentStream = AOTITorchError (*)(std::int32_t, void**);
  // Torch's CUDA half is not linked: this library also serves where there is none.
  static const auto ask = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    const char* const name = "aoti_torch_get_current_cuda_stream";
    return library == nullptr ? nullptr : reinterpret_cast<CurrentStream>(dlsym(library, name));
  }();
  if (ask == nullptr)
    throw std::runtime_error("this Torch has CUDA tensors but no libtorch_cuda.so");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(ask(place.index, &stream));
  return stream;
}

}  // namespace sluice_torch
