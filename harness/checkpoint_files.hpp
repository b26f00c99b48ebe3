// SPDX-License-Identifier: Apache-2.0
// The files of one checkpoint: a single safetensors file, a folder, or a sharded index.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/safetensors.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Which shard holds which tensor: the checked "weight_map" of a model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string, std::less<>>;

/// Reads the text of an index file. `name` begins every message.
/// Errors, kInvalidArgument: bad JSON, no weight_map, entries that are not text, shard names that
/// are empty or could leave the folder ("..", '/', '\\', control characters).
[[nodiscard]] Expected<WeightMap> parse_weight_map(std::string_view text, std::string_view name);

/// The opened files of a checkpoint and where each tensor is. Views stay valid while `shards` live.
struct CheckpointFiles {
  std::string source;              ///< the path that was opened, for messages
  std::string stem;                ///< a short name of the model out of that path
  std::vector<std::string> paths;  ///< of all files that were read
  std::vector<SafeTensors> shards;
  std::map<std::string, TensorView, std::less<>> tensors;
  nlohmann::json config = nlohmann::json::object();  ///< config.json, or {} where there is none

  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  /// Reads the data of a view of `tensors`. Errors: those of FileImage::read().
  Status load(const TensorView& view);
  /// Gives back the memory of a view's data, which may then be load()ed again.
  void unload(const TensorView& view) noexcept;
  /// The value of a key of the shards' metadata, of those that have it. Errors: kInvalidArgument
  /// where they differ in it.
  [[nodiscard]] Expected<std::optional<std::string>> metadata(std::string_view key) const;
};

/// kInvalidArgument that says `what` of `files`.
[[nodiscard]] Error invalid(const CheckpointFiles& files, const std::string& what);

/// Whether what is made of `files` may be written to `out`. Errors: kInvalidArgument where that is
/// one of several shards, or a model.safetensors that an index beside it would hide.
Status check_packed(const CheckpointFiles& files, const std::string& out);

/// Opens what `path` names and reads the headers; see open_checkpoint(). Of an index, every shard
/// must be there and hold every tensor the weight_map places in it.
[[nodiscard]] Expected<CheckpointFiles> open_checkpoint_files(const std::string& path);

}  // namespace sluice::harness
