// SPDX-License-Identifier: Apache-2.0
// Rewrites a checkpoint with its gate and up projections packed another way, or apart.
#pragma once

#include <cstdint>
#include <string>

#include "harness/checkpoint_packing.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// What pack_checkpoint() wrote.
struct PackReport {
  std::int64_t pairs = 0;    ///< of weights; their biases are not counted
  std::int64_t tensors = 0;  ///< in the file
};

/// Writes all tensors of the checkpoint at `path` (a file, an index or a folder, as of
/// open_checkpoint()) to the one safetensors file `out`. Of each *.mlp.* projection gate and up,
/// its weight [H, D] and bias [H] if there is one, become gate_up_proj [2H, D] and [2H] packed as
/// `target` says; with null they become gate_proj and up_proj. The source may have them in either
/// form: its metadata, or their absence, say how it is packed. The metadata of `out` say how it is.
/// Bytes are moved and never converted, so any dtype goes, and blocks of columns, whose rows are
/// whole. Memory: the largest tensor or three times the largest pair. `out` may be the source: it
/// is replaced when it is whole.
///
/// Errors: those of reading; kInvalidArgument for a checkpoint without a pair, one of a pair
/// missing or of another shape or dtype, both forms at once, H that is no multiple of the block;
/// kUnsupported for parts of a projection other than weight and bias (scales, experts in one
/// tensor). Nothing is written then.
[[nodiscard]] Expected<PackReport> pack_checkpoint(const std::string& path, const std::string& out,
                                                   const GateUpPacking* target);

}  // namespace sluice::harness
