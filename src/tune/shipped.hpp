// SPDX-License-Identifier: Apache-2.0
// Tables of measured devices that are compiled into the library: data/tune/*.tune.
#pragma once

#include <functional>
#include <string_view>

#include "sluice/device.hpp"
#include "tune/table.hpp"

namespace sluice::tune {

/// Adds the entries of a table's text that are of this kind of device, whatever driver and build
/// measured them: a table is data that was reviewed, and plan() checks each choice. One config is
/// left to its variant: an algorithm behind the first of cuBLASLt's heuristic, which another
/// version of that library may rank differently. Returns how many. A text without the header gives
/// none.
std::size_t add_shipped(std::string_view text, const Device& device, Table& table);

/// Calls `use(text)` for each table of this build.
void for_each_shipped(const std::function<void(std::string_view)>& use);

}  // namespace sluice::tune
