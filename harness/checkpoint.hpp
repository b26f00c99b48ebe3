// SPDX-License-Identifier: Apache-2.0
// The gated MLPs of a real model, as a Hugging Face checkpoint ships them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "harness/safetensors.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

/// The weights of one layer's MLP. Pointers are into the files' images, rows without gaps; gate and
/// up of a merged tensor share one buffer. Null where the checkpoint has none.
struct MlpLayer {
  const void* w_gate = nullptr;       ///< [H, D]
  const void* w_up = nullptr;         ///< [H, D]
  const void* w_down = nullptr;       ///< [D, H]
  const void* b_gate = nullptr;       ///< [H]; there if and only if b_up is
  const void* b_up = nullptr;         ///< [H]
  const void* b_down = nullptr;       ///< [D]
  const void* norm_weight = nullptr;  ///< [D], of the norm before the MLP
  Layout w_gate_up_layout{};          ///< of w_gate and w_up
  Layout w_down_layout{};             ///< of w_down
  bool merged = false;                ///< w_gate and w_up are rows of one tensor
  DType dtype = DType::kBF16;         ///< of weights; the same in every layer
  DType norm_dtype = DType::kBF16;    ///< of norm_weight
};

/// The MLPs of one model. Move-only; every pointer stays valid while the object, or what it was
/// moved to, lives.
struct Checkpoint {
  std::string name;              ///< "SmolLM2-135M-Instruct"; never a path
  std::int64_t d = 0;            ///< D, model width
  std::int64_t h = 0;            ///< H, hidden width
  DType dtype = DType::kBF16;    ///< of weights; biases have bias_dtype()
  std::vector<MlpLayer> layers;  ///< at least one
  /// Largest power of two, at most 4096, that divides every weight, bias and norm pointer: what
  /// Problem::alignment_bytes may promise on these pointers.
  std::int64_t alignment_bytes = 1;

  TensorView embedding;             ///< [V, D]; data is null where the checkpoint has none
  Gate gate{};                      ///< from the config; silu where nothing says otherwise
  float eps = 1e-5F;                ///< of the norm; 1e-5 where nothing says otherwise
  float norm_weight_offset = 0.0F;  ///< 1 for Gemma, whose norm weights are stored less one
  bool assumed_gate = false;        ///< neither config.json nor metadata names the activation
  bool assumed_eps = false;         ///< neither gives rms_norm_eps

  std::vector<SafeTensors> shards;  ///< the files that the pointers point into
  /// Biases that a file has packed, unpacked: operators read vectors without gaps.
  std::vector<std::vector<std::byte>> unpacked_biases;
};

/// The type of biases: that of the weights, fp32 beside weights in blocks.
[[nodiscard]] constexpr DType bias_dtype(const Checkpoint& checkpoint) noexcept {
  return is_block_type(checkpoint.dtype) ? DType::kF32 : checkpoint.dtype;
}

/// Opens the MLPs of a Llama-style checkpoint. All layers are checked, by their headers; the
/// tensors of the first `loaded` are read, and the embedding where that is above 0. What is not
/// read holds zeros.
///
/// `path` is a .safetensors file, a model.safetensors.index.json, or a folder that holds one of
/// them. Tensors, with L from 0 without a gap and the usual prefixes ("model.", none,
/// "language_model.model.", "model.language_model."):
///   layers.L.mlp.gate_proj.weight, up_proj.weight [H, D] (+ .bias [H]), or
///   layers.L.mlp.gate_up_proj.weight [2H, D] (+ .bias [2H]): halves, gate first, as Phi-3 has it,
///   or packed in blocks of rows as the metadata say (docs/checkpoints.md);
///   layers.L.mlp.down_proj.weight [D, H] (+ .bias [D]);
///   layers.L.pre_feedforward_layernorm.weight (Gemma-2 and later) or
///   post_attention_layernorm.weight [D], optional; embed_tokens.weight [V, D], optional.
/// Weights and biases are of one dtype: BF16, F16, F32 or F64; or weights are bytes (U8) of GGUF's
/// blocks, which the metadata name (docs/checkpoints.md), and biases F32. The activation
/// (hidden_activation, hidden_act) and rms_norm_eps come from config.json in the same folder (also
/// its text_config), else from the file's own metadata, else silu and 1e-5 are assumed and marked
/// so.
///
/// Errors: kInvalidArgument for what parse_safetensors() refuses, files that become shorter while
/// they are read, a missing shard, tensor, layer or
/// projection, a shard name that leaves the folder, unequal or wrong shapes, mixed dtypes, rows
/// that are not whole blocks, a config that contradicts the tensors; kUnsupported for other
/// quantised weights, mixtures of experts and unknown activations. Messages name file, layer and
/// tensor.
[[nodiscard]] Expected<Checkpoint> open_checkpoint(
    const std::string& path, std::size_t loaded = std::numeric_limits<std::size_t>::max());

/// Token ids that spread `m` rows over a vocabulary: floor(frac(i·phi)·V), the golden-ratio
/// sequence, which repeats no id while V > 2.3·m. Deterministic. Source: Weyl; three-gap theorem.
[[nodiscard]] std::vector<std::int64_t> spread_token_ids(std::int64_t m, std::int64_t vocabulary);

/// x[M, D], row-major without gaps: RMS-normalised rows of the model's own embedding table.
///
///   x(i) = e / sqrt(mean(e²) + eps) · (norm_weight + norm_weight_offset),
///   e = embedding(spread_token_ids(m, V)[i])
///
/// `layer` gives norm_weight; null, or a layer without one, leaves out that factor. Evaluated in
/// fp64 and rounded once, to `dtype`. Thread-safe.
/// Errors: kInvalidArgument for m < 0; kUnsupported where the checkpoint has no embedding of a
/// floating-point type.
[[nodiscard]] Expected<std::vector<std::byte>> embedding_rows(const Checkpoint& checkpoint,
                                                              std::int64_t m, DType dtype,
                                                              const MlpLayer* layer = nullptr);

}  // namespace sluice::harness
