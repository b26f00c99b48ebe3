// SPDX-License-Identifier: Apache-2.0
// The safetensors reader: what is right is read, and each way of being wrong has its own message.
#include "harness/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>
#include <string>

#include "harness/strict_json.hpp"
#include "tests/format/folder_test.hpp"
#include "tests/format/safetensors_image.hpp"

namespace sluice::harness {
namespace {

using format_test::entry;
using format_test::image;
using format_test::padded;
using testing::HasSubstr;

class SafeTensorsFile : public format_test::FolderTest {
 protected:
  // The message of the error that opening an image gives; empty where it opens.
  [[nodiscard]] std::string message(std::string_view bytes) const {
    const Expected<SafeTensors> file = SafeTensors::open(write("a.safetensors", bytes));
    if (file) return {};
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
    return std::string(file.error().text());
  }
  [[nodiscard]] std::string message_of_header(const std::string& header,
                                              std::string_view data) const {
    return message(image(padded(header), data));
  }
  // A header with one tensor of the given fields and 8 bytes of data.
  [[nodiscard]] std::string message_of_tensor(const std::string& fields) const {
    return message_of_header("{\"w\":{" + fields + "}}", "12345678");
  }
};

TEST_F(SafeTensorsFile, ReadsEveryTensorInPlace) {
  const std::string data = "0123456789abcdefghijklmn";
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "BF16", "[2,2]", 0, 8) + "," +
      entry("a", "F64", "[]", 8, 16) + "," + entry("bytes", "I8", "[0,7]", 16, 16) + "," +
      entry("half", "F4", "[4,4]", 16, 24) + "}";
  Expected<SafeTensors> file =
      SafeTensors::open(write("a.safetensors", image(padded(header), data)));
  ASSERT_TRUE(file) << file.error().text();
  SafeTensors moved = *std::move(file);  // views must survive a move
  for (const TensorView& view : moved.tensors()) EXPECT_TRUE(moved.load(view)) << view.name;

  ASSERT_EQ(moved.tensors().size(), 4U);
  const TensorView* const b = moved.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{2, 2}));
  ASSERT_EQ(b->bytes, 8);
  EXPECT_EQ(std::memcmp(b->data, "01234567", 8), 0);
  const TensorView* const a = moved.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kF64);
  EXPECT_TRUE(a->shape.empty());
  EXPECT_EQ(std::memcmp(a->data, "89abcdef", 8), 0);
  const TensorView* const bytes = moved.find("bytes");
  ASSERT_NE(bytes, nullptr);
  EXPECT_FALSE(bytes->dtype.has_value());
  EXPECT_EQ(bytes->dtype_name, "I8");
  EXPECT_EQ(bytes->bytes, 0);
  EXPECT_EQ(bytes->data, nullptr);
  const TensorView* const half = moved.find("half");
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->bytes, 8);
  EXPECT_EQ(moved.find("c"), nullptr);
  ASSERT_EQ(moved.metadata().count("format"), 1U);
  EXPECT_EQ(moved.metadata().find("format")->second, "pt");
}

TEST_F(SafeTensorsFile, ReadsAFileWithoutTensors) { EXPECT_EQ(message_of_header("{}", ""), ""); }

TEST_F(SafeTensorsFile, RefusesWhatIsNoRegularFile) {
  const auto open_message = [](const std::string& path) {
    const auto file = SafeTensors::open(path);
    return file ? std::string() : std::string(file.error().text());
  };
  EXPECT_THAT(open_message(path("absent.safetensors")),
              testing::AllOf(HasSubstr("absent.safetensors"), HasSubstr("cannot be opened")));
  EXPECT_THAT(open_message(folder_.string()), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(open_message(path("pipe")), HasSubstr("is not a regular file"));
}

TEST_F(SafeTensorsFile, RefusesABadHeaderLength) {
  EXPECT_THAT(message(""), HasSubstr("a.safetensors: 0 bytes are too few"));
  EXPECT_THAT(message("1234567"), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(message(std::string(8, '\0')), HasSubstr("header length 0"));
  EXPECT_THAT(message(std::string(8, '\xFF') + "{}"),
              HasSubstr("header length 18446744073709551615"));
  // 100 000 001: one above the limit.
  EXPECT_THAT(message(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8) + "{}"),
              HasSubstr("header length 100000001"));
  std::string cut = image("{}", "");
  cut.pop_back();
  EXPECT_THAT(message(cut), HasSubstr("truncated"));
}

TEST_F(SafeTensorsFile, RefusesBadJson) {
  EXPECT_THAT(message_of_header("[]", ""), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message_of_header(" {}", ""), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message_of_header("{\"a\":", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_header("{} x", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_header("{\"\xC3\x28\":1}", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_header("{\"a\":1e999}", ""), HasSubstr("not valid JSON"));
  std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_THAT(message_of_header(deep, ""), HasSubstr("nested deeper than"));
}

TEST_F(SafeTensorsFile, RefusesDuplicateNames) {
  const std::string twice =
      "{" + entry("w", "F32", "[1]", 0, 4) + "," + entry("w", "F32", "[1]", 4, 8) + "}";
  EXPECT_THAT(message_of_header(twice, "12345678"), HasSubstr("key \"w\" appears twice"));
  EXPECT_THAT(message_of_tensor(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"),
              HasSubstr("key \"shape\" appears twice"));
}

TEST_F(SafeTensorsFile, RefusesBadEntries) {
  EXPECT_THAT(message_of_header("{\"w\":3}", ""), HasSubstr("tensor w: is not described"));
  EXPECT_THAT(message_of_tensor(R"("shape":[2],"data_offsets":[0,8])"),
              HasSubstr("tensor w: lacks dtype"));
  EXPECT_THAT(message_of_tensor(R"("dtype":"F32","data_offsets":[0,8])"), HasSubstr("lacks shape"));
  EXPECT_THAT(message_of_tensor(R"("dtype":"F32","shape":[2])"), HasSubstr("lacks data_offsets"));
  EXPECT_THAT(message_of_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"),
              HasSubstr("not of the format"));
  EXPECT_THAT(message_of_tensor(R"("dtype":5,"shape":[2],"data_offsets":[0,8])"),
              HasSubstr("dtype is not text"));
  EXPECT_THAT(message_of_tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"),
              HasSubstr("tensor w: unknown dtype \"f32\""));
}

TEST_F(SafeTensorsFile, RefusesBadShapes) {
  const auto with_shape = [this](const std::string& dtype, const std::string& shape) {
    return message_of_tensor("\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                             ",\"data_offsets\":[0,8]");
  };
  EXPECT_EQ(with_shape("F32", "[2]"), "");
  EXPECT_THAT(with_shape("F32", "2"), HasSubstr("tensor w: shape is not a list"));
  EXPECT_THAT(with_shape("F32", "[2.0]"), HasSubstr("no integer"));
  EXPECT_THAT(with_shape("F32", "[-2]"), HasSubstr("negative"));
  EXPECT_THAT(with_shape("F32", "[18446744073709551615]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("F32", "[4294967296,4294967296]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("F64", "[4611686018427387904]"), HasSubstr("overflows"));
  // 2^61 elements of 8 bytes are 2^64 bytes, which would wrap to 0.
  EXPECT_THAT(with_shape("F64", "[2305843009213693952]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("F4", "[17]"), HasSubstr("ends within a byte"));
  EXPECT_THAT(with_shape("F32", "[3]"), HasSubstr("need 12 bytes, data_offsets hold 8"));
  EXPECT_THAT(with_shape("F32", "[0,9]"), HasSubstr("need 0 bytes, data_offsets hold 8"));
}

TEST_F(SafeTensorsFile, RefusesBadOffsets) {
  const auto with_offsets = [this](const std::string& offsets) {
    return message_of_tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" + offsets);
  };
  EXPECT_EQ(with_offsets("[0,8]"), "");
  for (const char* bad : {"8", "[0]", "[0,8,8]", "[-1,7]", "[0.0,8.0]", "[\"0\",8]"}) {
    EXPECT_THAT(with_offsets(bad), HasSubstr("tensor w: data_offsets is not a list of two")) << bad;
  }
  EXPECT_THAT(with_offsets("[8,0]"), HasSubstr("end before they begin"));
  EXPECT_THAT(with_offsets("[1,9]"), HasSubstr("truncated"));
  EXPECT_THAT(with_offsets("[18446744073709551608,18446744073709551615]"), HasSubstr("truncated"));
  EXPECT_THAT(with_offsets("[0,4]"), HasSubstr("need 8 bytes, data_offsets hold 4"));
}

TEST_F(SafeTensorsFile, RefusesOverlapsAndHoles) {
  const std::string a = entry("a", "U8", "[4]", 0, 4);
  EXPECT_EQ(message_of_header("{" + a + "," + entry("b", "U8", "[4]", 4, 8) + "}", "12345678"), "");
  EXPECT_THAT(message_of_header("{" + a + "," + entry("b", "U8", "[4]", 2, 6) + "}", "123456"),
              HasSubstr("tensor b: data overlap"));
  EXPECT_THAT(message_of_header("{" + a + "," + entry("b", "U8", "[4]", 0, 4) + "}", "1234"),
              HasSubstr("tensor b: data overlap"));
  EXPECT_THAT(message_of_header("{" + a + "," + entry("b", "U8", "[4]", 5, 9) + "}", "123456789"),
              HasSubstr("tensor b: a hole of 1 bytes"));
  EXPECT_THAT(message_of_header("{" + a + "}", "12345"),
              HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(message_of_header("{}", "12345"), HasSubstr("5 bytes after the last tensor"));
}

TEST_F(SafeTensorsFile, RefusesMisalignedData) {
  const std::string header =
      "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "F32", "[1]", 1, 5) + "}";
  EXPECT_THAT(message_of_header(header, "12345"),
              HasSubstr("tensor b: data are not aligned to the element size of 4"));
}

TEST_F(SafeTensorsFile, RefusesBadMetadata) {
  EXPECT_THAT(message_of_header("{\"__metadata__\":[]}", ""), HasSubstr("not an object"));
  EXPECT_THAT(message_of_header("{\"__metadata__\":{\"a\":1}}", ""),
              HasSubstr("__metadata__ of a is not text"));
}

// Whatever the length of the names, the end of the message, which says what is wrong, survives.
TEST_F(SafeTensorsFile, MessagesOfLongAndUnprintableNamesSayWhatIsWrong) {
  const std::string name = std::string(5000, 'n') + "\\u0007end";
  EXPECT_THAT(message_of_header("{" + entry(name, "F32", "[2]", 0, 4) + "}", "1234"),
              testing::AllOf(HasSubstr("?end: shape and dtype need 8 bytes"), HasSubstr("nnn...")));
}

// Cutting a good file anywhere must give an error, never a file.
TEST_F(SafeTensorsFile, EveryTruncationIsAnError) {
  format_test::TensorSet set;
  set.add("a", {3, 2}).add("b", {5});
  const std::string whole = set.bytes();
  ASSERT_EQ(message(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(message(std::string_view(whole).substr(0, size)), "") << "cut to " << size;
  }
}

TEST(StrictJson, HoldsItsLimits) {
  const auto message = [](std::string_view text, const JsonLimits& limits) {
    const auto parsed = parse_json(text, "what", limits);
    return parsed ? std::string() : std::string(parsed.error().text());
  };
  const JsonLimits limits{.bytes = 20, .depth = 2, .values = 4};
  EXPECT_EQ(message("{\"a\":[1,2]}", {.bytes = 20, .depth = 2, .values = 5}), "");
  EXPECT_EQ(message("{\"a\":[1]}", limits), "");
  EXPECT_THAT(message("{\"a\":[1,2]}", limits), HasSubstr("what: more than 4 JSON values"));
  EXPECT_THAT(message("{\"a\":[[]]}", limits), HasSubstr("what: JSON nested deeper than 2"));
  EXPECT_THAT(message("{                   }", limits), HasSubstr("21 bytes of JSON"));
  EXPECT_THAT(message("7", limits), HasSubstr("root is not an object"));
  EXPECT_THAT(message("[]", limits), HasSubstr("root is not an object"));
  EXPECT_THAT(message("", limits), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace sluice::harness
