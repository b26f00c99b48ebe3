// SPDX-License-Identifier: Apache-2.0
// Assertions on errors: the code and what the message must say.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sluice/status.hpp"

namespace sluice::test {

/// Passes where `result` (a Status or Expected) is an error of `code` whose message contains
/// `text`.
template <class Result>
[[nodiscard]] testing::AssertionResult fails(const Result& result, ErrorCode code,
                                             const std::string& text) {
  if (result.has_value()) return testing::AssertionFailure() << "no error, wanted: " << text;
  const std::string message(result.error().text());
  if (result.error().code != code) {
    return testing::AssertionFailure()
           << "code " << static_cast<int>(result.error().code) << ": " << message;
  }
  if (message.find(text) == std::string::npos) {
    return testing::AssertionFailure() << "got \"" << message << "\", wanted \"" << text << "\"";
  }
  return testing::AssertionSuccess();
}

template <class Result>
[[nodiscard]] testing::AssertionResult refuses(const Result& result, const std::string& text) {
  return fails(result, ErrorCode::kInvalidArgument, text);
}

template <class Result>
[[nodiscard]] testing::AssertionResult succeeds(const Result& result) {
  if (result.has_value()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << result.error().message;
}

}  // namespace sluice::test
