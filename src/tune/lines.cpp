// SPDX-License-Identifier: Apache-2.0
#include "tune/lines.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tune/cursor.hpp"

namespace sluice::tune {
namespace {

// Names of variants and configs: what fits, and has one spelling.
template <std::size_t kSize>
bool copy_name(std::string_view text, char (&out)[kSize]) {
  const auto plain = [](char c) { return c > ' ' && c <= '~'; };
  if (text.empty() || text.size() >= kSize || !std::all_of(text.begin(), text.end(), plain)) {
    return false;
  }
  std::memcpy(out, text.data(), text.size());
  return true;
}

std::string body_of(const Line& line) {
  const Entry& e = line.entry;
  std::string out;
  for (const std::string_view part : {line.device, line.driver, line.build}) {
    out.append(part).push_back('\t');
  }
  out += to_text(e.key) + '\t' + e.variant + '\t' + e.config + '\t' + std::to_string(e.time_ns) +
         ' ' + std::to_string(e.noise_ns) + ' ' + std::to_string(e.untuned_ns) + '\t';
  return out;
}

// "down=lt3", "gate_up=pp64x256c1g8,down=lt1"; not "down=lt0".
bool names_later_rank(std::string_view config) noexcept {
  constexpr std::string_view kRank = "=lt";
  for (std::size_t at = config.find(kRank); at != std::string_view::npos;
       at = config.find(kRank, at + 1)) {
    const std::string_view rest = config.substr(at + kRank.size());
    int rank = 0;
    if (Cursor(rest.substr(0, rest.find(','))).number(rank).finished() && rank > 0) return true;
  }
  return false;
}

}  // namespace

bool config_holds(const Line& line, const Device& device) noexcept {
  return !names_later_rank(line.entry.config) ||
         cublaslt_version_of(line.driver) == device.cublaslt_version;
}

std::optional<Line> parse_line(std::string_view text) {
  const std::size_t last_tab = text.rfind('\t');
  if (last_tab == std::string_view::npos) return std::nullopt;
  const std::string_view body = text.substr(0, last_tab + 1);
  std::uint64_t sum = 0;
  const std::string_view digits = text.substr(last_tab + 1);
  if (digits.size() != 16 || !Cursor(digits).number(sum, 16).finished()) return std::nullopt;
  if (sum != checksum(body)) return std::nullopt;

  Line line;
  Entry& e = line.entry;
  std::string_view problem;
  std::string_view variant;
  std::string_view config;
  Cursor at(body);
  at.field(line.device, '\t').field(line.driver, '\t').field(line.build, '\t');
  at.field(problem, '\t').field(variant, '\t').field(config, '\t');
  at.number(e.time_ns).literal(" ").number(e.noise_ns).literal(" ").number(e.untuned_ns);
  if (!at.literal("\t").finished()) return std::nullopt;
  const auto key = parse_key(problem);
  if (!key || !copy_name(variant, e.variant) || !copy_name(config, e.config)) return std::nullopt;
  if (e.time_ns < 1 || e.noise_ns < 0 || e.untuned_ns < 1) return std::nullopt;
  e.key = *key;
  if (body_of(line) != body) return std::nullopt;  // another spelling of a number
  return line;
}

std::string print_line(const Line& line) {
  std::string out = body_of(line);
  char sum[24];
  std::snprintf(sum, sizeof(sum), "%016llx\n", static_cast<unsigned long long>(checksum(out)));
  return out + sum;
}

Status check_header(std::string_view text, const char* name) {
  if (text.empty() || text.starts_with(kHeader)) return {};
  const std::string_view first = text.substr(0, std::min<std::size_t>(text.find('\n'), 40));
  const bool other_version = first.starts_with("sluice tune ");
  return make_error(ErrorCode::kInvalidArgument, "%s: %s, wanted one that begins with \"%.*s\"",
                    name, other_version ? "a tuning table of another version" : "no tuning table",
                    static_cast<int>(kHeader.size()) - 1, kHeader.data());
}

}  // namespace sluice::tune
