// SPDX-License-Identifier: Apache-2.0
// Floats to GGUF's blocks: test data are quantised as the converters of models do it.
#pragma once

#include <span>

#include "sluice/types.hpp"

namespace sluice::harness {

/// The values of one block, in column order.
using BlockValues = std::span<const float, kBlockElems>;

/// Writes the block of `dtype` at `block` (any alignment) that lies nearest to `values` by the
/// format's own rule: the scale takes the largest magnitude (q8_0: to 127; q4_0: to -8, with its
/// sign) or the range (q4_1: to 15, from the minimum), is rounded to fp16 when it is stored, and
/// values are rounded to its steps before. Values are finite.
/// Source: quantize_row_{q8_0,q4_0,q4_1}_ref of ggml-quants.c (llama.cpp).
void quantise_block(DType dtype, BlockValues values, void* block);

/// Writes the block that holds integers of at most 1 in magnitude exactly: scale 2^-shift, which is
/// at least 1/4, so that a kernel that takes another block's scale is seen.
void encode_units(DType dtype, BlockValues values, int shift, void* block);

/// Replaces the scale of a block.
void set_block_scale(void* block, float scale);

}  // namespace sluice::harness
