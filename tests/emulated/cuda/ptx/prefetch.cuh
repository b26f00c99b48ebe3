// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::cuda::ptx {

inline void prefetch_l2(const void* /*address*/) {}

}  // namespace sluice::cuda::ptx
