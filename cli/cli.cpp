// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

namespace sluice::cli {

Options Context::options(const Scheduler* scheduler) const {
  return {.variant = variant.empty() ? nullptr : variant.c_str(),
          .config = config.empty() ? nullptr : config.c_str(),
          .tune = scheduler,
          .threads = threads,
          .experimental = experimental};
}

void read_environment(Context& context) {
  // Not CLI11's envname(): it also fills the options of verbs that were not given, and the verbs
  // share one context.
  const auto read = [](const char* name, std::string& value) {
    const char* const text = std::getenv(name);
    if (text != nullptr && *text != '\0') value = text;
  };
  read("SLUICE_DEVICE", context.device);
  read("SLUICE_MAX_SIMD", context.max_simd);
  read("SLUICE_VARIANT", context.variant);
  read("SLUICE_TUNE_CACHE", context.tune_cache);
}

void add_max_simd_option(CLI::App& verb, Context& context) {
  verb.add_option(
          "--max-simd", context.max_simd,
          "Hold the CPU to this SIMD target: emulated, avx2, avx512, avx512_bf16 (SLUICE_MAX_SIMD)")
      ->each([&context](const std::string&) { context.simd_given = true; });
}

void add_device_option(CLI::App& verb, Context& context, const std::string& or_else) {
  add_max_simd_option(verb, context);
  verb.add_option("--device", context.device,
                  "auto, cpu, cuda or cuda:N; auto is the first GPU (SLUICE_DEVICE)" + or_else)
      ->capture_default_str();
  verb.add_option("--max-capability", context.max_capability,
                  "Hold a GPU to kernels of this compute capability: 8.0, 8.9, 9.0")
      ->transform(CLI::CheckedTransformer(std::map<std::string, int>{
          {"7.5", 75}, {"8.0", 80}, {"8.6", 86}, {"8.9", 89}, {"9.0", 90}}))
      ->each([&context](const std::string&) { context.capability_given = true; });
}

void add_kernel_options(CLI::App& verb, Context& context) {
  verb.add_option("--variant", context.variant,
                  "Force this variant, see `sluice list variants` (SLUICE_VARIANT)")
      ->check(named("a variant"));
  verb.add_option("--config", context.config, "Force this config of the variant (see explain)")
      ->check(named("a config"));
  verb.add_flag("--experimental", context.experimental,
                "Also variants that were compiled and never run");
  add_threads_option(verb, context);
  add_tune_cache_option(verb, context);
  verb.get_option("--tune-cache")->check(CLI::ExistingFile);
}

void add_threads_option(CLI::App& verb, Context& context) {
  verb.add_option("--threads", context.threads, "CPU threads; 0 for all")
      ->check(at_least(0))
      ->each([&context](const std::string&) { context.threads_given = true; });
}

void add_tune_cache_option(CLI::App& verb, Context& context) {
  verb.add_option("--tune-cache", context.tune_cache,
                  "File of tuned choices, as `sluice tune` keeps them (SLUICE_TUNE_CACHE)");
}

CLI::Validator named(const std::string& what) {
  return CLI::Validator(
      [what](const std::string& text) {
        return text.empty() ? "got nothing, wanted " + what : std::string();
      },
      "");
}

CLI::Validator integer(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        std::uint64_t value = 0;
        const char* const stop = text.data() + text.size();
        const auto [end, error] = std::from_chars(text.data(), stop, value);
        const bool large = error == std::errc::result_out_of_range;
        const bool whole = (error == std::errc{} || large) && end == stop;
        if (whole && (large || value > most)) {
          return fmt::format("got {}, wanted an integer of at most {}", text, most);
        }
        if (whole && value >= least) return "";
        return fmt::format("got {}, wanted an integer of at least {}", text, least);
      },
      fmt::format("INT >= {}", least));
}

CLI::Validator at_least(int least) {
  return integer(static_cast<std::uint64_t>(least), std::numeric_limits<int>::max());
}

CLI::Validator positive(bool or_zero) {
  const char* const wanted = or_zero ? "a number of at least 0" : "a number above 0";
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc{} && end == text.data() + text.size();
        if (whole && std::isfinite(value) && (value > 0 || (or_zero && value == 0))) return "";
        return fmt::format("got {}, wanted {}", text, wanted);
      },
      or_zero ? "NUMBER >= 0" : "NUMBER > 0");
}

int exit_code(const Error& error) noexcept {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return kUsage;
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kDevice:
      return kUnsupported;
    case ErrorCode::kInternal:
      return kCheckFailed;
  }
  return kCheckFailed;
}

void tell(const std::string& text) { std::fputs(text.c_str(), stderr); }

int fail(int code, const std::string& message) {
  tell("sluice: " + message + "\n");
  return code;
}

int fail(const Error& error) { return fail(exit_code(error), std::string(error.text())); }

namespace {

// "cuda:N"; the ordinal, or -1 where the name is something else.
int cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  if (name.rfind("cuda:", 0) != 0) return -1;
  int ordinal = -1;
  const char* const stop = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + 5, stop, ordinal);
  return error == std::errc{} && end == stop && ordinal >= 0 ? ordinal : -1;
}

}  // namespace

int fail_device(const Error& error, const std::string& name) {
  return fail(cuda_ordinal(name) >= 0 ? static_cast<int>(kUnsupported) : exit_code(error),
              std::string(error.text()));
}

Status check_device_options(const Context& context, Backend backend) {
  const bool cpu = backend == Backend::kCpu;
  const char* unread = nullptr;
  if (cpu && context.capability_given) unread = "max-capability";
  if (!cpu && context.threads_given) unread = "threads";
  if (!cpu && context.simd_given) unread = "max-simd";
  if (unread == nullptr) return {};
  return make_error(ErrorCode::kInvalidArgument, "%s: is read only with a %s; the device is a %s",
                    unread, cpu ? "GPU" : "CPU", cpu ? "CPU" : "GPU");
}

Expected<Device> find_device(const Context& context) {
  const std::string& name = context.device;
  const auto gpu = [&context](int ordinal) {
    auto device = cuda_device(ordinal);
    if (device) harness::limit_capability(*device, context.max_capability);
    return device;
  };
  if (name == "auto" && cuda_device_count() > 0) return gpu(0);
  if (name == "cpu" || name == "auto") {
    Device cpu = cpu_device();
    SLUICE_TRY(limit_simd(cpu, context.max_simd.c_str()));
    return cpu;
  }
  if (const int ordinal = cuda_ordinal(name); ordinal >= 0) return gpu(ordinal);
  return make_error(ErrorCode::kInvalidArgument,
                    "device: got \"%s\", wanted auto, cpu, cuda or cuda:N", name.c_str());
}

Expected<std::unique_ptr<Scheduler>> open_scheduler(const Context& context, const Device& device) {
  if (context.tune_cache.empty()) return std::unique_ptr<Scheduler>();
  auto scheduler = std::make_unique<Scheduler>(device);
  const auto loaded = scheduler->load(context.tune_cache.c_str());
  if (!loaded) return loaded.error();
  if (!context.quiet && !loaded->message.empty()) {
    tell(fmt::format("sluice: {}\n", loaded->message));
  }
  return scheduler;
}

Expected<DType> parse_dtype(const std::string& name) {
  for (int i = 0; i < kFloatDTypeCount; ++i) {
    if (name == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "dtype: got \"%s\", wanted bf16, fp16, fp32 or fp64", name.c_str());
}

std::optional<TokenSpan> parse_span(const std::string& word) {
  std::int64_t first = 0;
  const char* const stop = word.data() + word.size();
  auto read = std::from_chars(word.data(), stop, first);
  std::int64_t last = first;
  if (read.ec == std::errc{} && read.ptr != stop && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, stop, last);
  }
  const bool whole = read.ec == std::errc{} && read.ptr == stop;
  if (!whole || first < 1 || last < first) return std::nullopt;
  return TokenSpan{first, last};
}

Expected<std::vector<std::int64_t>> TokenSpan::numbers() const {
  constexpr std::int64_t kMost = 65536;  // more is a typing error, not a wish
  const std::int64_t count = last - first + 1;
  if (count > kMost) {
    return make_error(ErrorCode::kInvalidArgument,
                      "got %lld-%lld, a range of %lld numbers; wanted at most %lld",
                      static_cast<long long>(first), static_cast<long long>(last),
                      static_cast<long long>(count), static_cast<long long>(kMost));
  }
  // Counted from 0: behind the last there may be no number.
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

Expected<std::vector<std::string>> read_problem_file(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is a directory", path.c_str());
  }
  std::ifstream file(path);
  if (!file) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be read: %s", path.c_str(),
                      std::strerror(errno));
  }
  constexpr std::size_t kLongest = 4096;
  std::vector<std::string> lines;
  for (std::string line; !file.eof();) {
    line.resize(kLongest);
    file.getline(line.data(), kLongest);
    if (file.bad() || (file.fail() && !file.eof())) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%s: cannot be read to its end: wanted lines of less than %zu bytes",
                        path.c_str(), kLongest);
    }
    line.resize(static_cast<std::size_t>(file.gcount()));
    if (!file.eof() && !line.empty()) line.pop_back();  // the end of the line, which is counted
    if (line.find('\0') != std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument, "%s: holds a zero byte, wanted text",
                        path.c_str());
    }
    line.erase(std::min(line.find('#'), line.size()));
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const std::size_t last = line.find_last_not_of(" \t\r");
    const std::string text = line.substr(first, last - first + 1);
    const std::size_t head = text.find('x');
    const auto span = parse_span(text.substr(0, head));
    if (!span || span->first == span->last || head == std::string::npos) {
      lines.push_back(text);  // whoever parses it says what is wrong
      continue;
    }
    const auto tokens = span->numbers();
    if (!tokens) {
      return make_error(ErrorCode::kInvalidArgument, "%s: tokens: %s", path.c_str(),
                        tokens.error().message);
    }
    for (const std::int64_t m : *tokens) lines.push_back(std::to_string(m) + text.substr(head));
  }
  if (lines.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "%s: holds no problem", path.c_str());
  }
  return lines;
}

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 || bytes >= 100 ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
                                   : fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

void Table::column(std::string title, Align align) {
  columns_.push_back({std::move(title), align});
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(widths[c] - cells[c].size(), ' ');
      if (c > 0) out += "  ";
      out += columns_[c].align == Align::kRight ? pad + cells[c] : cells[c] + pad;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string out = line(titles);
  for (const auto& row : rows_) out += line(row);
  return out;
}

void Table::print() const { fmt::print("{}", text()); }

}  // namespace sluice::cli
