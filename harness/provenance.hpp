// SPDX-License-Identifier: Apache-2.0
// Provenance: where a results file comes from, told without host names or absolute paths.
#pragma once

#include <string>

#include "harness/ceilings.hpp"
#include "harness/results.hpp"
#include "sluice/device.hpp"

namespace sluice::harness {

/// Fills a Meta for a run of this program on `device`; commit and dirty flag are those of the
/// build, wherever the program lies now.
[[nodiscard]] Meta make_meta(const Device& device, const Ceilings& ceilings, int argc,
                             const char* const* argv);

/// `argv` as one line, behind the environment's variables that stand for options: the program's
/// base name, paths inside the repository relative to it, other absolute paths as their base name,
/// words with blanks or shell characters quoted.
[[nodiscard]] std::string command_line(int argc, const char* const* argv,
                                       const std::string& repository);

/// The working tree of Sluice that holds the running program, or "".
[[nodiscard]] std::string repository_root();

}  // namespace sluice::harness
