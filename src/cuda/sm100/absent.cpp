// SPDX-License-Identifier: Apache-2.0
// The GEMMs of a build without CUTLASS, where supports() refuses every problem before.
#include "cuda/sm100/gemm.hpp"

namespace sluice::cuda::sm100 {
namespace {

Status absent() noexcept {
  return make_error(ErrorCode::kUnsupported, "cuda.sm100: built without SLUICE_CUTLASS");
}

}  // namespace

Status plain(const GemmParams&, const Device&, Stream) noexcept { return absent(); }
Status gated_rows(const GemmParams&, const Device&, Stream) noexcept { return absent(); }
Status gated_blocks(const GemmParams&, const Device&, Stream) noexcept { return absent(); }

}  // namespace sluice::cuda::sm100
