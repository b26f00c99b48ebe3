// SPDX-License-Identifier: Apache-2.0
// What cpuid does not say outright and the engine chooses by: from vendor and family, never by
// timing, so that a plan, and with it every bit, depends on the CPU alone.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::cpu {

/// The family of a signature (eax of leaf 1).
[[nodiscard]] constexpr std::uint32_t family_of(std::uint32_t signature) noexcept {
  const std::uint32_t family = signature >> 8 & 0xF;
  return family == 0xF ? family + (signature >> 20 & 0xFF) : family;
}

/// Whether vdpbf16ps does fewer FLOPs than FMA does in fp32. Measured on family 6 of Intel (model
/// 207, Emerald Rapids): one of 512 bits every two cycles, half of what two FMAs a cycle do, and no
/// faster with 256; the others of the family have that core or its successor. On AMD's Zen 4 and 5
/// it does twice the FLOPs of FMA. Whoever is not known is taken for fast.
[[nodiscard]] constexpr bool has_slow_bf16_products(std::string_view vendor,
                                                    std::uint32_t signature) noexcept {
  return vendor == "GenuineIntel" && family_of(signature) == 6;
}

}  // namespace sluice::cpu
