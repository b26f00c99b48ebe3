// SPDX-License-Identifier: Apache-2.0
// A device described in a JSON file (data/devices): plans can be made for it where it is not.
#pragma once

#include <string>
#include <string_view>

#include "sluice/device.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Reads {"name", "backend": "cuda", "compute_capability", "sm_count", "smem_per_block_bytes",
/// "l2_bytes", "memory_bytes", "memory_bytes_per_second", "cublaslt_version", "driver_version",
/// "runtime_version"}; the last four may be absent. Errors: kInvalidArgument naming the field.
[[nodiscard]] Expected<Device> parse_device(std::string_view json);

/// The same from a file. Errors: kInvalidArgument naming the file, or its field.
[[nodiscard]] Expected<Device> read_device(const std::string& path);

}  // namespace sluice::harness
