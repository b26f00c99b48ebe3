// SPDX-License-Identifier: Apache-2.0
// Stands before sluice::run() by LD_PRELOAD: runs it, then spoils the first element of y. Proves
// that the command line notices a wrong result.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "sluice/plan.hpp"

namespace sluice {

__attribute__((visibility("default"))) Status run(const Plan& plan, const Operands& operands,
                                                  Workspace workspace, Stream stream) noexcept {
  using RunFunction = Status (*)(const Plan&, const Operands&, Workspace, Stream) noexcept;
  static const auto kRun = reinterpret_cast<RunFunction>(
      dlsym(RTLD_NEXT, "_ZN6sluice3runERKNS_4PlanERKNS_8OperandsENS_9WorkspaceEPv"));
  const Status status = kRun(plan, operands, workspace, stream);
  if (status && operands.y != nullptr) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, operands.y, sizeof(bits));
    bits ^= 0x4000U;  // the exponent's top bit of bf16 and fp16
    std::memcpy(operands.y, &bits, sizeof(bits));
  }
  return status;
}

}  // namespace sluice
