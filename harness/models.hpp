// SPDX-License-Identifier: Apache-2.0
// Model presets: the shapes of data/models.json, embedded in the program at build time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

/// One model; the fields are those of data/models.json, where they are explained.
struct Model {
  std::string name;    ///< "llama-3.1-8b"
  std::string source;  ///< Hugging Face repository of the config
  std::int64_t d = 0;
  std::int64_t h = 0;  ///< of one expert where experts > 1
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  std::string gate;                 ///< as the problem grammar spells it
  std::string layout = "separate";  ///< as the problem grammar spells it
  bool bias = false;
  int experts = 1;
  int experts_per_token = 1;
  std::vector<int> tp;  ///< tensor-parallel sizes that fit

  /// Bytes of keys and values that one more token of context takes on each of `tp_size` GPUs, over
  /// all layers: 2 · layers · max(1, kv_heads / tp_size) · head_size · size of dtype.
  [[nodiscard]] std::int64_t kv_token_bytes(DType dtype, int tp_size) const noexcept;
};

/// All presets, in the file's order.
[[nodiscard]] const std::vector<Model>& models();

/// The preset of a name, in any case of letters. Errors: kInvalidArgument, naming close matches.
Expected<Model> find_model(std::string_view name);

/// Parses the text of a models file. Errors: kInvalidArgument naming the model and the field.
Expected<std::vector<Model>> parse_models(std::string_view json);

/// Checks that a model's numbers fit each other. Errors: kInvalidArgument naming the field.
Status check_model(const Model& model);

/// Activation bytes of one MLP on one GPU for `tokens` tokens: M = tokens, times experts_per_token
/// in mixture models, and H = h / tp_size. Unfused: x [M,D], gate_up [M,2H], h [M,H], y [M,D];
/// fused: x, h, y. Workspaces are not counted.
struct ActivationBytes {
  std::int64_t unfused = 0;
  std::int64_t fused = 0;
  [[nodiscard]] std::int64_t saved() const noexcept { return unfused - fused; }
};
[[nodiscard]] ActivationBytes activation_bytes(const Model& model, std::int64_t tokens, DType dtype,
                                               int tp_size) noexcept;

}  // namespace sluice::harness
