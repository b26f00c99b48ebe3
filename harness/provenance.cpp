// SPDX-License-Identifier: Apache-2.0
#include "harness/provenance.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "harness/embedded.hpp"

namespace sluice::harness {
namespace {

namespace fs = std::filesystem;

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

struct GitAnswer {
  bool ok = false;
  std::string text;  // without the last line end
};

GitAnswer git(const std::string& folder, const char* arguments) {
  const std::string command =
      "git -C " + shell_quoted(folder) + " " + arguments + " 2>/dev/null </dev/null";
  GitAnswer answer;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return answer;
  std::array<char, 512> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) {
    answer.text += buffer.data();
  }
  answer.ok = pclose(pipe) == 0;
  while (!answer.text.empty() && answer.text.back() == '\n') answer.text.pop_back();
  return answer;
}

bool plain_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  return !word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos;
}

// A word of the command line as it may be published.
std::string public_word(const std::string& word, const std::string& repository) {
  const std::size_t equals = word.rfind("--", 0) == 0 ? word.find('=') : std::string::npos;
  const std::string option = equals == std::string::npos ? "" : word.substr(0, equals + 1);
  std::string value = word.substr(option.size());
  if (!value.empty() && value.front() == '/') {
    const fs::path path = fs::path(value).lexically_normal();
    const fs::path inside = path.lexically_relative(repository);
    const bool known = !repository.empty() && !inside.empty() && *inside.begin() != "..";
    value = known ? inside.string() : path.filename().string();
  }
  const std::string out = option + value;
  return plain_word(out) ? out : shell_quoted(out);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::optional<std::string> cuda_version(int version) {
  if (version == 0) return std::nullopt;
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The best SIMD target of a CPU that was held below its own.
std::optional<std::string> held_to(const Device& device) {
  if (device.backend != Backend::kCpu || device.simd_targets == cpu_device().simd_targets) {
    return std::nullopt;
  }
  return to_string(static_cast<SimdTarget>(std::bit_width(device.simd_targets) - 1));
}

}  // namespace

std::string repository_root() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const GitAnswer top = git(program.parent_path().string(), "rev-parse --show-toplevel");
  // An install below another project's working tree must not take that project's commit for ours.
  if (!top.ok || !fs::exists(fs::path(top.text) / "include/sluice/version.hpp.in", error))
    return "";
  return top.text;
}

std::string command_line(int argc, const char* const* argv, const std::string& repository) {
  std::string out;
  for (const char* name :
       {"SLUICE_DEVICE", "SLUICE_MAX_SIMD", "SLUICE_VARIANT", "SLUICE_TUNE_CACHE"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0')
      out += fmt::format("{}={} ", name, public_word(value, repository));
  }
  // The last word may be a path: of "python -m sluice.foreign FOLDER/kernels.py" too.
  const std::string program = argc > 0 ? argv[0] : "sluice";
  const std::size_t last = program.rfind(' ') + 1;
  out += program.substr(0, last) + fs::path(program.substr(last)).filename().string();
  for (int i = 1; i < argc; ++i) out.append(1, ' ').append(public_word(argv[i], repository));
  return out;
}

Meta make_meta(const Device& device, const Ceilings& ceilings, int argc, const char* const* argv) {
  const BuildInfo build = build_info();
  Meta meta;
  meta.device = device.name;
  meta.max_simd = held_to(device);
  meta.driver = cuda_version(device.driver_version);
  meta.cuda = cuda_version(device.runtime_version);
  meta.compiler = build.compiler;
  // Of the build: the program may lie in a working tree that is at another commit.
  meta.commit = build_commit();
  meta.dirty = build_dirty();
  meta.fingerprints = build_fingerprints();
  meta.date = utc_now();
  meta.command = command_line(argc, argv, repository_root());
  meta.read_tbps = ceilings.read_tbps;
  meta.copy_tbps = ceilings.copy_tbps;
  meta.gemm_tflops = ceilings.gemm_tflops;
  meta.mma_sync_tflops = ceilings.mma_sync_tflops;
  meta.fma_gflops = ceilings.fma_gflops;
  meta.bf16_gflops = ceilings.bf16_gflops;
  meta.clocks = ceilings.clocks;
  return meta;
}

}  // namespace sluice::harness
