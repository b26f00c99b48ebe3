// SPDX-License-Identifier: Apache-2.0
// What a sluice_scheduler is, for the C ABI.
#pragma once

#include "sluice/scheduler.hpp"
#include "sluice/sluice.h"

struct sluice_scheduler {
  sluice::Scheduler inside;
};
