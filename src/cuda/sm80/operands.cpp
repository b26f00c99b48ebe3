// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/operands.hpp"

#include "cuda/refusals.hpp"

namespace sluice::cuda::sm80 {

using detail::Reason;
using detail::refuse;

Reason device_refusal(const Device& device, int least_smem) noexcept {
  if (device.compute_capability >= 80 && device.smem_per_block_bytes >= least_smem) return {};
  return refuse(
      "needs an Ampere or newer GPU (8.0) with %d bytes of shared memory a block, "
      "the device is %d.%d with %d",
      least_smem, device.compute_capability / 10, device.compute_capability % 10,
      device.smem_per_block_bytes);
}

Reason operand_refusal(const Problem& p) noexcept {
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (Reason reason = unit_refusal(p); !reason.empty()) return reason;
  for (const OperandSpec& spec : operand_specs(p)) {
    if (spec.access == Access::kUnused || spec.rows == 0) continue;
    if (Reason reason = stride_refusal(spec); !reason.empty()) return reason;
    if (spec.layout.block_cols != 0) return refuse("%s: has blocks of columns", spec.name);
  }
  return {};
}

}  // namespace sluice::cuda::sm80
