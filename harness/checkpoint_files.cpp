// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_files.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "harness/file_image.hpp"
#include "harness/strict_json.hpp"

namespace sluice::harness {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
  });
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Whether a folder's index would hide its model.safetensors: the index is there and is of others.
bool hides_single(const fs::path& folder) {
  const auto index = read_whole((folder / kIndexName).string());
  return index && index->text().find(std::string("\"") + kSingleName + '"') == std::string::npos;
}

// The one checkpoint of a folder: an index, model.safetensors, or its only .safetensors file.
Expected<fs::path> find_in_folder(const fs::path& folder) {
  if (is_there(folder / kSingleName) && hides_single(folder)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: holds both %s and %s; name one of them",
                      printable(folder.string()).c_str(), kIndexName, kSingleName);
  }
  for (const char* name : {kIndexName, kSingleName}) {
    if (is_there(folder / name)) return folder / name;
  }
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path());
  }
  const std::string shown = printable(folder.string());
  if (error) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be listed: %s", shown.c_str(),
                      error.message().c_str());
  }
  if (found.size() == 1) return found.front();
  return make_error(ErrorCode::kInvalidArgument,
                    "%s: holds neither %s nor %s, and %zu other .safetensors files", shown.c_str(),
                    kIndexName, kSingleName, found.size());
}

Status add_shard(CheckpointFiles& files, const std::string& path, const WeightMap* weight_map,
                 const std::string& shard_name) {
  Expected<SafeTensors> opened = SafeTensors::open(path);
  if (!opened) return opened.error();
  if (weight_map == nullptr) {
    for (const TensorView& view : opened->tensors()) files.tensors.emplace(view.name, view);
  } else {
    for (const auto& [tensor, shard] : *weight_map) {
      if (shard != shard_name) continue;
      const TensorView* const view = opened->find(tensor);
      if (view == nullptr) {
        return make_error(ErrorCode::kInvalidArgument,
                          "%s: tensor %s is missing, the index places it here",
                          printable(path).c_str(), printable(tensor).c_str());
      }
      files.tensors.emplace(tensor, *view);
    }
  }
  files.paths.push_back(path);
  files.shards.push_back(*std::move(opened));
  return {};
}

Status add_indexed(CheckpointFiles& files, const fs::path& index) {
  const Expected<FileImage> image = read_whole(index.string());
  if (!image) return image.error();
  const Expected<WeightMap> weight_map = parse_weight_map(image->text(), index.string());
  if (!weight_map) return weight_map.error();
  files.paths.push_back(index.string());
  std::vector<std::string> shards;
  for (const auto& entry : *weight_map) shards.push_back(entry.second);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    const fs::path path = index.parent_path() / shard;
    if (!is_there(path)) {
      return make_error(ErrorCode::kInvalidArgument, "%s: shard %s is missing",
                        printable(index.string()).c_str(), printable(shard).c_str());
    }
    SLUICE_TRY(add_shard(files, path.string(), &*weight_map, shard));
  }
  return {};
}

// "SmolLM2" of SmolLM2.safetensors, SmolLM2/model.safetensors and SmolLM2/.
std::string stem_of(const fs::path& file) {
  std::string stem = file.stem().string();
  if (stem.rfind("model", 0) != 0) return stem;
  std::error_code error;
  const fs::path folder = fs::absolute(file, error).parent_path();
  return error || folder.filename().empty() ? stem : folder.filename().string();
}

}  // namespace

Expected<WeightMap> parse_weight_map(std::string_view text, std::string_view name) {
  const std::string shown = printable(name);
  const Expected<json> document = parse_json(text, name);
  if (!document) return document.error();
  const auto found = document->find("weight_map");
  if (found == document->end() || !found->is_object() || found->empty()) {
    return make_error(ErrorCode::kInvalidArgument, "%s: holds no weight_map", shown.c_str());
  }
  WeightMap weight_map;
  for (const auto& [tensor, shard] : found->items()) {
    if (!shard.is_string()) {
      return make_error(ErrorCode::kInvalidArgument, "%s: tensor %s: its shard is not text",
                        shown.c_str(), printable(tensor).c_str());
    }
    const std::string file = shard.get<std::string>();
    if (!is_plain_file_name(file)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%s: tensor %s: shard \"%s\" is not the plain name of a file beside the "
                        "index",
                        shown.c_str(), printable(tensor).c_str(), printable(file).c_str());
    }
    weight_map.emplace(tensor, file);
  }
  return weight_map;
}

const TensorView* CheckpointFiles::find(std::string_view name) const noexcept {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

Status CheckpointFiles::load(const TensorView& view) {
  for (SafeTensors& shard : shards) {
    if (shard.holds(view)) return shard.load(view);
  }
  return {};
}

void CheckpointFiles::unload(const TensorView& view) noexcept {
  for (SafeTensors& shard : shards) shard.unload(view);
}

Expected<std::optional<std::string>> CheckpointFiles::metadata(std::string_view key) const {
  std::optional<std::string> value;
  for (const SafeTensors& shard : shards) {
    const auto found = shard.metadata().find(key);
    if (found == shard.metadata().end()) continue;
    if (value && *value != found->second) {
      return make_error(ErrorCode::kInvalidArgument, "%s: %s is %s in one shard and %s in another",
                        printable(source).c_str(), std::string(key).c_str(),
                        printable(*value).c_str(), printable(found->second).c_str());
    }
    value = found->second;
  }
  return value;
}

Error invalid(const CheckpointFiles& files, const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "%s: %s", printable(files.source).c_str(),
                    what.c_str());
}

Status check_packed(const CheckpointFiles& files, const std::string& out) {
  std::error_code error;
  const fs::path file(out);
  const auto is_out = [&](const SafeTensors& shard) {
    return fs::equivalent(shard.path(), file, error);
  };
  if (files.shards.size() > 1 && std::any_of(files.shards.begin(), files.shards.end(), is_out)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is one of the %zu shards of %s",
                      printable(out).c_str(), files.shards.size(), printable(files.source).c_str());
  }
  if (file.filename() != kSingleName || !hides_single(file.parent_path())) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "%s: lies beside %s, which would hide it; name another folder",
                    printable(out).c_str(), kIndexName);
}

Expected<CheckpointFiles> open_checkpoint_files(const std::string& path) {
  fs::path file(path);
  std::error_code error;
  if (fs::is_directory(file, error)) {
    const Expected<fs::path> found = find_in_folder(file);
    if (!found) return found.error();
    file = *found;
  }
  CheckpointFiles files;
  files.source = file.string();
  files.stem = stem_of(file);
  if (file.extension() == ".json") {
    SLUICE_TRY(add_indexed(files, file));
  } else {
    SLUICE_TRY(add_shard(files, file.string(), nullptr, ""));
  }
  const fs::path config = file.parent_path() / "config.json";
  if (is_there(config)) {
    const Expected<FileImage> image = read_whole(config.string());
    if (!image) return image.error();
    Expected<json> document = parse_json(image->text(), config.string());
    if (!document) return document.error();
    files.paths.push_back(config.string());
    files.config = *std::move(document);
  }
  return files;
}

}  // namespace sluice::harness
