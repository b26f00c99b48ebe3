// SPDX-License-Identifier: Apache-2.0
// Do two operands whose extents overlap share a byte? For run(), which lets outputs lie in each
// other's gaps: pure arithmetic on layouts, without allocation.
#pragma once

#include <cstdint>

#include "sluice/operands.hpp"

namespace sluice::detail {

/// The smaller number of runs (rows, or their blocks of columns) of two operands up to which
/// share_no_byte() looks at each of them: some 10 ns a run, on every call of run().
inline constexpr std::int64_t kMostRuns = 16384;

/// Whether no byte belongs to both; `high` begins `distance_bytes` behind `low`, within its extent.
/// Both are validated. Exact where one of the two has at most kMostRuns runs; else true only for
/// operands of one Layout of which each fits into the gaps that repeat in the other.
[[nodiscard]] bool share_no_byte(const OperandSpec& low, const OperandSpec& high,
                                 std::int64_t distance_bytes) noexcept;

}  // namespace sluice::detail
