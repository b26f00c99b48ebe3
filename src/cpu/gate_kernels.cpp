// SPDX-License-Identifier: Apache-2.0
// Compiles gate-inl.hpp for every SIMD target and chooses by target.
#include "cpu/kernels.hpp"
#include "cpu/simd_targets.hpp"

// foreach_target.h includes this file again for each target, so it comes before all else.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gate_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "cpu/gate-inl.hpp"
// clang-format on

#if HWY_ONCE
namespace sluice::cpu {

const GateKernels& gate_kernels(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::kEmulated:
      break;
    case SimdTarget::kAvx2:
      return N_AVX2::gate_table();
    case SimdTarget::kAvx512:
    case SimdTarget::kAvx512Bf16:
      return N_AVX3::gate_table();
  }
  return N_EMU128::gate_table();
}

}  // namespace sluice::cpu
#endif
