// SPDX-License-Identifier: Apache-2.0
// CUDA's rows of the table of kernels, and what recipes ask of them beside.
#pragma once

#include <array>

#include "core/kernel.hpp"

namespace sluice::cuda {

// sm90/decode/step.cpp: gate_up and down on Hopper for up to 160 tokens.
extern const detail::Kernel kSm90Decode;
/// The configs of gate_up and down behind it that should be tried together, best first.
std::size_t decode_pairs(const Problem& gate_up, const Problem& down, const Device&,
                         std::span<std::array<KernelConfig, 2>> out) noexcept;
/// Why a launch of the norm costs less than to defer it into the decode kernel; nothing where it
/// does not.
[[nodiscard]] detail::Reason deferred_norm_yields(const Problem&, const Device&) noexcept;
/// Why tiles are expected to be faster than decode in an operator's gate_up and down, or its only
/// step; nothing where they are not.
[[nodiscard]] detail::Reason decode_outrun(std::span<const Problem> steps, const Device&) noexcept;

// sm90/gemm/step.cpp: Hopper's tensor cores, bf16 and fp16.
extern const detail::Kernel kSm90Gemm;
/// The estimated time of its best config for gate_up or down.
[[nodiscard]] double sm90_gemm_us(const Problem& step, const Device&) noexcept;

// cublaslt/step.cpp: plain products by cuBLASLt, where that library is found.
extern const detail::Kernel kCublasLt;
/// Why this library's own GEMM is preferred to cuBLASLt's in a step of an operator, as measured on
/// an H200 and an H100 (docs/kernels/cublaslt.md); nothing where cuBLASLt's is faster.
[[nodiscard]] detail::Reason cublaslt_yields(const Problem&, const Problem& step,
                                             const Device&) noexcept;
/// The same of a step of mlp, `step` saying which. They decide together: an own linear starts while
/// an own gate_up ends.
[[nodiscard]] detail::Reason cublaslt_yields_in_mlp(const Problem& gate_up, const Problem& down,
                                                    Op step, const Device&) noexcept;

// cublaslt/any_step.cpp: what no GEMM of this library takes, by cuBLASLt's products.
extern const detail::Kernel kCublasLtAny;
/// Why a problem is left to those; nothing where one of its operands is not for them.
[[nodiscard]] detail::Reason in_units(const Problem&) noexcept;

// sm80/decode/step.cpp: gate_up and down by mma.sync for up to 64 tokens, Ampere and newer.
extern const detail::Kernel kSm80Decode;
/// Why the tiles of kSm80Gemm are preferred to it for few tokens; nothing where it is faster.
[[nodiscard]] detail::Reason sm80_decode_yields(const Device&) noexcept;

// sm80/step.cpp: mma.sync on Ampere and newer, bf16 and fp16.
extern const detail::Kernel kSm80Gemm;

// sm100/step.cpp: gate_up and linear by CUTLASS's GEMMs for Blackwell, bf16. Never run.
extern const detail::Kernel kSm100;

// norm/step.cpp: RMSNorm, add + RMSNorm, bf16 and fp16.
extern const detail::Kernel kNorm;

// all_reduce/step.cpp: y summed over ranks, and the next RMSNorm of it, bf16 and fp16.
extern const detail::Kernel kAllReduce;

// elementwise/step.cpp: gate_mul and its gradient at the speed of memory.
extern const detail::Kernel kElementwise;

// simt/step.cpp: sums over tokens, any type and layout.
extern const detail::Kernel kColumnSum;
// The same file: the norm, any type, width and layout.
extern const detail::Kernel kNormAny;

// CUDA cores, any GPU from sm_75, any shape, layout and alignment.
extern const detail::Kernel kSimt;

}  // namespace sluice::cuda
