// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include <array>
#include <cstdlib>
#include <mutex>

#include "errors.hpp"

namespace sluice_binding {
namespace {

// Never destroyed: plans are made as long as the process runs.
struct Described {
  std::once_flag once;
  sluice_device device{};
  sluice_scheduler* scheduler = nullptr;
};

const Described& described(const Place& place) {
  static std::array<Described, kMaxDevices + 1> table;
  Described& entry = table[place.cuda ? static_cast<std::size_t>(place.index) + 1 : 0];
  std::call_once(entry.once, [&] {
    sluice_error error{};
    check(place.cuda ? sluice_cuda_device(place.index, &entry.device, sizeof(entry.device), &error)
                     : sluice_cpu_device(&entry.device, sizeof(entry.device), &error),
          error);
    if (!place.cuda) {
      check(sluice_limit_simd(&entry.device, std::getenv("SLUICE_MAX_SIMD"), &error), error);
    }
    if (entry.scheduler == nullptr) {
      check(sluice_scheduler_create(&entry.device, &entry.scheduler, &error), error);
    }
    if (const char* const path = std::getenv("SLUICE_TUNE_CACHE"); path != nullptr && *path != 0) {
      check(sluice_scheduler_load(entry.scheduler, path, nullptr, 0, &error), error);
    }
  });
  return entry;
}

}  // namespace

const sluice_device& device_of(const Place& place) { return described(place).device; }

sluice_scheduler* scheduler_of(const Place& place) { return described(place).scheduler; }

}  // namespace sluice_binding
