// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/out_of_reach.hpp"

#include <cstdint>
#include <span>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"

namespace sluice::cuda::sm90 {

bool pairs_in_reach(const detail::Step& step) noexcept {
  const auto gate = reinterpret_cast<std::uintptr_t>(step.pointer(Operand::kWGate));
  const auto up = reinterpret_cast<std::uintptr_t>(step.pointer(Operand::kWUp));
  const std::uintptr_t apart = gate > up ? gate - up : up - gate;
  return apart > 0 && apart < static_cast<std::uintptr_t>(kTensorStrideLimit);
}

Status gate_up_out_of_reach(const detail::Step& step) noexcept {
  const detail::Kernel& kernel = kSm80Gemm;
  if (const detail::Reason reason = kernel.supports(step.problem, step.device); !reason.empty()) {
    return make_error(
        ErrorCode::kUnsupported,
        "w_gate and w_up: are one, or 2^40 bytes or more apart; %s, which serves those, %s",
        kernel.name, reason.text);
  }
  KernelConfig config;
  static_cast<void>(kernel.configs(step.problem, step.device, std::span(&config, 1)));
  return kernel.launch({.kernel = &kernel,
                        .problem = step.problem,
                        .operands = step.operands,
                        .device = step.device,
                        .config = config,
                        .stream = step.stream},
                       nullptr);
}

}  // namespace sluice::cuda::sm90
