// SPDX-License-Identifier: Apache-2.0
// What a Hopper SM gives a CTA.
#pragma once

namespace sluice::cuda::sm90 {

inline constexpr int kMaxSmemBytes = 227 * 1024;  ///< shared memory of a CTA

}  // namespace sluice::cuda::sm90
