// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "harness/ceilings.hpp"

namespace sluice::harness {

/// The ceilings of a GPU: read_tbps by enqueue_read(), copy_tbps by the driver's device-to-device
/// copy (bytes read plus written), gemm_tflops by cuBLASLt on 8192³ normal-random bf16 (absent
/// where the library is), mma_sync_tflops by enqueue_mma() (absent before sm_80), clocks as NVML
/// reports them right after the product. Best of several.
Expected<Ceilings> measure_cuda_ceilings(Rig& rig, const CeilingOptions& options);

}  // namespace sluice::harness
