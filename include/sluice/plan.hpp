// SPDX-License-Identifier: Apache-2.0
// The one way in: plan() chooses kernels by arithmetic, run() launches them.
#pragma once

#include <array>
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
struct Kernel;
struct Recipe;
enum class Role : std::uint8_t;
}  // namespace detail

/// Fixed-size text: names travel in plans and tables without allocation.
inline constexpr std::size_t kMaxName = 64;
inline constexpr std::size_t kMaxConfig = 256;

/// Where a plan's choice came from.
enum class ChoiceSource : std::uint8_t {
  kHeuristic = 0,     ///< the order of the recipes, and each kernel's own first config
  kForced = 1,        ///< Options::variant or Options::config
  kTuneTable = 2,     ///< measured for this problem, on this device and build
  kNearestEntry = 3,  ///< measured for a problem near this one
  kShippedTable = 4,  ///< measured for this problem on a device of this kind; ships with Sluice
};

/// What a tuning table recommends. An empty config leaves the choice to the variant.
struct TuneChoice {
  char variant[kMaxName]{};
  char config[kMaxConfig]{};
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

/// Told by plan(), line by line, what it chose, which variants refused the problem before and why,
/// and which entry of a tuning table was passed over. The library writes nowhere
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
  /// Force this variant by name: a recipe of steps, "cuda.sm90" or "cpu.simd". Null to choose.
  const char* variant = nullptr;
  /// Force these configs of its steps, "gate_up=pp128x192c2g8,down=lt0" or some of them. Null to
  /// choose.
  const char* config = nullptr;
  const TuneTable* tune = nullptr;  ///< null to use the heuristic alone
  int threads = 0;  ///< CPU: at most so many, up to kMaxThreads; 0 for all of Device::threads
  const Log* log = nullptr;  ///< null for silence
  Executor executor{};       ///< CPU: whose threads; the library's own by default
  /// Also variants that were compiled and never run: cuda.sm100.
  bool experimental = false;
};

/// Parameters of one kernel, as numbers that mean something to it alone.
struct KernelConfig {
  alignas(8) unsigned char bytes[32]{};
  friend bool operator==(const KernelConfig&, const KernelConfig&) = default;
};

/// One launch of a plan, or a few that are one operator.
struct PlannedStep {
  const detail::Kernel* kernel = nullptr;
  KernelConfig config{};
  detail::Role role{};
};
inline constexpr std::size_t kMaxSteps = 12;

/// What steps leave to each other, in rows of whole 128 bytes, and the room that each has for
/// itself; of T what is asked.
template <class T>
struct ScratchParts {
  T n{};       ///< [M, D] in x's type: the norm's output, later this rank's part of y
  T r{};       ///< [M, D], its sum, where y takes it
  T h{};       ///< [M, H]
  T dg_du{};   ///< [M, 2 H], dg and then du in each row
  T kernel{};  ///< one step's at a time
};

/// A plain value: copy it, cache it, share it between threads and streams.
struct Plan {
  Problem problem{};
  Device device{};
  const detail::Recipe* recipe = nullptr;
  std::array<PlannedStep, kMaxSteps> steps{};
  int step_count = 0;
  ChoiceSource source = ChoiceSource::kHeuristic;
  int threads = 1;                      ///< CPU: that run() may use; its own are at most 512
  Executor executor{};                  ///< CPU: whose
  ScratchParts<std::size_t> scratch{};  ///< offsets into what lies behind the workspace's header
  std::size_t workspace_bytes = 0;      ///< what run() needs: 0, or a multiple of 256
  std::size_t peer_bytes = 0;           ///< what each of Peers::buffers needs: 0 without Reduce

  [[nodiscard]] SLUICE_EXPORT const char* variant_name() const noexcept;
  /// "gate_up=pp128x192c2g8,down=lt0": what Options::config takes to have the same steps.
  [[nodiscard]] SLUICE_EXPORT std::string config_name() const;
};

/// Device memory that run() may use while it is under way.
///
/// Its header of kWorkspaceHeaderBytes holds tickets that are 0 between launches and means the same
/// in every plan; zero it once with workspace_init(). It is the beginning of `data` or lies apart:
/// then `data` is scratch, of which nothing need be kept between runs, and needs
/// kWorkspaceHeaderBytes less. Plans may share a workspace on one stream; what may run at the same
/// time (another stream, a captured graph) needs one of its own. Both aligned to
/// kWorkspaceAlignment.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;   ///< of data
  void* header = nullptr;  ///< null: data begins with it
};
inline constexpr std::size_t kWorkspaceHeaderBytes = 16384;
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Memory of all ranks that this rank's GPU can read and write: CUDA IPC's, Torch's symmetric
/// memory, or peer access within a process. Sluice maps none of it.
///
/// Each buffer begins with a header of kPeerHeaderBytes: the number of the last run, which the
/// kernel counts, so that a captured graph replays, and all signals. Zero it once, and let every
/// rank have done so before the first run of any. The rest needs no values. Runs with the same
/// buffers take place one after another, in the same order on all ranks: then plans may share
/// them, whatever their shapes.
///
/// A rank that waits for longer than time_limit_us gives up: it sets the word at byte 12 of its own
/// header to 1 + the rank that it waited for + 256 · the tile, and y is NaN there. From then on its
/// runs signal nothing, wait for nothing and give NaN, until all ranks have zeroed their headers.
struct Peers {
  void* buffers[kMaxRanks]{};      ///< of rank r as this device addresses it; multiples of 256
  std::size_t bytes = 0;           ///< of each: at least Plan::peer_bytes, a multiple of 512; the
                                   ///< same on all ranks, for as long as the header lives
  std::int64_t time_limit_us = 0;  ///< 0: no limit; at most 2^63 / 1000
  bool share_device = false;       ///< ranks share a GPU (virtual ranks): the kernel behind does
                                   ///< not start early, as it could keep a peer's from starting
};
inline constexpr std::size_t kPeerHeaderBytes = (std::size_t{8} << 20) + 65536;
inline constexpr std::size_t kPeerAlignment = 256;

/// A cudaStream_t for CUDA plans (null is the default stream); not read by CPU plans.
using Stream = void*;

/// Chooses the steps for a problem on a device, and the kernel and config of each.
///
/// Pure arithmetic: no device call, no allocation, tens of microseconds at most; deterministic in
/// its arguments. Errors: kInvalidArgument for a problem or a device that validate() refuses, too
/// many threads, or an unknown forced name; kUnsupported where no variant takes the problem (the
/// message holds the best variant's reason). Thread-safe.
[[nodiscard]] SLUICE_EXPORT Expected<Plan> plan(const Problem& problem, const Device& device,
                                                const Options& options = {}) noexcept;

/// Launches a plan on operands of the plan's device.
///
/// CUDA: enqueues on `stream` and returns; neither allocates nor synchronises nor reads the
/// environment, so it can be captured in a graph; the plan's device is made current and the
/// caller's restored. CPU: returns when the outputs are written; the first call without an executor
/// starts the worker threads. The same plan and inputs give the same bits, for any thread count and
/// on every call. m = 0 succeeds without a launch and reads no pointer. Aliasing: an output may
/// share a byte with nothing, with three exceptions that must match exactly, base and layout: y
/// with residual, dg with g, and du with u. It may lie in another operand's gaps; two operands of
/// more than 16,384 rows each (blocks of columns count as rows) only where they have one layout and
/// repeat at one period, as halves of one buffer do: all else is refused there. The workspace may
/// not reach into any operand's extent. Errors:
/// kInvalidArgument for a null or misaligned pointer, overlapping outputs or a workspace that is
/// too small, misaligned or overlaps; kDevice, kUnsupported or kOutOfMemory where a step cannot be
/// encoded or launched, with its kernel's message. Then the steps in front of it have run and none
/// behind it; on any other error nothing is launched.
/// Thread-safe; concurrent calls need a workspace each. `peers` is read where the plan reduces, and
/// by the call alone; the kernel waits for the other ranks' runs. kInvalidArgument also for peer
/// buffers that are null, misaligned, too small, or overlap each other, an operand or the
/// workspace.
SLUICE_EXPORT Status run(const Plan& plan, const Operands& operands, Workspace workspace,
                         Stream stream, const Peers* peers = nullptr) noexcept;

/// Zeroes the header of a workspace, once after allocating it, in stream order.
/// Errors: kInvalidArgument for misalignment and, without a header apart, for null data or fewer
/// than kWorkspaceHeaderBytes; kDevice.
SLUICE_EXPORT Status workspace_init(Workspace workspace, const Device& device,
                                    Stream stream) noexcept;

/// One step of a plan by itself: an operator on a problem of its own.
struct StepCall {
  const char* name = "";    ///< "norm", "gate_up", "weight_grad_down"
  const char* kernel = "";  ///< "cuda.sm90_gemm"
  Problem problem{};
  Operands operands{};   ///< of the whole, or parts of the workspace
  bool skipped = false;  ///< no output of it is asked for
};

/// Step `index` (0 to plan.step_count - 1) of a plan on these operands, as run() launches it. For
/// who checks or times steps one by one. Errors: kInvalidArgument for an index out of range, and
/// those of run().
[[nodiscard]] SLUICE_EXPORT Expected<StepCall> step_call(const Plan& plan, int index,
                                                         const Operands& operands,
                                                         Workspace workspace,
                                                         const Peers* peers = nullptr) noexcept;

/// Launches that step alone. What the steps before it left must lie where they left it.
SLUICE_EXPORT Status run_step(const Plan& plan, int index, const Operands& operands,
                              Workspace workspace, Stream stream,
                              const Peers* peers = nullptr) noexcept;

/// One line of explain(): a variant and why it was or was not chosen.
struct Refusal {
  std::string variant;
  std::string reason;  ///< empty where the variant takes the problem
  bool chosen = false;
};

/// One step of what plan() chose.
struct ExplainedStep {
  std::string name;         ///< "gate_up"
  std::string kernel;       ///< "cuda.sm90_gemm"
  std::string config;       ///< "pp128x192c2g8"
  std::string passed_over;  ///< kernels that could compute it, and why this one does; or empty
  std::string blocks;       ///< how the kernel cuts the step's problem, in lines
};

/// Why plan() chooses what it chooses.
struct Explanation {
  std::vector<Refusal> variants;  ///< in the order in which they are tried
  std::vector<ExplainedStep> steps;
  std::string config;  ///< of the chosen variant, as Options::config takes it
  std::string reason;  ///< what the chosen variant is there for
  ChoiceSource source = ChoiceSource::kHeuristic;
  /// Of a tuned choice: "measured for 16x4096x14336: 82.3 us, untuned 90.1 us"; else empty.
  std::string entry;
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

/// Plans of every variant and config that take a problem, plan()'s own choice first, the others in
/// the order in which they are tried: what a tuner times. A variant for checking is one only where
/// it is the choice. Errors: those of plan().
[[nodiscard]] SLUICE_EXPORT Expected<std::vector<Plan>> candidates(const Problem& problem,
                                                                   const Device& device,
                                                                   const Options& options = {});

[[nodiscard]] SLUICE_EXPORT const char* to_string(ChoiceSource source) noexcept;

}  // namespace sluice
