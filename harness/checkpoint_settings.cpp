// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace sluice::harness {

namespace {

using nlohmann::json;

// 3, not 3.000000.
std::string shortest(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::string(text.data(), end) : std::to_string(value);
}

// What config.json says, or the metadata of the files, or nothing.
class Settings {
 public:
  explicit Settings(const CheckpointFiles& files) : files_(files) {}

  [[nodiscard]] std::string text(const char* key) const {
    for (const json* object : objects()) {
      const auto found = object->find(key);
      if (found != object->end() && found->is_string()) return found->get<std::string>();
    }
    for (const SafeTensors& shard : files_.shards) {
      const auto found = shard.metadata().find(std::string_view(key));
      if (found != shard.metadata().end()) return found->second;
    }
    return {};
  }

  [[nodiscard]] std::optional<double> number(const char* key) const {
    for (const json* object : objects()) {
      const auto found = object->find(key);
      if (found != object->end() && found->is_number()) return found->get<double>();
    }
    const std::string value = text(key);
    double parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error != std::errc{} || end != value.data() + value.size()) return {};
    return parsed;
  }
  /// Of the decoder inside a vision-language model; "" where it says none.
  [[nodiscard]] std::string decoder_text(const char* key) const {
    const auto all = objects();
    return all.size() > 1 ? all[1]->value(key, "") : "";
  }

 private:
  // Vision-language models keep the decoder's settings in text_config.
  [[nodiscard]] std::vector<const json*> objects() const {
    std::vector<const json*> result{&files_.config};
    const auto nested = files_.config.find("text_config");
    if (nested != files_.config.end() && nested->is_object()) result.push_back(&*nested);
    return result;
  }

  const CheckpointFiles& files_;
};

std::optional<Activation> activation_of(std::string_view name) {
  using Name = std::pair<std::string_view, Activation>;
  // As transformers' ACT2FN names them; "gelu" there is the exact one.
  constexpr std::array<Name, 9> kNames{{{"silu", Activation::kSilu},
                                        {"swish", Activation::kSilu},
                                        {"gelu", Activation::kGeluErf},
                                        {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                        {"gelu_new", Activation::kGeluTanh},
                                        {"gelu_fast", Activation::kGeluTanh},
                                        {"relu", Activation::kRelu},
                                        {"sigmoid", Activation::kSigmoid},
                                        {"linear", Activation::kIdentity}}};
  const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                         [&](const Name& pair) { return pair.first == name; });
  if (found == kNames.end()) return {};
  return found->second;
}

// Whether a norm multiplies by 1 + weight, as Gemma's did until its third version.
bool adds_one(std::string_view model_type) {
  constexpr std::array<std::string_view, 7> kTypes{
      "gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "t5gemma", "vaultgemma"};
  return std::find(kTypes.begin(), kTypes.end(), model_type) != kTypes.end();
}

}  // namespace

Status read_settings(const CheckpointFiles& files, Checkpoint& checkpoint) {
  const Settings settings(files);
  const std::string model_type = settings.text("model_type");
  const std::string decoder = settings.decoder_text("model_type");
  checkpoint.norm_weight_offset = adds_one(decoder.empty() ? model_type : decoder) ? 1.0F : 0.0F;

  std::string name = settings.text("hidden_activation");
  // The first Gemma's hidden_act is a known mistake that transformers overrules.
  if (name.empty() && model_type == "gemma") name = "gelu_pytorch_tanh";
  if (name.empty()) name = settings.text("hidden_act");
  checkpoint.assumed_gate = name.empty();
  if (!name.empty()) {
    const std::optional<Activation> activation = activation_of(name);
    if (!activation) {
      return make_error(ErrorCode::kUnsupported, "%s: activation \"%s\" is not one that Sluice has",
                        printable(files.source).c_str(), printable(name, 40).c_str());
    }
    checkpoint.gate.activation = *activation;
  }

  const std::optional<double> eps = settings.number("rms_norm_eps");
  checkpoint.assumed_eps = !eps;
  if (eps) {
    checkpoint.eps = static_cast<float>(*eps);
    if (!(checkpoint.eps > 0.0F) || !std::isfinite(checkpoint.eps)) {
      return invalid(files,
                     "rms_norm_eps: expected a positive number, got " + std::to_string(*eps));
    }
  }
  for (const auto& [key, value] :
       {std::pair{"hidden_size", checkpoint.d}, std::pair{"intermediate_size", checkpoint.h}}) {
    const std::optional<double> said = settings.number(key);
    if (said && *said != static_cast<double>(value)) {
      return invalid(files, std::string("config says ") + key + " = " + shortest(*said) +
                                ", the tensors say " + std::to_string(value));
    }
  }

  // More are no contradiction: layers that guess further tokens come behind those of the model.
  const std::optional<double> said = settings.number("num_hidden_layers");
  if (said && *said > static_cast<double>(checkpoint.layers.size())) {
    return invalid(files, "config says num_hidden_layers = " + shortest(*said) +
                              ", the tensors are of " + std::to_string(checkpoint.layers.size()));
  }

  checkpoint.name = settings.text("name");
  if (checkpoint.name.empty()) checkpoint.name = settings.text("_name_or_path");
  // A path would name somebody's machine: its last part is the model's name.
  checkpoint.name = std::filesystem::path(checkpoint.name).filename().string();
  if (checkpoint.name.empty()) checkpoint.name = files.stem;
  checkpoint.name = printable(checkpoint.name);
  return {};
}

}  // namespace sluice::harness
