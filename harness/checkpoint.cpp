// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "harness/checkpoint_blocks.hpp"
#include "harness/checkpoint_files.hpp"
#include "harness/checkpoint_settings.hpp"

namespace sluice::harness {

namespace {

// Where models keep their decoder: text models, bare exports, and the two spellings of
// vision-language models (older and newer transformers).
constexpr std::array<std::string_view, 4> kPrefixes = {"model.", "", "language_model.model.",
                                                       "model.language_model."};

Error invalid(const CheckpointFiles& files, const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "%s: %s", printable(files.source).c_str(),
                    what.c_str());
}

std::string show_shape(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 4) {
      text += ", ...";
      break;
    }
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// The L of "<prefix>layers.L.mlp.<...>"; empty for other names. "layers.07" is no layer: it would
// alias "layers.7".
std::optional<std::int64_t> mlp_layer_of(std::string_view name, std::string_view prefix) {
  constexpr std::string_view kLayers = "layers.";
  if (name.substr(0, prefix.size()) != prefix) return {};
  name.remove_prefix(prefix.size());
  if (name.substr(0, kLayers.size()) != kLayers) return {};
  name.remove_prefix(kLayers.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc{} || layer < 0 || name.front() == '-' ||
      (digits > 1 && name.front() == '0')) {
    return {};
  }
  constexpr std::string_view kMlp = ".mlp.";
  if (name.substr(digits, kMlp.size()) != kMlp) return {};
  return layer;
}

// The decoder's prefix and its layers' numbers.
struct Decoder {
  std::string prefix;
  std::set<std::int64_t> layers;
};

Expected<Decoder> find_decoder(const CheckpointFiles& files) {
  Decoder decoder;
  for (const std::string_view prefix : kPrefixes) {
    decoder.prefix = prefix;
    for (const auto& [name, view] : files.tensors) {
      if (const auto layer = mlp_layer_of(name, prefix)) decoder.layers.insert(*layer);
    }
    if (!decoder.layers.empty()) break;
  }
  if (decoder.layers.empty()) {
    return invalid(files, "holds no tensor named [model.]layers.N.mlp.*");
  }
  std::int64_t expected = 0;
  for (const std::int64_t layer : decoder.layers) {
    if (layer != expected) {
      return invalid(files, "layer " + std::to_string(expected) + " has no MLP tensors, layer " +
                                std::to_string(layer) + " has");
    }
    ++expected;
  }
  return decoder;
}

// Reads one layer, checking each tensor against what the layers before it had.
class LayerReader {
 public:
  LayerReader(const CheckpointFiles& files, Checkpoint& checkpoint)
      : files_(files), checkpoint_(checkpoint) {}

  Status read(const std::string& layer_prefix) {
    MlpLayer layer;
    const std::string mlp = layer_prefix + "mlp.";
    SLUICE_TRY(read_gate_up(mlp, layer));
    SLUICE_TRY(weight(mlp + "down_proj.weight", {checkpoint_.d, checkpoint_.h}, layer.w_down));
    SLUICE_TRY(bias(mlp + "down_proj.bias", checkpoint_.d, layer.b_down));
    SLUICE_TRY(norm(layer_prefix, layer));
    layer.dtype = checkpoint_.dtype;
    checkpoint_.layers.push_back(layer);
    return {};
  }

 private:
  Status read_gate_up(const std::string& mlp, MlpLayer& layer) {
    const std::string merged = mlp + "gate_up_proj.weight";
    const TensorView* const both = files_.find(merged);
    if (both == nullptr) return read_separate(mlp, layer);
    if (files_.find(mlp + "gate_proj.weight") != nullptr ||
        files_.find(mlp + "up_proj.weight") != nullptr) {
      return invalid(files_, printable(merged) + " is there beside a separate projection");
    }
    if (both->shape.size() != 2 || both->shape[0] % 2 != 0) {
      return invalid(files_, "tensor " + printable(merged) + ": expected [2H, D], got " +
                                 show_shape(both->shape));
    }
    SLUICE_TRY(adopt_dims(merged, {both->shape[0] / 2, both->shape[1]}));
    SLUICE_TRY(weight(merged, {2 * checkpoint_.h, checkpoint_.d}, layer.w_gate));
    SLUICE_TRY(bias(mlp + "gate_up_proj.bias", 2 * checkpoint_.h, layer.b_gate));
    layer.merged = true;
    layer.w_up = half(layer.w_gate, checkpoint_.h * bytes_of(checkpoint_.dtype, checkpoint_.d));
    layer.b_up = half(layer.b_gate, checkpoint_.h * size_bytes(bias_dtype(checkpoint_)));
    return {};
  }

  Status read_separate(const std::string& mlp, MlpLayer& layer) {
    const TensorView* const gate = files_.find(mlp + "gate_proj.weight");
    if (gate == nullptr) return missing(mlp + "gate_proj.weight");
    SLUICE_TRY(adopt_dims(gate->name, gate->shape));
    SLUICE_TRY(weight(gate->name, gate->shape, layer.w_gate));
    SLUICE_TRY(weight(mlp + "up_proj.weight", gate->shape, layer.w_up));
    SLUICE_TRY(bias(mlp + "gate_proj.bias", checkpoint_.h, layer.b_gate));
    SLUICE_TRY(bias(mlp + "up_proj.bias", checkpoint_.h, layer.b_up));
    if ((layer.b_gate == nullptr) != (layer.b_up == nullptr)) {
      return invalid(files_, printable(mlp) + "*: gate_proj and up_proj: only one has a bias");
    }
    return {};
  }

  Status missing(const std::string& name) const {
    const std::string_view experts_prefix = std::string_view(name).substr(0, name.find("mlp.") + 4);
    const auto next = files_.tensors.lower_bound(std::string(experts_prefix) + "experts");
    if (next != files_.tensors.end() &&
        next->first.rfind(std::string(experts_prefix) + "experts", 0) == 0) {
      return make_error(ErrorCode::kUnsupported,
                        "%s: tensor %s: a mixture of experts, not a dense "
                        "gated MLP",
                        printable(files_.source).c_str(), printable(next->first).c_str());
    }
    return invalid(files_, "tensor " + printable(name) + " is missing");
  }

  // The first gate says what D and H are; later ones must agree.
  Status adopt_dims(const std::string& name, const std::vector<std::int64_t>& shape) {
    if (checkpoint_.layers.empty() && shape.size() == 2 && shape[0] > 0 && shape[1] > 0) {
      checkpoint_.h = shape[0];
      checkpoint_.d = shape[1];
    }
    const std::vector<std::int64_t> expected{checkpoint_.h, checkpoint_.d};
    if (shape == expected && checkpoint_.h > 0) return {};
    return invalid(
        files_,
        "tensor " + printable(name) + ": the gate's [H, D] is " + show_shape(shape) +
            (checkpoint_.layers.empty() ? ", not a matrix"
                                        : ", in the layers before " + show_shape(expected)));
  }

  Status weight(const std::string& name, const std::vector<std::int64_t>& shape,
                const void*& pointer) {
    const TensorView* const view = files_.find(name);
    if (view == nullptr) return missing(name);
    if (!view->dtype) {
      return make_error(ErrorCode::kUnsupported,
                        "%s: tensor %s: dtype %s; only BF16, F16, F32 and F64 weights are read, "
                        "and blocks that the metadata name",
                        printable(files_.source).c_str(), printable(name).c_str(),
                        view->dtype_name.c_str());
    }
    if (!dtype_known_) {
      checkpoint_.dtype = *view->dtype;
      dtype_known_ = true;
    }
    return take(*view, checkpoint_.dtype, shape, pointer);
  }

  Status take(const TensorView& view, DType dtype, const std::vector<std::int64_t>& shape,
              const void*& pointer) const {
    if (view.dtype != dtype) {
      return invalid(files_, "tensor " + printable(view.name) + ": dtype " +
                                 (view.dtype ? to_string(*view.dtype) : view.dtype_name.c_str()) +
                                 ", the weights before are " + to_string(checkpoint_.dtype) +
                                 (dtype == checkpoint_.dtype ? "" : ", biases fp32"));
    }
    if (view.shape != shape) {
      return invalid(files_, "tensor " + printable(view.name) + ": expected " + show_shape(shape) +
                                 ", got " + show_shape(view.shape));
    }
    pointer = view.data;
    return {};
  }

  Status bias(const std::string& name, std::int64_t size, const void*& pointer) {
    const TensorView* const view = files_.find(name);
    return view == nullptr ? Status{} : take(*view, bias_dtype(checkpoint_), {size}, pointer);
  }

  // The norm before the MLP. A layer with pre_feedforward_layernorm (Gemma-2) has a
  // post_attention_layernorm too, but that one closes the attention; a layer with
  // post_feedforward_layernorm alone (OLMo-2) has no norm before its MLP.
  Status norm(const std::string& layer_prefix, MlpLayer& layer) {
    std::string name = layer_prefix + "pre_feedforward_layernorm.weight";
    if (files_.find(name) == nullptr) {
      if (files_.find(layer_prefix + "post_feedforward_layernorm.weight") != nullptr) return {};
      name = layer_prefix + "post_attention_layernorm.weight";
    }
    const TensorView* const view = files_.find(name);
    if (view == nullptr) return {};
    if (!view->dtype) {
      return make_error(ErrorCode::kUnsupported, "%s: tensor %s: dtype %s is not read",
                        printable(files_.source).c_str(), printable(name).c_str(),
                        view->dtype_name.c_str());
    }
    if (view->shape != std::vector<std::int64_t>{checkpoint_.d}) {
      return invalid(files_, "tensor " + printable(name) + ": expected [" +
                                 std::to_string(checkpoint_.d) + "], got " +
                                 show_shape(view->shape));
    }
    layer.norm_weight = view->data;
    layer.norm_dtype = *view->dtype;
    return {};
  }

  static const void* half(const void* base, std::int64_t bytes) {
    return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + bytes;
  }

  const CheckpointFiles& files_;
  Checkpoint& checkpoint_;
  bool dtype_known_ = false;
};

Status read_embedding(const CheckpointFiles& files, const std::string& prefix,
                      Checkpoint& checkpoint) {
  const TensorView* const view = files.find(prefix + "embed_tokens.weight");
  if (view == nullptr) return {};
  if (view->shape.size() != 2 || view->shape[0] < 1 || view->shape[1] != checkpoint.d) {
    return invalid(files, "tensor " + printable(view->name) + ": expected [V, " +
                              std::to_string(checkpoint.d) + "], got " + show_shape(view->shape));
  }
  checkpoint.embedding = *view;
  return {};
}

std::int64_t common_alignment(const Checkpoint& checkpoint) {
  std::uintptr_t bits = 4096;
  for (const MlpLayer& layer : checkpoint.layers) {
    for (const void* pointer : {layer.w_gate, layer.w_up, layer.w_down, layer.b_gate, layer.b_up,
                                layer.b_down, layer.norm_weight}) {
      bits |= reinterpret_cast<std::uintptr_t>(pointer);
    }
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace

Expected<Checkpoint> open_checkpoint(const std::string& path) {
  Expected<CheckpointFiles> files = open_checkpoint_files(path);
  if (!files) return files.error();
  const Expected<Decoder> decoder = find_decoder(*files);
  if (!decoder) return decoder.error();
  Checkpoint checkpoint;
  SLUICE_TRY(read_blocks(*files));
  LayerReader reader(*files, checkpoint);
  for (const std::int64_t layer : decoder->layers) {
    SLUICE_TRY(reader.read(decoder->prefix + "layers." + std::to_string(layer) + "."));
  }
  SLUICE_TRY(read_settings(*files, checkpoint));
  SLUICE_TRY(read_embedding(*files, decoder->prefix, checkpoint));
  checkpoint.alignment_bytes = common_alignment(checkpoint);
  checkpoint.shards = std::move(files->shards);
  return checkpoint;
}

}  // namespace sluice::harness
