// SPDX-License-Identifier: Apache-2.0
// Error construction without allocation.
#include "sluice/status.hpp"

#include <cstdarg>
#include <cstdio>

#include "core/kernel.hpp"

namespace sluice {

Error make_error(ErrorCode code, const char* format, ...) noexcept {
  Error error;
  error.code = code;
  std::va_list args;
  va_start(args, format);
  std::vsnprintf(error.message, sizeof(error.message), format, args);
  va_end(args);
  return error;
}

namespace detail {

Reason refuse(const char* format, ...) noexcept {
  Reason reason;
  std::va_list args;
  va_start(args, format);
  std::vsnprintf(reason.text, sizeof(reason.text), format, args);
  va_end(args);
  return reason;
}

}  // namespace detail
}  // namespace sluice
