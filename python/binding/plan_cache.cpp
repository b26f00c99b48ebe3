// SPDX-License-Identifier: Apache-2.0
#include "plan_cache.hpp"

#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "errors.hpp"

namespace sluice_binding {
namespace {

// 9 KiB each: 36 MiB at most. A server meets a few hundred token counts; a program that meets more
// starts over.
constexpr std::size_t kMaxPlans = 4096;

struct Key {
  sluice_problem problem{};
  Place place;
  std::int32_t threads = 0;

  friend bool operator==(const Key& a, const Key& b) {
    return std::memcmp(&a.problem, &b.problem, sizeof(a.problem)) == 0 && a.place == b.place &&
           a.threads == b.threads;
  }
};
static_assert(sizeof(sluice_problem) % sizeof(std::uint64_t) == 0, "hashed by words");

struct Hash {
  std::size_t operator()(const Key& key) const noexcept {
    // FNV-1a over 64-bit words.
    std::uint64_t hash = 0xcbf29ce484222325U;
    const auto mix = [&](std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3U; };
    const auto* bytes = reinterpret_cast<const char*>(&key.problem);
    for (std::size_t i = 0; i < sizeof(key.problem); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, sizeof(word));
      mix(word);
    }
    mix(static_cast<std::uint64_t>(key.place.index) * 2 + (key.place.cuda ? 1 : 0));
    mix(static_cast<std::uint64_t>(key.threads));
    return hash ^ hash >> 32;  // the multiplication leaves the low bits weak
  }
};

std::shared_ptr<const Prepared> make(const Key& key, sluice_parallel_for parallel_for) {
  auto made = std::make_shared<Prepared>();
  sluice_error error{};
  sluice_options options{};
  options.struct_size = sizeof(options);
  options.threads = key.threads;
  options.parallel_for = parallel_for;
  options.tune_find = sluice_scheduler_find;
  options.tune_user = scheduler_of(key.place);
  check(sluice_plan_init(&made->plan, &key.problem, &device_of(key.place), &options, &error),
        error);
  made->workspace_bytes = sluice_plan_workspace_bytes(&made->plan);
  for (int i = 0; i < sluice::kOperandCount; ++i) {
    sluice_operand_spec& spec = made->operands[static_cast<std::size_t>(i)];
    check(sluice_operand_query(&key.problem, i, &spec, sizeof(spec), &error), error);
  }
  return made;
}

}  // namespace

const Prepared& prepare(const sluice_problem& problem, const Place& place, std::int32_t threads,
                        sluice_parallel_for parallel_for) {
  static std::shared_mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Prepared>, Hash> plans;
  // A model's layers ask for one plan again and again: to compare is cheaper than to hash and lock.
  thread_local Key last_key;
  thread_local std::shared_ptr<const Prepared> last;
  const Key key{problem, place, threads};
  if (last && last_key == key) return *last;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = plans.find(key); found != plans.end())
      last = found->second;
    else
      last.reset();
  }
  if (!last) {
    auto made = make(key, parallel_for);
    const std::unique_lock lock(mutex);
    if (plans.size() >= kMaxPlans) plans.clear();
    plans.insert_or_assign(key, made);
    last = std::move(made);
  }
  last_key = key;
  return *last;
}

}  // namespace sluice_binding
