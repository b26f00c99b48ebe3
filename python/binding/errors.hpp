// SPDX-License-Identifier: Apache-2.0
// The library's errors as C++'s. Torch's stable ABI makes std::invalid_argument a ValueError,
// std::bad_alloc a MemoryError and everything else a RuntimeError; XLA has codes for them.
#pragma once

#include <sluice/sluice.h>

#include <cstdarg>
#include <cstdio>
#include <new>
#include <stdexcept>

namespace sluice_binding {

/// SLUICE_UNSUPPORTED: legal, and nothing in this build takes it.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws what `error` says; nothing for SLUICE_OK.
inline void check(sluice_status status, const sluice_error& error) {
  switch (status) {
    case SLUICE_OK:
      return;
    case SLUICE_INVALID_ARGUMENT:
      throw std::invalid_argument(error.message);
    case SLUICE_UNSUPPORTED:
      throw Unsupported(error.message);
    case SLUICE_OUT_OF_MEMORY:
      throw std::bad_alloc();
    default:
      throw std::runtime_error(error.message);
  }
}

/// Throws std::invalid_argument, "name: " and the text.
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void refuse(const char* name,
                                                                      const char* format, ...) {
  char text[256];
  char message[320];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  std::snprintf(message, sizeof(message), "%s: %s", name, text);
  throw std::invalid_argument(message);
}

}  // namespace sluice_binding
