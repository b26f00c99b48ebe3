// SPDX-License-Identifier: Apache-2.0
// sluice.h on top of the C++ API: checks what C's types let through, converts, calls.
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <type_traits>

#include "core/c_convert.hpp"
#include "core/choices.hpp"
#include "sluice/sluice.h"
#include "sluice/sluice.hpp"
#include "tune/c_scheduler.hpp"

namespace sluice {
namespace {

using c_api::convert;
using c_api::done;
using c_api::finish;
using c_api::invalid_null;
using c_api::read;
using c_api::report;
using c_api::to_c;
using c_api::to_cpp;
using c_api::write;

// What a sluice_plan's memory holds. The mark tells a plan from memory that never was one.
struct StoredPlan {
  std::uint64_t mark = 0;
  Plan plan{};
  char config[kMaxConfig]{};
};
static_assert(SLUICE_WORKSPACE_HEADER_BYTES == kWorkspaceHeaderBytes);
static_assert(sizeof(StoredPlan) <= sizeof(sluice_plan) &&
              alignof(StoredPlan) <= alignof(sluice_plan) &&
              std::is_trivially_copyable_v<StoredPlan>);
constexpr std::uint64_t kPlanMark = 0x534c554943450002;  // "SLUICE", layout 2

const StoredPlan* stored(const sluice_plan* plan) {
  const auto* inside = reinterpret_cast<const StoredPlan*>(plan);
  return plan != nullptr && plan->opaque[0] == kPlanMark ? inside : nullptr;
}

// The caller's callback as a TuneTable; lives for one call.
class CallbackTable final : public TuneTable {
 public:
  CallbackTable(const sluice_options& options, const sluice_problem* problem,
                const sluice_device* device)
      : find_(options.tune_find), user_(options.tune_user), problem_(problem), device_(device) {}
  [[nodiscard]] std::optional<TuneChoice> find(const Problem& problem,
                                               const Device& device) const noexcept override {
    if (find_ == sluice_scheduler_find && user_ != nullptr) {
      return static_cast<const sluice_scheduler*>(user_)->inside.find(problem, device);
    }
    sluice_device planned = *device_;
    planned.struct_size = sizeof(planned);
    planned.threads = device.threads;
    sluice_tune_choice choice{};
    if (find_(user_, problem_, &planned, &choice) == 0) return std::nullopt;
    TuneChoice out;
    std::memcpy(out.variant, choice.variant, sizeof(out.variant));
    std::memcpy(out.config, choice.config, sizeof(out.config));
    return out;
  }

 private:
  sluice_tune_find find_;
  void* user_;
  const sluice_problem* problem_;
  const sluice_device* device_;
};

// The caller's callback as a Log; lives for one call.
class CallbackLog final : public Log {
 public:
  explicit CallbackLog(const sluice_options& options)
      : write_(options.log_write), user_(options.log_user) {}
  void write(const char* line) const noexcept override { write_(user_, line); }

 private:
  sluice_log_write write_;
  void* user_;
};

// Converts the three arguments of plan and explain and hands them to `use`.
template <class Use>
sluice_status with_arguments(const sluice_problem* problem, const sluice_device* device,
                             const sluice_options* given, sluice_error* error, const Use& use) {
  const auto cpp_problem = to_cpp(problem);
  if (!cpp_problem) return report(cpp_problem.error(), error);
  const auto cpp_device = to_cpp(device);
  if (!cpp_device) return report(cpp_device.error(), error);
  sluice_options options{};
  if (given != nullptr) {
    const auto read_options = read(given, "options");
    if (!read_options) return report(read_options.error(), error);
    options = *read_options;
  }
  bool experimental = false;
  if (const Status ok = convert("options.experimental", options.experimental, &experimental); !ok) {
    return finish(ok, error);
  }
  const CallbackTable table(options, problem, device);
  const CallbackLog log(options);
  return use(*cpp_problem, *cpp_device,
             Options{.variant = options.variant,
                     .config = options.config,
                     .tune = options.tune_find == nullptr ? nullptr : &table,
                     .threads = options.threads,
                     .log = options.log_write == nullptr ? nullptr : &log,
                     .executor = {options.parallel_for, options.parallel_user},
                     .experimental = experimental});
}

std::string explanation_text(const Explanation& why) {
  std::string text;
  for (const Refusal& v : why.variants) {
    text += v.variant;
    if (v.chosen) {
      text += ": chosen, config " + why.config + " (" + to_string(why.source) +
              (why.entry.empty() ? "" : ", " + why.entry) + ")\n";
    } else if (!v.reason.empty()) {
      text += ": refused: " + v.reason + "\n";
    } else {
      text += ": fits, not chosen\n";
    }
  }
  if (!why.reason.empty()) text += "  recipe: " + why.reason + "\n";
  for (const ExplainedStep& step : why.steps) {
    std::string blocks = step.blocks.empty() ? "" : "; " + step.blocks;
    for (std::size_t at = 0; (at = blocks.find('\n', at)) != std::string::npos; at += 2) {
      blocks.replace(at, 1, "; ");
    }
    text += "  " + step.name + ": " + step.kernel + (step.config.empty() ? "" : " " + step.config) +
            blocks + "\n";
  }
  if (why.error) text += std::string(why.error->message) + "\n";
  return text;
}

sluice_status interleaved(Layout (*make)(std::int64_t, std::int64_t, DType) noexcept, int dtypes,
                          std::int64_t block, std::int64_t width, sluice_dtype dtype,
                          sluice_layout* layout, sluice_error* error) {
  DType type{};
  if (const Status ok = convert("dtype", dtype, dtypes, &type); !ok) return finish(ok, error);
  if (layout == nullptr) return report(invalid_null("layout"), error);
  if (block < 1 || width < 0) {
    return report(make_error(ErrorCode::kInvalidArgument,
                             "block: got %lld and a width of %lld, wanted at least 1 and 0",
                             static_cast<long long>(block), static_cast<long long>(width)),
                  error);
  }
  *layout = std::bit_cast<sluice_layout>(make(block, width, type));
  return done(error);
}

template <class E>
const char* name_of(std::int32_t value, int count) {
  return value < 0 || value >= count ? nullptr : to_string(static_cast<E>(value));
}

}  // namespace
}  // namespace sluice

using namespace sluice;  // NOLINT: the definitions below have C linkage

const char* sluice_version() { return SLUICE_VERSION; }

const char* sluice_dtype_name(sluice_dtype dtype) { return name_of<DType>(dtype, kDTypeCount); }

const char* sluice_op_name(sluice_op op) { return name_of<Op>(op, kOpCount); }

const char* sluice_activation_name(sluice_activation activation) {
  return name_of<Activation>(activation, kActivationCount);
}

sluice_status sluice_problem_init(sluice_problem* problem, size_t struct_size,
                                  sluice_error* error) {
  return finish(write(to_c(Problem{}), problem, struct_size, "problem"), error);
}

sluice_status sluice_interleaved_rows(int64_t block, int64_t d, sluice_dtype dtype,
                                      sluice_layout* layout, sluice_error* error) {
  return interleaved(interleaved_rows, kDTypeCount, block, d, dtype, layout, error);
}

sluice_status sluice_interleaved_cols(int64_t block, int64_t h, sluice_dtype dtype,
                                      sluice_layout* layout, sluice_error* error) {
  return interleaved(interleaved_cols, kFloatDTypeCount, block, h, dtype, layout, error);
}

sluice_status sluice_pack_gate_up(const sluice_packing* packing, const void* gate, const void* up,
                                  void* packed, sluice_error* error) {
  const auto how = to_cpp(packing);
  return how ? finish(pack_gate_up(*how, gate, up, packed), error) : report(how.error(), error);
}

sluice_status sluice_unpack_gate_up(const sluice_packing* packing, const void* packed, void* gate,
                                    void* up, sluice_error* error) {
  const auto how = to_cpp(packing);
  return how ? finish(unpack_gate_up(*how, packed, gate, up), error) : report(how.error(), error);
}

sluice_status sluice_cpu_device(sluice_device* device, size_t struct_size, sluice_error* error) {
  return finish(write(to_c(cpu_device()), device, struct_size, "device"), error);
}

sluice_status sluice_limit_simd(sluice_device* device, const char* name, sluice_error* error) {
  const auto described = to_cpp(device);
  if (!described) return report(described.error(), error);
  Device limited = *described;
  const Status ok = limit_simd(limited, name);
  if (ok) device->simd_targets = limited.simd_targets;
  return finish(ok, error);
}

int32_t sluice_cuda_device_count() { return cuda_device_count(); }

sluice_status sluice_cuda_device(int32_t ordinal, sluice_device* device, size_t struct_size,
                                 sluice_error* error) {
  if (device == nullptr) return report(invalid_null("device"), error);
  const auto found = cuda_device(ordinal);
  if (!found) return report(found.error(), error);
  return finish(write(to_c(*found), device, struct_size, "device"), error);
}

const char* sluice_variant_name(sluice_backend backend, int32_t index) {
  if (index < 0) return nullptr;
  for (const detail::Recipe& v : detail::recipes()) {
    if (backend != static_cast<sluice_backend>(v.backend)) continue;
    if (index-- == 0) return v.name;
  }
  return nullptr;
}

sluice_status sluice_validate(const sluice_problem* problem, sluice_error* error) {
  const auto cpp_problem = to_cpp(problem);
  if (!cpp_problem) return report(cpp_problem.error(), error);
  return finish(validate(*cpp_problem), error);
}

sluice_status sluice_operand_query(const sluice_problem* problem, int32_t index,
                                   sluice_operand_spec* spec, size_t struct_size,
                                   sluice_error* error) {
  const auto cpp_problem = to_cpp(problem);
  if (!cpp_problem) return report(cpp_problem.error(), error);
  if (const Status ok = validate(*cpp_problem); !ok) return finish(ok, error);
  Operand id{};
  if (const Status ok = convert("index", index, kOperandCount, &id); !ok) return finish(ok, error);
  return finish(write(to_c(operand_spec(*cpp_problem, id)), spec, struct_size, "spec"), error);
}

sluice_status sluice_cost(const sluice_problem* problem, double* flops_out, double* bytes,
                          sluice_error* error) {
  const auto cpp_problem = to_cpp(problem);
  if (!cpp_problem) return report(cpp_problem.error(), error);
  if (const Status ok = validate(*cpp_problem); !ok) return finish(ok, error);
  if (flops_out != nullptr) *flops_out = flops(*cpp_problem);
  if (bytes != nullptr) *bytes = bytes_moved(*cpp_problem);
  return done(error);
}

sluice_status sluice_plan_init(sluice_plan* out, const sluice_problem* problem,
                               const sluice_device* device, const sluice_options* options,
                               sluice_error* error) {
  if (out == nullptr) return report(invalid_null("plan"), error);
  return with_arguments(
      problem, device, options, error,
      [&](const Problem& p, const Device& d, const Options& wishes) {
        const auto made = plan(p, d, wishes);
        if (!made) return report(made.error(), error);
        *out = sluice_plan{};
        auto* const inside = ::new (static_cast<void*>(out)) StoredPlan{kPlanMark, *made, {}};
        detail::config_text(p.op, detail::steps_of(*made), inside->config);
        return done(error);
      });
}

size_t sluice_plan_workspace_bytes(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? 0 : inside->plan.workspace_bytes;
}

size_t sluice_plan_peer_bytes(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? 0 : inside->plan.peer_bytes;
}

const char* sluice_plan_variant(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? "" : inside->plan.variant_name();
}

const char* sluice_plan_config(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? "" : inside->config;
}

sluice_choice_source sluice_plan_source(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? -1 : static_cast<sluice_choice_source>(inside->plan.source);
}

int32_t sluice_plan_threads(const sluice_plan* plan) {
  const StoredPlan* inside = stored(plan);
  return inside == nullptr ? -1 : inside->plan.threads;
}

sluice_status sluice_run(const sluice_plan* plan, const sluice_run_args* args,
                         sluice_error* error) {
  if (plan == nullptr) return report(invalid_null("plan"), error);
  const StoredPlan* inside = stored(plan);
  if (inside == nullptr) {
    return report(make_error(ErrorCode::kInvalidArgument,
                             "plan: got memory that sluice_plan_init did not fill"),
                  error);
  }
  const auto given = read(args, "args");
  if (!given) return report(given.error(), error);
  const auto operands = to_cpp(given->operands);
  if (!operands) return report(operands.error(), error);
  const sluice_workspace& w = given->workspace;
  std::optional<Peers> peers;
  if (inside->plan.peer_bytes > 0 && given->peers != nullptr) {
    const auto converted = to_cpp(given->peers);
    if (!converted) return report(converted.error(), error);
    peers = *converted;
  }
  return finish(run(inside->plan, *operands, {w.data, w.bytes, w.header}, given->stream,
                    peers ? &*peers : nullptr),
                error);
}

sluice_status sluice_workspace_init(sluice_workspace workspace, const sluice_device* device,
                                    void* stream, sluice_error* error) {
  const auto cpp_device = to_cpp(device);
  if (!cpp_device) return report(cpp_device.error(), error);
  return finish(
      workspace_init({workspace.data, workspace.bytes, workspace.header}, *cpp_device, stream),
      error);
}

sluice_status sluice_explain(const sluice_problem* problem, const sluice_device* device,
                             const sluice_options* options, char* buffer, size_t bytes,
                             size_t* needed, sluice_error* error) {
  if (buffer == nullptr && bytes > 0) return report(invalid_null("buffer"), error);
  return with_arguments(
      problem, device, options, error,
      [&](const Problem& p, const Device& d, const Options& wishes) {
        try {
          const std::string text = explanation_text(explain(p, d, wishes));
          if (needed != nullptr) *needed = text.size() + 1;
          if (bytes > 0) std::snprintf(buffer, bytes, "%s", text.c_str());
          return done(error);
        } catch (const std::bad_alloc&) {
          return report(make_error(ErrorCode::kOutOfMemory, "explain: host memory ran out"), error);
        }
      });
}
