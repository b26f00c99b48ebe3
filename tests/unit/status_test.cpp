// SPDX-License-Identifier: Apache-2.0
// Error, Expected, Status, and the spelling of every enumerator.
#include "sluice/status.hpp"

#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "expect_error.hpp"
#include "sluice/sluice.hpp"

namespace sluice {
namespace {

using test::fails;

TEST(Error, MessagesAreCutNotOverrun) {
  const std::string text(2 * Error::kMaxMessage, 'x');
  const Error error = make_error(ErrorCode::kDevice, "%s", text.c_str());
  EXPECT_EQ(error.text(), text.substr(0, Error::kMaxMessage - 1));
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.cuda_code, 0);
}

Expected<int> half(int v) {
  if (v % 2 != 0)
    return make_error(ErrorCode::kInvalidArgument, "v: got %d, wanted an even one", v);
  return v / 2;
}

Status halve_twice(int v, int* out) {
  SLUICE_TRY(half(v));
  const auto once = half(v);
  const auto twice = half(*once);
  if (!twice) return twice.error();
  *out = *twice;
  return {};
}

TEST(Expected, HoldsAValueOrAnError) {
  const auto good = half(8);
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(*good, 4);
  EXPECT_EQ(good.value(), 4);
  const auto bad = half(3);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().text(), "v: got 3, wanted an even one");
  EXPECT_THROW(static_cast<void>(bad.value()), std::bad_variant_access);
}

TEST(Expected, MovesItsValueOut) {
  Expected<std::unique_ptr<int>> made(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 5);
  const Expected<std::string> text(std::string("abc"));
  EXPECT_EQ(text->size(), 3U);
}

TEST(Status, TryReturnsTheError) {
  int out = 0;
  EXPECT_TRUE(halve_twice(8, &out).has_value());
  EXPECT_EQ(out, 2);
  EXPECT_TRUE(fails(halve_twice(3, &out), ErrorCode::kInvalidArgument, "v: got 3"));
  EXPECT_TRUE(fails(halve_twice(6, &out), ErrorCode::kInvalidArgument, "v: got 3"));
  EXPECT_TRUE(Status().has_value());
}

template <class E>
void expect_distinct_names(int count) {
  std::set<std::string> names;
  for (int i = 0; i < count; ++i) {
    const std::string name = to_string(static_cast<E>(i));
    EXPECT_EQ(name.find("invalid"), std::string::npos) << name;
    names.insert(name);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(std::string(to_string(static_cast<E>(count))).rfind("invalid ", 0), 0U);
}

TEST(Names, EveryEnumeratorHasItsOwnAndOthersSayInvalid) {
  expect_distinct_names<DType>(kDTypeCount);
  expect_distinct_names<Op>(kOpCount + 1);  // and the step all_reduce
  expect_distinct_names<Activation>(kActivationCount);
  expect_distinct_names<Backend>(2);
  expect_distinct_names<Arch>(6);
  expect_distinct_names<SimdTarget>(kSimdTargetCount);
  expect_distinct_names<ChoiceSource>(5);
  Problem p;
  p.m = 128;
  p.d = 4096;
  p.h = 14336;
  EXPECT_EQ(to_string(p), "mlp 128x4096x14336 bf16 silu");
}

TEST(CpuDevice, DescribesThisMachine) {
  const Device cpu = cpu_device();
  EXPECT_EQ(cpu.backend, Backend::kCpu);
  EXPECT_EQ(cpu.arch, Arch::kNone);
  EXPECT_GE(cpu.threads, 1);
  EXPECT_EQ(cpu.simd_targets & 1U, 1U) << "the emulated target runs anywhere";
  EXPECT_GT(cpu.memory_bytes, 0);
  EXPECT_NE(std::memchr(cpu.name, '\0', sizeof(cpu.name)), nullptr);
}

}  // namespace
}  // namespace sluice
