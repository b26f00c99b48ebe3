// SPDX-License-Identifier: Apache-2.0
// Device memory to time kernels on.
#pragma once

#include <memory>

#include "timing/arena.hpp"

namespace sluice::cuda {

/// Plain device memory and a stream of its own, which does not wait for the default one. Makes the
/// device current for the calling thread until the arena is gone. Errors: kDevice.
[[nodiscard]] Expected<std::unique_ptr<timing::Arena>> make_arena(int ordinal);

}  // namespace sluice::cuda
