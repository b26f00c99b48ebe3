// SPDX-License-Identifier: Apache-2.0
// CUDA's rows of the variant table.
#pragma once

#include "core/variant.hpp"
#include "cuda/norm/after_norm.hpp"

namespace sluice::cuda {

// sm90/decode.cpp: gate_up, down and mlp on Hopper for up to 64 tokens, one launch an operator; and
// mlp in two launches, without a grid barrier, which overlap those before and behind.
detail::Reason sm90_decode_supports(const Problem&, const Device&) noexcept;
detail::Reason sm90_decode_chain_supports(const Problem&, const Device&) noexcept;
detail::Reason sm90_decode_chain_yields(const Problem&, const Device&) noexcept;
std::size_t sm90_decode_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t sm90_decode_chain_configs(const Problem&, const Device&,
                                      std::span<Config> out) noexcept;
std::size_t sm90_decode_payload_bytes(const Plan&) noexcept;
std::size_t sm90_decode_chain_payload_bytes(const Plan&) noexcept;
Status sm90_decode_launch(const Plan&, const Operands&, void* payload, void* header,
                          Stream) noexcept;
Status sm90_decode_chain_launch(const Plan&, const Operands&, void* payload, void* header,
                                Stream) noexcept;

inline constexpr detail::Variant kSm90Decode = {
    .name = "cuda.sm90_decode",
    .backend = Backend::kCuda,
    .supports = sm90_decode_supports,
    .configs = sm90_decode_configs,
    .payload_bytes = sm90_decode_payload_bytes,
    .launch = sm90_decode_launch,
};
inline constexpr detail::Variant kSm90DecodeChain = {
    .name = "cuda.sm90_decode_chain",
    .backend = Backend::kCuda,
    .supports = sm90_decode_chain_supports,
    .configs = sm90_decode_chain_configs,
    .payload_bytes = sm90_decode_chain_payload_bytes,
    .launch = sm90_decode_chain_launch,
    .yields = sm90_decode_chain_yields,
};

// sm90/prefill.cpp: gate_up, down and mlp on Hopper's tensor cores, bf16 and fp16.
detail::Reason sm90_supports(const Problem&, const Device&) noexcept;
std::size_t sm90_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t sm90_payload_bytes(const Plan&) noexcept;
Status sm90_launch(const Plan&, const Operands&, void* payload, void* header, Stream) noexcept;

inline constexpr detail::Variant kSm90 = {
    "cuda.sm90", Backend::kCuda, sm90_supports, sm90_configs, sm90_payload_bytes, sm90_launch,
};

// sm90/with_cublaslt.cpp: the same with cuBLASLt's plain products, where that library is found.
detail::Reason sm90_cublaslt_supports(const Problem&, const Device&) noexcept;
detail::Reason sm90_cublaslt_yields(const Problem&, const Device&) noexcept;
std::size_t sm90_cublaslt_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t sm90_cublaslt_payload_bytes(const Plan&) noexcept;
Status sm90_cublaslt_launch(const Plan&, const Operands&, void* payload, void* header,
                            Stream) noexcept;

inline constexpr detail::Variant kSm90CublasLt = {
    .name = "cuda.sm90_cublaslt",
    .backend = Backend::kCuda,
    .supports = sm90_cublaslt_supports,
    .configs = sm90_cublaslt_configs,
    .payload_bytes = sm90_cublaslt_payload_bytes,
    .launch = sm90_cublaslt_launch,
    .yields = sm90_cublaslt_yields,
};

// sm80/prefill.cpp: gate_up, down and mlp by mma.sync on Ampere and newer, bf16 and fp16.
detail::Reason sm80_supports(const Problem&, const Device&) noexcept;
std::size_t sm80_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t sm80_payload_bytes(const Plan&) noexcept;
Status sm80_launch(const Plan&, const Operands&, void* payload, void* header, Stream) noexcept;

inline constexpr detail::Variant kSm80 = {
    "cuda.sm80", Backend::kCuda, sm80_supports, sm80_configs, sm80_payload_bytes, sm80_launch,
};

// norm/after_norm.hpp: the norm in a launch of its own, then the variant.
inline constexpr detail::Variant kSm90DecodeChainNorm =
    after_norm<kSm90DecodeChain>("cuda.sm90_decode_chain_norm");
inline constexpr detail::Variant kSm90CublasLtNorm =
    after_norm<kSm90CublasLt>("cuda.sm90_cublaslt_norm");
inline constexpr detail::Variant kSm90Norm = after_norm<kSm90>("cuda.sm90_norm");
inline constexpr detail::Variant kSm80Norm = after_norm<kSm80>("cuda.sm80_norm");

// elementwise/elementwise.cpp: gate_mul and its gradient at the speed of memory, any GPU from
// sm_75.
detail::Reason elementwise_supports(const Problem&, const Device&) noexcept;
std::size_t elementwise_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t elementwise_payload_bytes(const Plan&) noexcept;
Status elementwise_launch(const Plan&, const Operands&, void* payload, void* header,
                          Stream) noexcept;

inline constexpr detail::Variant kElementwise = {
    "cuda.elementwise",        Backend::kCuda,     elementwise_supports, elementwise_configs,
    elementwise_payload_bytes, elementwise_launch,
};

// simt/simt.cpp: CUDA cores, any GPU from sm_75, any shape, layout and alignment.
detail::Reason simt_supports(const Problem&, const Device&) noexcept;
std::size_t simt_configs(const Problem&, const Device&, std::span<Config> out) noexcept;
std::size_t simt_payload_bytes(const Plan&) noexcept;
Status simt_launch(const Plan&, const Operands&, void* payload, void* header, Stream) noexcept;

inline constexpr detail::Variant kSimt = {
    "cuda.simt", Backend::kCuda, simt_supports, simt_configs, simt_payload_bytes, simt_launch,
};

}  // namespace sluice::cuda
