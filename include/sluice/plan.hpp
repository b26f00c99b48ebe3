// SPDX-License-Identifier: Apache-2.0
// The one way in: plan() chooses a kernel by arithmetic, run() launches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/device.hpp"
#include "sluice/export.hpp"
#include "sluice/operands.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"

namespace sluice {

namespace detail {
struct Variant;
}

/// Fixed-size text: names and reasons travel in plans without allocation.
inline constexpr std::size_t kMaxName = 64;

/// Where a plan's choice came from.
enum class ChoiceSource : std::uint8_t {
  kHeuristic = 0,     ///< the variant table's order and the variant's own first config
  kForced = 1,        ///< Options::variant or Options::config
  kTuneTable = 2,     ///< measured for this problem, on this device and build
  kNearestEntry = 3,  ///< measured for a problem near this one
  kShippedTable = 4,  ///< measured for this problem on a device of this kind; ships with Sluice
};

/// What a tuning table recommends. An empty config leaves the choice to the variant.
struct TuneChoice {
  char variant[kMaxName]{};
  char config[kMaxName]{};
  ChoiceSource source = ChoiceSource::kTuneTable;  ///< or kNearestEntry, or kShippedTable
  // For explain(): what was measured, in microseconds a run; zero where it is not known.
  std::int64_t m = 0;
  std::int64_t d = 0;
  std::int64_t h = 0;
  double us = 0;
  double untuned_us = 0;  ///< of what plan() takes without a table
};

/// Consulted by plan() before the heuristic. Scheduler (sluice/scheduler.hpp) is one; so may a
/// caller's own be. find() must be pure, thread-safe and free of device calls. `device.threads` are
/// those that the plan will use.
class SLUICE_EXPORT TuneTable {
 public:
  virtual ~TuneTable();
  [[nodiscard]] virtual std::optional<TuneChoice> find(const Problem& problem,
                                                       const Device& device) const noexcept = 0;
};

/// Told by plan(), line by line, what it chose, which variants refused the problem before or
/// yielded and why, and which entry of a tuning table was passed over. The library writes nowhere
/// by itself. write() must not throw; the text lives for the call, without a line end.
class SLUICE_EXPORT Log {
 public:
  virtual ~Log();
  virtual void write(const char* line) const noexcept = 0;
};

/// The caller's threads, for CPU plans: a program that has a pool of its own (OpenMP's, a
/// framework's) lends it, so that two pools do not contend for the cores.
///
/// parallel_for(user, count, body, work) calls body(work, i), at most once for each i in [0,
/// count), and returns when the calls that it made have returned. They may run at once, on any
/// threads, the caller's own included, or one after another: none waits for one that has not begun,
/// and run() does what is left out. What precedes parallel_for happens before each call, and each
/// call before its return. Called any number of times a run, on run()'s thread; must be callable
/// while a plan lives, and must not throw. body does not throw, and needs 128 KiB of stack.
struct Executor {
  void (*parallel_for)(void* user, int count, void (*body)(void* work, int i),
                       void* work) = nullptr;  ///< null for the library's own threads
  void* user = nullptr;
};

/// Optional wishes. Views must live until plan() returns.
struct Options {
  const char* variant = nullptr;    ///< force this variant by name ("cpu.simd"); null to choose
  const char* config = nullptr;     ///< force this config of the variant; null to choose
  const TuneTable* tune = nullptr;  ///< null to use the heuristic alone
  int threads = 0;           ///< CPU: at most this many threads; 0 for all of Device::threads
  const Log* log = nullptr;  ///< null for silence
  Executor executor{};       ///< CPU: whose threads; the library's own by default
};

/// A named set of kernel parameters. The payload belongs to the variant.
struct Config {
  char name[kMaxName]{};
  alignas(8) unsigned char payload[96]{};
};

/// A plain value: copy it, cache it, share it between threads and streams.
struct Plan {
  Problem problem{};
  Device device{};
  Config config{};
  const detail::Variant* variant = nullptr;
  ChoiceSource source = ChoiceSource::kHeuristic;
  int threads = 1;                  ///< CPU: threads that run() will use
  Executor executor{};              ///< CPU: whose
  std::size_t workspace_bytes = 0;  ///< what run() needs: 0, or a multiple of 256

  [[nodiscard]] SLUICE_EXPORT const char* variant_name() const noexcept;
};

/// Device memory that run() may use while it is under way.
///
/// Its header of kWorkspaceHeaderBytes holds barrier epochs that one run leaves to the next and
/// means the same in every plan; zero it once with workspace_init(). It is the beginning of `data`
/// or lies apart: then `data` is scratch, of which nothing need be kept between runs, and needs
/// kWorkspaceHeaderBytes less. Plans may share a workspace on one stream; what may run at the same
/// time (another stream, a captured graph) needs one of its own. Both aligned to
/// kWorkspaceAlignment.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;   ///< of data
  void* header = nullptr;  ///< null: data begins with it
};
inline constexpr std::size_t kWorkspaceHeaderBytes = 4096;
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// A cudaStream_t for CUDA plans (null is the default stream); not read by CPU plans.
using Stream = void*;

/// Chooses the variant and config for a problem on a device.
///
/// Pure arithmetic: no device call, no allocation, a few microseconds; deterministic in its
/// arguments. Errors: kInvalidArgument for a problem that validate() refuses or an unknown forced
/// name; kUnsupported where no variant takes the problem (the message holds the best variant's
/// reason). Thread-safe.
[[nodiscard]] SLUICE_EXPORT Expected<Plan> plan(const Problem& problem, const Device& device,
                                                const Options& options = {}) noexcept;

/// Launches a plan on operands of the plan's device.
///
/// CUDA: enqueues on `stream` and returns; neither allocates nor synchronises nor reads the
/// environment, so it can be captured in a graph; the plan's device is made current and the
/// caller's restored. CPU: returns when the outputs are written; the first call without an executor
/// starts the worker threads. The same plan and inputs give the same bits, for any thread count and
/// on every call. m = 0 succeeds without a launch and reads no pointer. Aliasing: an output may
/// overlap nothing, with three exceptions that must match exactly, base and layout: y with
/// residual, dg with g, and du with u; the workspace may overlap no operand. Errors:
/// kInvalidArgument for a null or misaligned pointer, overlapping outputs or a workspace that is
/// too small, misaligned or overlaps; kDevice where the launch fails. Nothing is launched on error.
/// Thread-safe; concurrent calls need a workspace each.
SLUICE_EXPORT Status run(const Plan& plan, const Operands& operands, Workspace workspace,
                         Stream stream) noexcept;

/// Zeroes the header of a workspace, once after allocating it, in stream order.
/// Errors: kInvalidArgument for misalignment and, without a header apart, for null data or fewer
/// than kWorkspaceHeaderBytes; kDevice.
SLUICE_EXPORT Status workspace_init(Workspace workspace, const Device& device,
                                    Stream stream) noexcept;

/// One line of explain(): a variant and why it was or was not chosen.
struct Refusal {
  std::string variant;
  std::string reason;  ///< empty where the variant supports the problem
  bool chosen = false;
  std::string yields = {};  ///< of one that supports it: why a later one is preferred, if one is
};

/// Why plan() chooses what it chooses.
struct Explanation {
  std::vector<Refusal> variants;  ///< in the table's order, best first
  std::string config;             ///< of the chosen variant
  ChoiceSource source = ChoiceSource::kHeuristic;
  /// Of a tuned choice: "measured for 16x4096x14336: 82.3 us, untuned 90.1 us"; else empty.
  std::string entry;
  std::string blocks;  ///< how the chosen variant cuts the problem and why, in lines; or empty
  std::optional<Error> error;  ///< where plan() fails
};
[[nodiscard]] SLUICE_EXPORT Explanation explain(const Problem& problem, const Device& device,
                                                const Options& options = {});

/// Names of all variants of this build that can run on a backend, best first.
[[nodiscard]] SLUICE_EXPORT std::vector<std::string> variant_names(Backend backend);

/// Configs of a variant that can be forced for this problem, the variant's own choice first.
/// Empty where the variant is unknown or refuses the problem.
[[nodiscard]] SLUICE_EXPORT std::vector<std::string> config_names(const char* variant,
                                                                  const Problem& problem,
                                                                  const Device& device);

[[nodiscard]] SLUICE_EXPORT const char* to_string(ChoiceSource source) noexcept;

}  // namespace sluice
