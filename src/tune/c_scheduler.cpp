// SPDX-License-Identifier: Apache-2.0
// The scheduler's part of sluice.h.
#include "tune/c_scheduler.hpp"

#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "core/c_convert.hpp"

namespace sluice {
namespace {

using c_api::check_size;
using c_api::convert;
using c_api::done;
using c_api::finish;
using c_api::invalid_null;
using c_api::read;
using c_api::report;
using c_api::to_cpp;
using c_api::write;

// Calls `body` and tells where host memory ran out; nothing else is thrown.
template <class Body>
sluice_status guarded(sluice_error* error, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(make_error(ErrorCode::kOutOfMemory, "scheduler: host memory ran out"), error);
  }
}

Expected<std::vector<Problem>> to_cpp_list(const sluice_problem* problems, size_t count) {
  std::vector<Problem> out;
  if (count == 0) return out;
  if (problems == nullptr) return invalid_null("problems");
  // The caller's elements are as large as its own version of the struct.
  const auto* bytes = reinterpret_cast<const unsigned char*>(problems);
  for (size_t i = 0; i < count; ++i) {
    const auto* element =
        reinterpret_cast<const sluice_problem*>(bytes + i * problems->struct_size);
    const auto problem = to_cpp(element);
    if (!problem) return problem.error();
    out.push_back(*problem);
  }
  return out;
}

Expected<TuneOptions> to_cpp_options(const sluice_tune_options* given) {
  TuneOptions out;
  if (given == nullptr) return out;
  const auto options = read(given, "options");
  if (!options) return options.error();
  if (options->max_seconds != 0) out.max_seconds = options->max_seconds;
  out.max_memory_bytes = options->max_memory_bytes;
  out.threads = options->threads;
  SLUICE_TRY(convert("again", options->again, &out.again));
  return out;
}

}  // namespace
}  // namespace sluice

using namespace sluice;  // NOLINT: the definitions below have C linkage

sluice_status sluice_scheduler_create(const sluice_device* device, sluice_scheduler** scheduler,
                                      sluice_error* error) {
  if (scheduler == nullptr) return report(invalid_null("scheduler"), error);
  const auto described = to_cpp(device);
  if (!described) return report(described.error(), error);
  return guarded(error, [&] {
    *scheduler = new sluice_scheduler{Scheduler(*described)};
    return done(error);
  });
}

void sluice_scheduler_destroy(sluice_scheduler* scheduler) { delete scheduler; }

sluice_status sluice_scheduler_tune(sluice_scheduler* scheduler, const sluice_problem* problems,
                                    size_t count, const sluice_tune_options* options,
                                    sluice_tune_report* out, size_t struct_size,
                                    sluice_error* error) {
  if (scheduler == nullptr) return report(invalid_null("scheduler"), error);
  return guarded(error, [&] {
    const auto list = to_cpp_list(problems, count);
    if (!list) return report(list.error(), error);
    const auto wishes = to_cpp_options(options);
    if (!wishes) return report(wishes.error(), error);
    if (out != nullptr) {
      const Status fits = check_size<sluice_tune_report>(struct_size, "report");
      if (!fits) return finish(fits, error);
    }
    const auto outcomes = scheduler->inside.tune(*list, *wishes);
    if (!outcomes) return report(outcomes.error(), error);
    if (out == nullptr) return done(error);
    sluice_tune_report counts{};
    for (const TuneOutcome& outcome : *outcomes) {
      int64_t* const count_of[] = {&counts.measured, &counts.known, &counts.one_candidate,
                                   &counts.no_time};
      ++*count_of[static_cast<std::size_t>(outcome.state)];
    }
    return finish(write(counts, out, struct_size, "report"), error);
  });
}

sluice_status sluice_scheduler_load(sluice_scheduler* scheduler, const char* path,
                                    sluice_load_report* out, size_t struct_size,
                                    sluice_error* error) {
  if (scheduler == nullptr) return report(invalid_null("scheduler"), error);
  return guarded(error, [&] {
    if (out != nullptr) {
      const Status fits = check_size<sluice_load_report>(struct_size, "report");
      if (!fits) return finish(fits, error);
    }
    const auto loaded = scheduler->inside.load(path);
    if (!loaded) return report(loaded.error(), error);
    if (out == nullptr) return done(error);
    sluice_load_report counts{};
    counts.loaded = static_cast<int64_t>(loaded->loaded);
    counts.foreign = static_cast<int64_t>(loaded->foreign);
    counts.damaged = static_cast<int64_t>(loaded->damaged);
    std::snprintf(counts.message, sizeof(counts.message), "%s", loaded->message.c_str());
    return finish(write(counts, out, struct_size, "report"), error);
  });
}

sluice_status sluice_scheduler_save(const sluice_scheduler* scheduler, const char* path,
                                    sluice_error* error) {
  if (scheduler == nullptr) return report(invalid_null("scheduler"), error);
  return guarded(error, [&] { return finish(scheduler->inside.save(path), error); });
}

int32_t sluice_scheduler_find(void* scheduler, const sluice_problem* problem,
                              const sluice_device* device, sluice_tune_choice* choice) {
  const auto cpp_problem = to_cpp(problem);
  const auto cpp_device = to_cpp(device);
  if (scheduler == nullptr || choice == nullptr || !cpp_problem || !cpp_device) return 0;
  if (!validate(*cpp_problem)) return 0;
  const auto found =
      static_cast<const sluice_scheduler*>(scheduler)->inside.find(*cpp_problem, *cpp_device);
  if (!found) return 0;
  std::memcpy(choice->variant, found->variant, sizeof(choice->variant));
  std::memcpy(choice->config, found->config, sizeof(choice->config));
  return 1;
}
