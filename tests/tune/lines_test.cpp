// SPDX-License-Identifier: Apache-2.0
// The cache's text: what was printed is read, and nothing else is.
#include "tune/lines.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "problems.hpp"
#include "tests/unit/expect_error.hpp"

namespace sluice::tune {
namespace {

using tests::entry_of;
using tests::line_of;
using tests::mlp;

std::string sample_line() {
  return line_of(entry_of(mlp(16), cpu_device(), "cpu.simd", "mlp=avx2"), cpu_device());
}

// Without its line break.
std::string_view body(const std::string& line) {
  return std::string_view(line).substr(0, line.size() - 1);
}

TEST(Lines, RoundTrip) {
  const std::string text = sample_line();
  const auto line = parse_line(body(text));
  ASSERT_TRUE(line) << text;
  EXPECT_EQ(line->device, device_text(cpu_device()));
  EXPECT_EQ(line->driver, "-");
  EXPECT_EQ(line->build, build_text());
  EXPECT_EQ(line->entry.key, key_of(mlp(16), cpu_device()));
  EXPECT_STREQ(line->entry.variant, "cpu.simd");
  EXPECT_STREQ(line->entry.config, "mlp=avx2");
  EXPECT_EQ(line->entry.time_ns, 82300);
  EXPECT_EQ(line->entry.noise_ns, 120);
  EXPECT_EQ(line->entry.untuned_ns, 90100);
  EXPECT_EQ(print_line(*line), text);
}

TEST(Lines, NoFlippedBitIsTrusted) {
  std::string text = sample_line();
  text.pop_back();
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = text;
      broken[i] = static_cast<char>(broken[i] ^ (1 << bit));
      // The checksum's own digits may become capitals: the same number.
      const bool same_digit = i + 16 >= text.size() && bit == 5 && text[i] >= 'a';
      EXPECT_EQ(parse_line(broken).has_value(), same_digit) << i << " bit " << bit;
    }
  }
}

TEST(Lines, NoTruncatedLineIsTrusted) {
  const std::string text = sample_line();
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_FALSE(parse_line(std::string_view(text).substr(0, size))) << size;
    EXPECT_FALSE(parse_line(std::string_view(text).substr(size + 1, text.size() - size - 2)));
  }
}

// What a right checksum stands behind is still read strictly.
TEST(Lines, NoOtherSpellingIsTrusted) {
  const auto accepted = [](const std::string& from, const std::string& to) {
    std::string line = sample_line();
    line.resize(line.rfind('\t') + 1);
    const std::size_t at = line.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    line.replace(at, from.size(), to);
    char sum[24];
    std::snprintf(sum, sizeof(sum), "%016llx", static_cast<unsigned long long>(checksum(line)));
    return parse_line(line + sum).has_value();
  };
  EXPECT_TRUE(accepted("82300 ", "82301 "));
  EXPECT_FALSE(accepted("82300 ", "0 "));
  EXPECT_FALSE(accepted("82300 ", "-82300 "));
  EXPECT_FALSE(accepted("82300 ", "082300 "));
  EXPECT_FALSE(accepted("82300 ", "99999999999999999999 "));
  EXPECT_FALSE(accepted(" 120 ", " -120 "));
  EXPECT_FALSE(accepted(" 90100", " 0"));
  EXPECT_FALSE(accepted(" 90100", ""));
  EXPECT_FALSE(accepted("cpu.simd\t", "\t")) << "no variant";
  EXPECT_FALSE(accepted("cpu.simd\t", "cpu simd\t"));
  EXPECT_FALSE(accepted("cpu.simd\t", std::string(kMaxName, 'x') + "\t")) << "too long a name";
  EXPECT_TRUE(accepted("cpu.simd\t", std::string(kMaxName - 1, 'x') + "\t"));
  EXPECT_FALSE(accepted("mlp=avx2\t", std::string(kMaxConfig, 'x') + "\t")) << "too long a config";
  EXPECT_TRUE(accepted("mlp=avx2\t", std::string(kMaxConfig - 1, 'x') + "\t"));
  EXPECT_FALSE(accepted("mlp=avx2\t", "\t")) << "no config";
  EXPECT_FALSE(accepted("cpu.simd\t", "cpu.simd\t\t")) << "one field more";
}

TEST(Lines, OnlyThisVersionsHeaderPasses) {
  EXPECT_TRUE(check_header("", "f"));
  EXPECT_TRUE(check_header(kHeader, "f"));
  EXPECT_TRUE(check_header(std::string(kHeader) + sample_line(), "f"));
  EXPECT_TRUE(test::refuses(check_header("sluice tune 1\n", "f"),
                            "f: a tuning table of another version, wanted one that begins with "
                            "\"sluice tune 2\""));
  EXPECT_TRUE(test::refuses(check_header("sluice tune 2", "f"), "another version"));
  EXPECT_TRUE(test::refuses(check_header("# notes\n", "f"), "f: no tuning table"));
  EXPECT_TRUE(test::refuses(check_header(std::string("\0\0", 2), "f"), "no tuning table"));
}

// A rank of cuBLASLt's list above the first, in any step, holds for the version that the line
// names.
TEST(Lines, LaterRanksHoldForTheirCublasLt) {
  Device measured = tests::gpu();
  measured.cublaslt_version = 130100;
  struct Row {
    const char* config;
    bool later_rank;
  };
  for (const Row& row : {Row{"down=lt0", false}, Row{"down=lt3", true}, Row{"down=lt12", true},
                         Row{"gate_up=pp64x256c1g8,down=lt1", true},
                         Row{"input_grad=lt0,weight_grad=lt2,weight_grad_down=lt0", true},
                         Row{"input_grad=lt0,weight_grad=lt0", false}, Row{"down=lt", false},
                         Row{"down=lt1x", false}, Row{"down=belt1", false}, Row{"lt1", false}}) {
    const std::string text =
        line_of(entry_of(mlp(16), measured, "cuda.sm90", row.config), measured);
    const auto line = parse_line(body(text));
    ASSERT_TRUE(line) << text;
    EXPECT_TRUE(config_holds(*line, measured)) << row.config;
    EXPECT_EQ(config_holds(*line, tests::gpu()), !row.later_rank) << row.config;
  }
}

TEST(Lines, AreWalkedInOrder) {
  std::vector<std::string> seen;
  const auto walk = [&](const std::string& text) {
    seen.clear();
    for_each_line(text, [&](std::string_view line) { seen.emplace_back(line); });
    return seen;
  };
  using Texts = std::vector<std::string>;
  const std::string header(kHeader);
  EXPECT_EQ(walk(header + "a\nb\n"), (Texts{"a", "b"}));
  EXPECT_EQ(walk(header + "a\n\nb"), (Texts{"a", "b"}));
  EXPECT_EQ(walk(header), Texts{});
  EXPECT_EQ(walk(""), Texts{});
}

}  // namespace
}  // namespace sluice::tune
