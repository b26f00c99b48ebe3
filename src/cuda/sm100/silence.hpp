// SPDX-License-Identifier: Apache-2.0
// Before CUTLASS's headers: they write to std::cerr where a tensor map cannot be encoded, and a
// library prints nothing. To them these two are a stream without a buffer, which discards.
#pragma once

#include <iostream>

// NOTE: the standard reserves additions to std; a macro must name a member of it, since the headers
// qualify what they write to.
namespace std {
inline ostream sluice_silence{nullptr};
}  // namespace std
#define cerr sluice_silence
#define cout sluice_silence
