// SPDX-License-Identifier: Apache-2.0
// What Highway compiles for: AVX-512, AVX2 and plain C++, and nothing else. Include before any
// Highway header, in every file of the engine that includes one.
//
// Highway's own dispatch is never used: it lives in libhwy.so, and the engine chooses by the plan.
#pragma once

// NOTE: Highway 1.0.3 drops EMU128 for GCC before 12.3 over a miscompiled 16-bit MulHigh
// (GCC bug 106322). No kernel here multiplies 16-bit lanes.
#define HWY_BROKEN_EMU128 0
#define HWY_BASELINE_TARGETS HWY_EMU128
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
// Debug checks would call hwy::Abort, which is in libhwy.so and prints.
#define HWY_IS_DEBUG_BUILD 0
