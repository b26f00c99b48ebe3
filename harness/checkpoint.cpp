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
#include "harness/checkpoint_packing.hpp"
#include "harness/checkpoint_settings.hpp"

namespace sluice::harness {

namespace {

// Where models keep their decoder: text models, bare exports, and the two spellings of
// vision-language models (older and newer transformers).
constexpr std::array<std::string_view, 4> kPrefixes = {"model.", "", "language_model.model.",
                                                       "model.language_model."};

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
  LayerReader(CheckpointFiles& files, const GateUpPacking& packing, Checkpoint& checkpoint,
              std::size_t loaded)
      : files_(files), packing_(packing), checkpoint_(checkpoint), loaded_(loaded) {}

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
    const void* weights = nullptr;
    const void* biases = nullptr;
    SLUICE_TRY(weight(merged, {2 * checkpoint_.h, checkpoint_.d}, weights));
    SLUICE_TRY(bias(mlp + "gate_up_proj.bias", 2 * checkpoint_.h, biases));
    const std::int64_t h = checkpoint_.h;
    const std::int64_t block = packing_.block_rows == 0 ? h : packing_.block_rows;
    if (h % block != 0) {
      return invalid(files_, "tensor " + printable(merged) + ": H = " + std::to_string(h) +
                                 " is no multiple of the " + std::to_string(block) +
                                 " rows of a block");
    }
    layer.merged = true;
    layer.w_gate = weights;
    layer.w_up = behind(weights, block * bytes_of(checkpoint_.dtype, checkpoint_.d));
    if (block < h) {
      layer.w_gate_up_layout = interleaved_rows(block, checkpoint_.d, checkpoint_.dtype);
      if (biases != nullptr) SLUICE_TRY(unpack_biases(biases, block, layer));
    } else {
      layer.b_gate = biases;
      layer.b_up = behind(biases, h * size_bytes(bias_dtype(checkpoint_)));
      if (packing_.order == PackOrder::kUpGate) std::swap(layer.b_gate, layer.b_up);
    }
    if (packing_.order == PackOrder::kUpGate) std::swap(layer.w_gate, layer.w_up);
    return {};
  }

  Status unpack_biases(const void* biases, std::int64_t block, MlpLayer& layer) {
    const std::int64_t element = size_bytes(bias_dtype(checkpoint_));
    const Packing packing{.h = checkpoint_.h,
                          .d = 1,
                          .element_bytes = element,
                          .block_rows = block,
                          .order = packing_.order};
    const auto bytes = static_cast<std::size_t>(checkpoint_.h * element);
    std::byte* const gate = checkpoint_.unpacked_biases.emplace_back(bytes).data();
    std::byte* const up = checkpoint_.unpacked_biases.emplace_back(bytes).data();
    layer.b_gate = gate;
    layer.b_up = up;
    return unpack_gate_up(packing, biases, gate, up);
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
              const void*& pointer) {
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
    return load(view);
  }

  Status load(const TensorView& view) {
    return checkpoint_.layers.size() < loaded_ ? files_.load(view) : Status{};
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
    return load(*view);
  }

  static const void* behind(const void* base, std::int64_t bytes) {
    return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + bytes;
  }

  CheckpointFiles& files_;
  GateUpPacking packing_;
  Checkpoint& checkpoint_;
  std::size_t loaded_;
  bool dtype_known_ = false;
};

Status read_embedding(CheckpointFiles& files, const std::string& prefix, bool loaded,
                      Checkpoint& checkpoint) {
  const TensorView* const view = files.find(prefix + "embed_tokens.weight");
  if (view == nullptr) return {};
  if (view->shape.size() != 2 || view->shape[0] < 1 || view->shape[1] != checkpoint.d) {
    return invalid(files, "tensor " + printable(view->name) + ": expected [V, " +
                              std::to_string(checkpoint.d) + "], got " + show_shape(view->shape));
  }
  checkpoint.embedding = *view;
  return loaded ? files.load(*view) : Status{};
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

Expected<Checkpoint> open_checkpoint(const std::string& path, std::size_t loaded) {
  Expected<CheckpointFiles> files = open_checkpoint_files(path);
  if (!files) return files.error();
  const Expected<Decoder> decoder = find_decoder(*files);
  if (!decoder) return decoder.error();
  Checkpoint checkpoint;
  SLUICE_TRY(read_blocks(*files));
  const Expected<GateUpPacking> packing = read_packing(*files);
  if (!packing) return packing.error();
  LayerReader reader(*files, *packing, checkpoint, loaded);
  for (const std::int64_t layer : decoder->layers) {
    SLUICE_TRY(reader.read(decoder->prefix + "layers." + std::to_string(layer) + "."));
  }
  SLUICE_TRY(read_settings(*files, checkpoint));
  SLUICE_TRY(read_embedding(*files, decoder->prefix, loaded > 0, checkpoint));
  checkpoint.alignment_bytes = common_alignment(checkpoint);
  checkpoint.shards = std::move(files->shards);
  return checkpoint;
}

}  // namespace sluice::harness
