// SPDX-License-Identifier: Apache-2.0
// What the verbs of the command line share: exit codes, the options that choose device and kernel,
// tables, progress, and how errors are told.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/progress.hpp"
#include "harness/rig.hpp"
#include "sluice/sluice.hpp"

namespace sluice::harness {
struct ForeignKernels;
}

namespace sluice::cli {

/// Exit codes of the program.
enum ExitCode : int {
  kOk = 0,           ///< done
  kCheckFailed = 1,  ///< a result was wrong
  kUsage = 2,        ///< the command line or a file it names is not right
  kUnsupported = 3,  ///< no such device, no variant takes it, out of memory, a device failure
};

/// Filled by the options of the verb that runs.
struct Context {
  int argc = 0;
  const char* const* argv = nullptr;
  bool quiet = false;
  std::string device = "auto";
  std::string max_simd;  ///< the best SIMD target that the CPU may use; empty for all
  int max_capability =
      0;                ///< the compute capability that a GPU is held to, times 10; 0 for its own
  std::string variant;  ///< empty to choose
  std::string config;   ///< empty to choose
  std::string tune_cache;  ///< empty for none
  int threads = 0;
  bool experimental = false;
  /// Options of one kind of device that the command line has, not the environment.
  bool simd_given = false, capability_given = false, threads_given = false;
  const harness::ForeignKernels* foreign = nullptr;  ///< verify checks these; null in the program
  int exit_code = kOk;

  /// The library's options; the views live as long as this context and the scheduler, which may be
  /// null.
  [[nodiscard]] Options options(const Scheduler* scheduler) const;
  [[nodiscard]] harness::DeviceLimits limits() const { return {max_simd.c_str(), max_capability}; }
};

/// Each adds its verb to the program. The verb's callback sets context.exit_code.
void add_info(CLI::App& app, Context& context);
void add_list(CLI::App& app, Context& context);
void add_explain(CLI::App& app, Context& context);
void add_verify(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);
void add_tune(CLI::App& app, Context& context);
void add_memory(CLI::App& app, Context& context);
void add_pack(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);

/// SLUICE_DEVICE, SLUICE_MAX_SIMD, SLUICE_VARIANT and SLUICE_TUNE_CACHE, for where the options are
/// not given. The only place of the program that reads them.
void read_environment(Context& context);

/// --max-simd.
void add_max_simd_option(CLI::App& verb, Context& context);
/// --device, --max-simd and --max-capability. `or_else` tells what else a verb takes for a device.
void add_device_option(CLI::App& verb, Context& context, const std::string& or_else = "");
/// --variant, --config, --threads, --tune-cache.
void add_kernel_options(CLI::App& verb, Context& context);
/// --threads.
void add_threads_option(CLI::App& verb, Context& context);
/// --tune-cache.
void add_tune_cache_option(CLI::App& verb, Context& context);

/// Accepts integers from `least` to `most`; the message says which of the two is passed.
[[nodiscard]] CLI::Validator integer(std::uint64_t least, std::uint64_t most);
/// The same for an option that is kept in an int.
[[nodiscard]] CLI::Validator at_least(int least);
/// Accepts finite numbers above 0, and 0 itself with `or_zero`; the message says so.
[[nodiscard]] CLI::Validator positive(bool or_zero = false);

/// Accepts what is not empty, as an unset variable leaves it; the message says what was wanted.
[[nodiscard]] CLI::Validator named(const std::string& what = "a path");

/// The exit code for an error of the library.
[[nodiscard]] int exit_code(const Error& error) noexcept;
/// Text on standard error. Where it cannot be written it is lost, and nothing else changes.
void tell(const std::string& text);

/// One line on standard error, "sluice: " before it; returns exit_code(error).
int fail(const Error& error);
/// The same for a message of the command line's own.
int fail(int code, const std::string& message);

/// The same for an error of opening the device `name`: where the name is well formed, what is
/// missing is the device.
int fail_device(const Error& error, const std::string& name);

/// Options that this kind of device has no use for, if the command line has them.
/// Errors: kInvalidArgument, naming the first.
Status check_device_options(const Context& context, Backend backend);

/// The device that --device means, without opening it.
Expected<Device> find_device(const Context& context);

/// A scheduler with the entries of --tune-cache, or null where none is named. What is ignored in
/// the file is told on standard error. Errors: kInvalidArgument where the file is none.
Expected<std::unique_ptr<Scheduler>> open_scheduler(const Context& context, const Device& device);

/// "bf16", "fp16", "fp32", "fp64". Errors: kInvalidArgument.
Expected<DType> parse_dtype(const std::string& name);

/// "16" or "1-64", both ends included.
struct TokenSpan {
  std::int64_t first = 0;
  std::int64_t last = 0;
  /// Its numbers. Errors: kInvalidArgument above 65,536 of them, naming how many.
  [[nodiscard]] Expected<std::vector<std::int64_t>> numbers() const;
};

/// Nothing where the word is no span of numbers of at least 1.
std::optional<TokenSpan> parse_span(const std::string& word);

/// Lines of a problem file: "#" starts a comment, blank lines are skipped, 1-64x4096x14336 stands
/// for 64 lines.
/// Errors: kInvalidArgument where the file cannot be read, holds no line or too long a range.
Expected<std::vector<std::string>> read_problem_file(const std::string& path);

/// "1.5 KiB", "23 MiB"; "12 B".
[[nodiscard]] std::string human_bytes(double bytes);

enum class Align { kLeft, kRight };

/// A table on standard output: columns as wide as their widest cell, numbers to the right.
class Table {
 public:
  void column(std::string title, Align align);
  void row(std::vector<std::string> cells);
  [[nodiscard]] std::string text() const;
  void print() const;

 private:
  struct Column {
    std::string title;
    Align align;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice::cli
