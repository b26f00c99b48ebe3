// SPDX-License-Identifier: Apache-2.0
// JSON from untrusted files: bounded in size, depth and number of values, no duplicate keys, no
// exceptions. Checkpoints are downloaded; their headers must not be able to exhaust memory.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::harness {

/// What parse_json() takes; enough for checkpoints of a million tensors.
struct JsonLimits {
  std::size_t bytes = 100'000'000;  ///< the safetensors format's own limit of a header
  std::size_t depth = 32;           ///< containers within containers
  std::size_t values = 16'000'000;  ///< keys, scalars and containers in all
};

/// Parses one JSON document (RFC 8259, UTF-8) whose root is an object; `what` begins every message.
/// Errors: kInvalidArgument for text beyond the limits, bad syntax (with the byte offset), a
/// duplicate key (two readers may each believe another one), or a root that is no object.
[[nodiscard]] Expected<nlohmann::json> parse_json(std::string_view text, std::string_view what,
                                                  const JsonLimits& limits = {});

}  // namespace sluice::harness
