// SPDX-License-Identifier: Apache-2.0
// Compiles decode-inl.hpp for every SIMD target and chooses by target.
#include "cpu/bf16_kernels.hpp"
#include "cpu/kernels.hpp"
#include "cpu/simd_targets.hpp"

// foreach_target.h includes this file again for each target, so it comes before all else.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "cpu/decode-inl.hpp"
// clang-format on

#if HWY_ONCE
namespace sluice::cpu {

const DotKernels& dot_kernels(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::kEmulated:
      break;
    case SimdTarget::kAvx2:
      return N_AVX2::dot_table();
    case SimdTarget::kAvx512:
      return N_AVX3::dot_table();
    case SimdTarget::kAvx512Bf16: {
      static const DotKernels table = with_pairs(N_AVX3::dot_table());
      return table;
    }
  }
  return N_EMU128::dot_table();
}

}  // namespace sluice::cpu
#endif
