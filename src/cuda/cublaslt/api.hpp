// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's functions, found when a program runs: the process's own copy of the library first,
// then the system's. Nothing links against it. Header-only, for the harness's baselines too.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <type_traits>

namespace sluice::cuda {

struct CublasLtApi {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) desc_init = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
};

namespace loading {

inline void* find_cublaslt() noexcept {
  for (const int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (void* handle = dlopen(name, mode)) return handle;
    }
  }
  return nullptr;
}

// The opaque structs of the headers that this was compiled with must be those of the library.
inline bool fits(const CublasLtApi& api) noexcept {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulPreferenceOpaque_t preference;
  return api.desc_init(&desc, sizeof(desc), CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
             CUBLAS_STATUS_SUCCESS &&
         api.layout_init(&layout, sizeof(layout), CUDA_R_16BF, 8, 8, 8) == CUBLAS_STATUS_SUCCESS &&
         api.preference_init(&preference, sizeof(preference)) == CUBLAS_STATUS_SUCCESS;
}

inline CublasLtApi load_cublaslt() noexcept {
  CublasLtApi api;
  void* library = find_cublaslt();
  if (library == nullptr) return {};
  const auto look_up = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  const bool all =
      look_up(api.create, "cublasLtCreate") && look_up(api.destroy, "cublasLtDestroy") &&
      look_up(api.desc_init, "cublasLtMatmulDescInit_internal") &&
      look_up(api.desc_set, "cublasLtMatmulDescSetAttribute") &&
      look_up(api.layout_init, "cublasLtMatrixLayoutInit_internal") &&
      look_up(api.layout_set, "cublasLtMatrixLayoutSetAttribute") &&
      look_up(api.preference_init, "cublasLtMatmulPreferenceInit_internal") &&
      look_up(api.preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
      look_up(api.heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
      look_up(api.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute") &&
      look_up(api.matmul, "cublasLtMatmul") && look_up(api.get_version, "cublasLtGetVersion");
  return all && fits(api) ? api : CublasLtApi{};
}

}  // namespace loading

/// Null where the library is not found. Looked for once, by the first call, and never closed: its
/// kernels stay registered with the driver. Thread-safe.
[[nodiscard]] inline const CublasLtApi* cublaslt_api() noexcept {
  static const CublasLtApi api = loading::load_cublaslt();
  return api.matmul == nullptr ? nullptr : &api;
}

/// What cublaslt_api() looked for, for messages.
inline constexpr const char* kCublasLtAbsent = "libcublasLt.so.13 and .12 were not found";

}  // namespace sluice::cuda
