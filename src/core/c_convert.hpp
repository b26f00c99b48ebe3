// SPDX-License-Identifier: Apache-2.0
// The structs of sluice.h to and from those of the C++ API, with the versioning of docs/abi.md:
// they are read and written up to the smaller of the caller's and the library's size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sluice/sluice.h"
#include "sluice/sluice.hpp"
#include "sluice/to_c.hpp"

namespace sluice::c_api {

[[nodiscard]] inline Error invalid_null(const char* name) noexcept {
  return make_error(ErrorCode::kInvalidArgument, "%s: got null", name);
}

// Writes an error, or that there is none, to the caller's, which may be null.
inline sluice_status report(const Error& failure, sluice_error* error) noexcept {
  const auto code = static_cast<sluice_status>(failure.code);
  if (error == nullptr) return code;
  error->code = code;
  error->cuda_code = failure.cuda_code;
  std::memcpy(error->message, failure.message, sizeof(error->message));
  return code;
}

inline sluice_status done(sluice_error* error) noexcept {
  if (error != nullptr) *error = sluice_error{};
  return SLUICE_OK;
}

inline sluice_status finish(const Status& status, sluice_error* error) noexcept {
  return status ? done(error) : report(status.error(), error);
}

/// Bytes of the first version of a struct with struct_size. One that grows within a SONAME has a
/// specialisation, which names its first new member.
template <class T>
inline constexpr std::size_t kFirstBytes = sizeof(T);
template <>
inline constexpr std::size_t kFirstBytes<sluice_problem> = offsetof(sluice_problem, reduce);
template <>
inline constexpr std::size_t kFirstBytes<sluice_operands> = offsetof(sluice_operands,
                                                                     next_norm_weight);
template <>
inline constexpr std::size_t kFirstBytes<sluice_run_args> = offsetof(sluice_run_args, peers);

// Whether a caller's struct has room for the first version of T.
template <class T>
[[nodiscard]] Status check_size(std::size_t size, const char* name) {
  if (size >= kFirstBytes<T>) return {};
  return make_error(ErrorCode::kInvalidArgument, "%s: struct_size is %zu, wanted at least %zu",
                    name, size, kFirstBytes<T>);
}

// Reads a caller's struct of an older, equal or newer version. Members that this library does not
// know must be zero, which every later version will define as "as before"; so are those that the
// caller does not have.
template <class T>
[[nodiscard]] Expected<T> read(const T* given, const char* name) {
  if (given == nullptr) return invalid_null(name);
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  SLUICE_TRY(check_size<T>(size, name));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const auto is_set = [](unsigned char byte) { return byte != 0; };
  const std::size_t known = std::min(size, sizeof(T));
  if (std::any_of(bytes + known, bytes + size, is_set)) {
    return make_error(ErrorCode::kUnsupported,
                      "%s: sets a member that Sluice %s does not know (struct_size %zu, known %zu)",
                      name, SLUICE_VERSION, size, sizeof(T));
  }
  T value{};
  std::memcpy(&value, given, known);
  return value;
}

// Writes a struct to a caller whose version of it has `size` bytes: of an older one what it has, of
// a newer one zeros behind.
template <class T>
Status write(T value, T* out, std::size_t size, const char* name) {
  if (out == nullptr) return invalid_null(name);
  SLUICE_TRY(check_size<T>(size, name));
  const std::size_t known = std::min(size, sizeof(T));
  value.struct_size = size;
  std::memcpy(out, &value, known);
  std::memset(reinterpret_cast<unsigned char*>(out) + known, 0, size - known);
  return {};
}

// Converts an enumerator; int32 holds values that the one-byte enums would cut.
template <class E>
Status convert(const char* name, std::int32_t value, int count, E* out) {
  if (value < 0 || value >= count) {
    return make_error(ErrorCode::kInvalidArgument, "%s: got %d, wanted 0 to %d", name, value,
                      count - 1);
  }
  *out = static_cast<E>(value);
  return {};
}

// The same for a flag: memory that nobody initialised seldom holds 0 or 1 in all of them.
inline Status convert(const char* name, std::int32_t value, bool* out) {
  return convert(name, value, 2, out);
}

[[nodiscard]] Expected<Problem> to_cpp(const sluice_problem* given) noexcept;
[[nodiscard]] Expected<Device> to_cpp(const sluice_device* given) noexcept;
/// struct_size is left to write().
[[nodiscard]] sluice_operand_spec to_c(const OperandSpec& s) noexcept;
[[nodiscard]] Expected<Operands> to_cpp(const sluice_operands* given) noexcept;
[[nodiscard]] Expected<Peers> to_cpp(const sluice_peers* given) noexcept;
[[nodiscard]] Expected<Packing> to_cpp(const sluice_packing* given) noexcept;

}  // namespace sluice::c_api
