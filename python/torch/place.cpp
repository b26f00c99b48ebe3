// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <stdexcept>

#include "binding/errors.hpp"

namespace sluice_torch {

using sluice_binding::kMaxDevices;
using sluice_binding::refuse;

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
