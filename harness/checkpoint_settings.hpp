// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's config.json, or its metadata, say of the MLPs.
#pragma once

#include "harness/checkpoint.hpp"
#include "harness/checkpoint_files.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Fills name, gate, eps, norm_weight_offset, assumed_gate and assumed_eps of `checkpoint`, whose
/// d and h are known. Each setting comes from config.json, its text_config, or the metadata of a
/// shard, whichever has it first.
/// Errors: kUnsupported for an activation that Sluice has not; kInvalidArgument for an eps that is
/// no positive number, or where hidden_size or intermediate_size contradict the tensors.
Status read_settings(const CheckpointFiles& files, Checkpoint& checkpoint);

}  // namespace sluice::harness
