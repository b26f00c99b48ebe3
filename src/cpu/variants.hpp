// SPDX-License-Identifier: Apache-2.0
// The CPU's rows of the variant table.
#pragma once

#include "core/variant.hpp"

namespace sluice::cpu {

// reference.cpp: fp64, slow and obviously right; takes every problem.
detail::Reason reference_supports(const Problem&, const Device&) noexcept;
std::size_t reference_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t reference_payload_bytes(const Plan&) noexcept;
Status reference_launch(const Plan&, const Operands&, void* payload, void* header, Stream) noexcept;

inline constexpr detail::Variant kReference = {
    "cpu.reference",  Backend::kCpu, reference_supports, reference_configs, reference_payload_bytes,
    reference_launch, true,
};

// simd.cpp: the threaded engine; bf16, fp16 and fp32 with fp32 accumulation.
detail::Reason simd_supports(const Problem&, const Device&) noexcept;
std::size_t simd_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t simd_payload_bytes(const Plan&) noexcept;
Status simd_launch(const Plan&, const Operands&, void* payload, void* header, Stream) noexcept;

std::string simd_describe(const Plan& plan);  // describe.cpp
[[nodiscard]] SimdTarget target_of(const Plan& plan) noexcept;

inline constexpr detail::Variant kSimd = {
    "cpu.simd",         Backend::kCpu, simd_supports, simd_configs,
    simd_payload_bytes, simd_launch,   false,         simd_describe,
};

}  // namespace sluice::cpu
