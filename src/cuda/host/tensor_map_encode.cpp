// SPDX-License-Identifier: Apache-2.0
// The driver's cuTensorMapEncodeTiled, found at run time: the library links no driver, so that it
// loads on machines without one.
#include <cuda_runtime_api.h>

#include "cuda/host/status.hpp"
#include "cuda/host/tensor_map.hpp"

namespace sluice::cuda {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Null where the driver has none; looked up once.
EncodeTiled find_encode() noexcept {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  constexpr unsigned kSinceVersion = 12000;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(kName, &function, kSinceVersion, cudaEnableDefault, &found);
#else  // of the runtime's own version
  const cudaError_t code = cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found);
#endif
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

// Other types have no view.
CUtensorMapDataType data_type(DType dtype) {
  if (dtype == DType::kF32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Gives this thread the primary context of its current device.
bool bind_current_device() noexcept {
  int device = -1;
  if (cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace

Expected<CUtensorMap> encode(const TensorView& view, const void* base,
                             TensorSwizzle swizzle) noexcept {
  static const EncodeTiled encode_tiled = find_encode();
  if (encode_tiled == nullptr) {
    return make_error(ErrorCode::kUnsupported, "device: the driver offers no tensor maps");
  }
  cuuint64_t dims[TensorView::kMaxRank];
  cuuint64_t strides[TensorView::kMaxRank];  // of dimensions 1 and up
  cuuint32_t box[TensorView::kMaxRank];
  cuuint32_t steps[TensorView::kMaxRank];
  for (int i = 0; i < view.rank; ++i) {
    dims[i] = static_cast<cuuint64_t>(view.dims[i]);
    box[i] = static_cast<cuuint32_t>(view.box[i]);
    steps[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(view.strides_bytes[i]);
  }
  CUtensorMap map;
  // NOTE: no more than a box's row of 128 bytes into L2. Fetching the 256 around it cost streams of
  // weights 6 % (docs/kernels/mlp_decode.md) and gave GEMMs nothing.
  const auto call = [&] {
    return encode_tiled(&map, data_type(view.dtype), static_cast<cuuint32_t>(view.rank),
                        const_cast<void*>(base), dims, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(swizzle),
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = call();
  // A thread that has made no call yet has no context, and only the runtime's calls make one by
  // themselves. cudaSetDevice would replace a context that the caller made, so it comes second.
  if (result == CUDA_ERROR_INVALID_CONTEXT && bind_current_device()) result = call();
  if (result != CUDA_SUCCESS) {
    Error error = make_error(ErrorCode::kDevice,
                             "cuTensorMapEncodeTiled: code %d for a view of %d "
                             "dimensions",
                             static_cast<int>(result), view.rank);
    error.cuda_code = static_cast<int>(result);
    return error;
  }
  return map;
}

}  // namespace sluice::cuda
