// SPDX-License-Identifier: Apache-2.0
// The whole C++ API of Sluice.
#pragma once

#include "sluice/device.hpp"     // IWYU pragma: export
#include "sluice/operands.hpp"   // IWYU pragma: export
#include "sluice/pack.hpp"       // IWYU pragma: export
#include "sluice/plan.hpp"       // IWYU pragma: export
#include "sluice/problem.hpp"    // IWYU pragma: export
#include "sluice/scheduler.hpp"  // IWYU pragma: export
#include "sluice/status.hpp"     // IWYU pragma: export
#include "sluice/types.hpp"      // IWYU pragma: export
#include "sluice/version.hpp"    // IWYU pragma: export
