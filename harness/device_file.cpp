// SPDX-License-Identifier: Apache-2.0
#include "harness/device_file.hpp"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/file_image.hpp"

namespace sluice::harness {
namespace {

using nlohmann::json;

Error bad(const char* field, const char* wanted) {
  return make_error(ErrorCode::kInvalidArgument, "device: %s: wanted %s", field, wanted);
}

// Takes the integer `field` out of a description; an optional one may be absent.
template <class T>
Status take(json& given, const char* field, bool required, T& out) {
  const auto found = given.find(field);
  if (found == given.end()) return required ? bad(field, "a number") : Status{};
  if (!found->is_number_integer() && !found->is_number_unsigned()) return bad(field, "an integer");
  const bool fits = !found->is_number_unsigned() ||
                    found->template get<std::uint64_t>() <=
                        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t value = fits ? found->template get<std::int64_t>() : -1;
  if (value < 0 || value > std::int64_t{std::numeric_limits<T>::max()}) {
    return bad(field, "a number that is not negative and fits");
  }
  out = static_cast<T>(value);
  given.erase(found);
  return {};
}

}  // namespace

Expected<Device> parse_device(std::string_view text) {
  json given = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) return bad("file", "one JSON object");
  if (given.value("backend", json()) != "cuda") return bad("backend", "\"cuda\"");
  const auto name = given.find("name");
  if (name == given.end() || !name->is_string()) return bad("name", "a text");
  Device device;
  device.backend = Backend::kCuda;
  std::snprintf(device.name, sizeof(device.name), "%s",
                name->get_ref<const std::string&>().c_str());
  given.erase("name");
  given.erase("backend");
  SLUICE_TRY(take(given, "compute_capability", true, device.compute_capability));
  SLUICE_TRY(take(given, "sm_count", true, device.sm_count));
  SLUICE_TRY(take(given, "smem_per_block_bytes", true, device.smem_per_block_bytes));
  SLUICE_TRY(take(given, "l2_bytes", true, device.l2_bytes));
  SLUICE_TRY(take(given, "memory_bytes", true, device.memory_bytes));
  SLUICE_TRY(take(given, "memory_bytes_per_second", false, device.memory_bytes_per_second));
  SLUICE_TRY(take(given, "cublaslt_version", false, device.cublaslt_version));
  SLUICE_TRY(take(given, "driver_version", false, device.driver_version));
  SLUICE_TRY(take(given, "runtime_version", false, device.runtime_version));
  if (!given.empty()) {  // an optional field, misspelt
    return bad(given.begin().key().c_str(), "a field that is known");
  }
  if (device.sm_count < 1) return bad("sm_count", "at least 1");
  device.arch = arch_of(device.compute_capability);
  if (device.arch == Arch::kNone) return bad("compute_capability", "75 or more");
  device.cooperative_launch = true;  // every GPU from 6.0 has it
  return device;
}

Expected<Device> read_device(const std::string& path) {
  const auto file = read_whole(path);
  if (!file) return file.error();
  auto device = parse_device(file->text());
  if (!device) {
    return make_error(device.error().code, "%s: %s", path.c_str(), device.error().message);
  }
  return device;
}

}  // namespace sluice::harness
