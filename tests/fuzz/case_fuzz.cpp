// SPDX-License-Identifier: Apache-2.0
// parse_case(): any text gives a valid problem whose own text is read as the same case, or an error
// with a message.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "harness/case.hpp"
#include "sluice/operands.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = sluice::harness::parse_case(text);
  if (!parsed) {
    if (parsed.error().text().empty()) std::abort();
    return 0;
  }
  if (!sluice::validate(parsed->problem)) std::abort();
  const std::string own = sluice::harness::format_case(*parsed);
  const auto again = sluice::harness::parse_case(own);
  if (!again || !(*again == *parsed) || sluice::harness::format_case(*again) != own) std::abort();
  return 0;
}
