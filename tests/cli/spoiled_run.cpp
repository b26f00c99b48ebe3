// SPDX-License-Identifier: Apache-2.0
// Stands before sluice::run() and run_step() by LD_PRELOAD: calls them, then spoils the first
// element of y; with SLUICE_TEST_KEEP_NAN in the environment run() puts what was in y back wherever
// the result is NaN, as if nothing had been written there. y is bf16 and dense. Proves that the
// command line notices a wrong result.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "sluice/plan.hpp"

namespace sluice {
namespace {

bool is_nan(std::uint16_t bits) { return (bits & 0x7FFFU) > 0x7F80U; }

Status spoil(Status status, void* y) {
  if (status && y != nullptr) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, y, sizeof(bits));
    bits ^= 0x4000U;  // the exponent's top bit of bf16 and fp16
    std::memcpy(y, &bits, sizeof(bits));
  }
  return status;
}

}  // namespace

__attribute__((visibility("default"))) Status run(const Plan& plan, const Operands& operands,
                                                  Workspace workspace, Stream stream,
                                                  const Peers* peers) noexcept {
  using RunFunction =
      Status (*)(const Plan&, const Operands&, Workspace, Stream, const Peers*) noexcept;
  static const auto kRun = reinterpret_cast<RunFunction>(
      dlsym(RTLD_NEXT, "_ZN6sluice3runERKNS_4PlanERKNS_8OperandsENS_9WorkspaceEPvPKNS_5PeersE"));
  if (std::getenv("SLUICE_TEST_KEEP_NAN") != nullptr) {
    auto* const y = static_cast<std::uint16_t*>(operands.y);
    const auto size = static_cast<std::size_t>(plan.problem.m * plan.problem.d);
    const std::vector<std::uint16_t> before(y, y + size);
    const Status kept = kRun(plan, operands, workspace, stream, peers);
    for (std::size_t i = 0; i < size; ++i) {
      if (is_nan(y[i])) y[i] = before[i];
    }
    return kept;
  }
  return spoil(kRun(plan, operands, workspace, stream, peers), operands.y);
}

__attribute__((visibility("default"))) Status run_step(const Plan& plan, int index,
                                                       const Operands& operands,
                                                       Workspace workspace, Stream stream,
                                                       const Peers* peers) noexcept {
  using RunStepFunction =
      Status (*)(const Plan&, int, const Operands&, Workspace, Stream, const Peers*) noexcept;
  static const auto kRunStep = reinterpret_cast<RunStepFunction>(dlsym(
      RTLD_NEXT, "_ZN6sluice8run_stepERKNS_4PlanEiRKNS_8OperandsENS_9WorkspaceEPvPKNS_5PeersE"));
  return spoil(kRunStep(plan, index, operands, workspace, stream, peers), operands.y);
}

}  // namespace sluice
