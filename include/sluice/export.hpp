// SPDX-License-Identifier: Apache-2.0
// Symbol visibility: everything is hidden but what carries SLUICE_EXPORT.
#pragma once

#if defined(SLUICE_STATIC)
#define SLUICE_EXPORT
#else
#define SLUICE_EXPORT __attribute__((visibility("default")))
#endif
