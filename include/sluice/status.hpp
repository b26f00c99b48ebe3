// SPDX-License-Identifier: Apache-2.0
// Errors as values. Expected has std::expected's member names, so that it can be swapped for the
// standard type once every compiler of the build has it (g++ 12 and nvcc 13.0 lack it in C++20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "sluice/export.hpp"

namespace sluice {

/// What kind of failure an Error reports. The values are those of sluice_status in sluice.h.
enum class ErrorCode : std::int32_t {
  kInvalidArgument = 1,  ///< the caller broke a documented rule; the message names the operand
  kUnsupported = 2,      ///< legal, but no variant of this build takes it on this device
  kOutOfMemory = 3,      ///< host or device memory ran out
  kDevice = 4,           ///< the device or its driver failed; cuda_code holds its code
  kInternal = 5,         ///< a bug in Sluice
};

/// A failure: plain data of fixed size, so that reporting one never allocates.
struct Error {
  static constexpr std::size_t kMaxMessage = 320;

  ErrorCode code = ErrorCode::kInternal;
  int cuda_code = 0;            ///< cudaError_t or CUresult where code is kDevice, else 0
  char message[kMaxMessage]{};  ///< operand, what was given, what was wanted; zero-terminated

  [[nodiscard]] std::string_view text() const noexcept { return message; }
};

/// Builds an Error with a printf-style message, cut at Error::kMaxMessage - 1 characters.
[[nodiscard]] SLUICE_EXPORT __attribute__((format(printf, 2, 3))) Error make_error(
    ErrorCode code, const char* format, ...) noexcept;

/// A value of type T or an Error. Never empty.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Expected(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// The value. Calling it without one is undefined, as for std::expected::operator*.
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  /// The error. Calling it where there is a value is undefined.
  [[nodiscard]] const Error& error() const noexcept { return *std::get_if<1>(&state_); }

  /// The value, or throws std::bad_variant_access. Sugar for examples and tests.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT

  [[nodiscard]] bool has_value() const noexcept { return ok_; }
  explicit operator bool() const noexcept { return ok_; }
  [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
  Error error_{};
  bool ok_ = true;
};

}  // namespace sluice

/// Returns the error of `expr` (a Status or Expected) from the calling function, if it holds one.
#define SLUICE_TRY(expr)                                         \
  do {                                                           \
    if (auto sluice_try_result_ = (expr); !sluice_try_result_) { \
      return sluice_try_result_.error();                         \
    }                                                            \
  } while (false)
