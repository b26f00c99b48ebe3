// SPDX-License-Identifier: Apache-2.0
#include "harness/models.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "harness/embedded.hpp"

namespace sluice::harness {
namespace {

using nlohmann::json;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

Error field_error(const Model& model, const char* field, const std::string& got,
                  const char* wanted) {
  return make_error(ErrorCode::kInvalidArgument, "model %s: %s: got %s, wanted %s",
                    model.name.c_str(), field, got.c_str(), wanted);
}

Model model_of(const json& item) {
  Model m;
  m.name = item.at("name").get<std::string>();
  m.source = item.at("source").get<std::string>();
  m.d = item.at("d").get<std::int64_t>();
  m.h = item.at("h").get<std::int64_t>();
  m.layers = item.at("layers").get<int>();
  m.heads = item.at("heads").get<int>();
  m.kv_heads = item.at("kv_heads").get<int>();
  m.head_size = item.at("head_size").get<int>();
  m.gate = item.at("gate").get<std::string>();
  m.tp = item.at("tp").get<std::vector<int>>();
  m.layout = item.value("layout", m.layout);
  m.bias = item.value("bias", m.bias);
  m.experts = item.value("experts", m.experts);
  m.experts_per_token = item.value("experts_per_token", m.experts_per_token);
  return m;
}

}  // namespace

std::int64_t Model::kv_token_bytes(DType dtype, int tp_size) const noexcept {
  const std::int64_t heads_here = std::max(1, kv_heads / std::max(1, tp_size));
  return 2 * static_cast<std::int64_t>(layers) * heads_here * head_size * size_bytes(dtype);
}

const std::vector<Model>& models() {
  // The embedded text is tested to parse; value() throws on a build with a broken file.
  static const std::vector<Model> list = parse_models(embedded_models_json()).value();
  return list;
}

Expected<Model> find_model(std::string_view name) {
  const std::string wanted = lower(name);
  std::string close;
  for (const Model& model : models()) {
    if (model.name == wanted) return model;
    if (wanted.size() >= 3 && model.name.compare(0, 3, wanted, 0, 3) == 0) {
      close += (close.empty() ? "" : ", ") + model.name;
    }
  }
  return make_error(ErrorCode::kInvalidArgument, "model: got \"%s\", wanted %s",
                    std::string(name).c_str(),
                    close.empty() ? "a name from `sluice list models`" : close.c_str());
}

Expected<std::vector<Model>> parse_models(std::string_view text) {
  std::vector<Model> list;
  try {
    const json file = json::parse(text);
    for (const json& item : file.at("models")) {
      list.push_back(model_of(item));
      SLUICE_TRY(check_model(list.back()));
    }
  } catch (const json::exception& e) {
    return make_error(ErrorCode::kInvalidArgument, "models: after \"%s\": %s",
                      list.empty() ? "" : list.back().name.c_str(), e.what());
  }
  return list;
}

Status check_model(const Model& model) {
  if (model.name.empty() || model.name != lower(model.name)) {
    return field_error(model, "name", "\"" + model.name + "\"", "a lower-case name");
  }
  if (model.source.find('/') == std::string::npos) {
    return field_error(model, "source", "\"" + model.source + "\"", "owner/repository");
  }
  const struct {
    const char* field;
    std::int64_t value;
  } counts[] = {{"d", model.d},
                {"h", model.h},
                {"layers", model.layers},
                {"heads", model.heads},
                {"kv_heads", model.kv_heads},
                {"head_size", model.head_size},
                {"experts", model.experts},
                {"experts_per_token", model.experts_per_token}};
  for (const auto& count : counts) {
    if (count.value < 1)
      return field_error(model, count.field, std::to_string(count.value), ">= 1");
  }
  if (model.heads % model.kv_heads != 0) {
    return field_error(model, "kv_heads", std::to_string(model.kv_heads), "a divisor of heads");
  }
  if (model.experts_per_token > model.experts) {
    return field_error(model, "experts_per_token", std::to_string(model.experts_per_token),
                       "at most experts");
  }
  if (model.tp.empty() || model.tp.front() != 1) {
    return field_error(model, "tp", "a list that does not start at 1", "1 first");
  }
  for (const int tp : model.tp) {
    const bool fits = tp >= 1 && model.heads % tp == 0 && model.h % (8 * std::int64_t{tp}) == 0 &&
                      (model.kv_heads % tp == 0 || tp % model.kv_heads == 0);
    if (!fits) {
      return field_error(model, "tp", std::to_string(tp), "a size that divides heads and h / 8");
    }
  }
  return {};
}

ActivationBytes activation_bytes(const Model& model, std::int64_t tokens, DType dtype,
                                 int tp_size) noexcept {
  const std::int64_t hidden = model.h / std::max(1, tp_size);
  const std::int64_t element = size_bytes(dtype);
  const std::int64_t rows = tokens * model.experts_per_token;
  const std::int64_t fused = rows * (2 * model.d + hidden) * element;
  return {fused + rows * 2 * hidden * element, fused};
}

}  // namespace sluice::harness
