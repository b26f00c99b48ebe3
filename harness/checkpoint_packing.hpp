// SPDX-License-Identifier: Apache-2.0
// How a checkpoint's metadata say that its gate_up_proj tensors are packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "harness/checkpoint_files.hpp"
#include "sluice/pack.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// The packing of every gate_up_proj of a checkpoint. The default is what checkpoints mean that say
/// nothing: halves, gate first.
struct GateUpPacking {
  std::int64_t block_rows = 0;  ///< 0: halves, H rows of each tensor
  PackOrder order = PackOrder::kGateUp;
};

/// "gate_up" or "up_gate".
[[nodiscard]] const char* to_string(PackOrder order) noexcept;

/// Reads "mlp_gate_up_block" ("halves" or a number) and "mlp_gate_up_order" of the metadata.
/// Errors: kInvalidArgument where shards differ in one; kUnsupported for another value.
[[nodiscard]] Expected<GateUpPacking> read_packing(const CheckpointFiles& files);

/// Writes both keys; erases them for null.
void write_packing(const GateUpPacking* packing,
                   std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace sluice::harness
