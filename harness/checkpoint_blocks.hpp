// SPDX-License-Identifier: Apache-2.0
// MLP weights kept in GGUF's blocks, as docs/checkpoints.md lays them out in a safetensors file.
#pragma once

#include "harness/checkpoint_files.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Where the metadata name a block type (mlp_weight_blocks), every tensor of bytes (U8) called
/// *.mlp.*.weight becomes what it holds: that type, and a shape in columns instead of bytes.
/// Errors: kUnsupported for a name that is no block type; kInvalidArgument where shards differ in
/// it, and for a tensor that is not rows of whole blocks or begins at an odd address.
Status read_blocks(CheckpointFiles& files);

}  // namespace sluice::harness
