// SPDX-License-Identifier: Apache-2.0
// plan() and explain(): choice, forcing, the tuning-table hook, purity.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "expect_error.hpp"
#include "sluice/sluice.hpp"

namespace {
thread_local long allocations = 0;
}  // namespace

// gcc 12 at -O1 sees malloc behind one operator and free behind the other, and not that they pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

// Counted, so that plan() and run() can be shown not to allocate.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

namespace sluice {
namespace {

using test::fails;
using test::refuses;
using test::succeeds;

Problem problem_of(Op op) {
  Problem p;
  p.op = op;
  p.m = 4;
  p.d = 64;
  p.h = 96;
  p.norm.enabled = op == Op::kNorm;
  return p;
}

class FakeTable final : public TuneTable {
 public:
  FakeTable(const char* variant, const char* config) {
    // An overlong name fills its field without a terminating zero, as a broken table may.
    std::memcpy(choice_.variant, variant, std::min(kMaxName, std::strlen(variant)));
    std::memcpy(choice_.config, config, std::min(kMaxConfig, std::strlen(config)));
  }
  [[nodiscard]] std::optional<TuneChoice> find(const Problem& /*problem*/,
                                               const Device& /*device*/) const noexcept override {
    ++asked;
    return empty ? std::nullopt : std::optional<TuneChoice>(choice_);
  }
  mutable int asked = 0;
  bool empty = false;

 private:
  TuneChoice choice_{};
};

TEST(Plan, IsAPlainValue) {
  static_assert(std::is_trivially_copyable_v<Plan>);
  static_assert(std::is_trivially_copyable_v<Problem> && std::is_trivially_copyable_v<Device>);
  const Plan made = plan(problem_of(Op::kMlp), cpu_device()).value();
  const Plan copy = made;
  EXPECT_STREQ(copy.variant_name(), made.variant_name());
  EXPECT_EQ(copy.config_name(), made.config_name());
  EXPECT_EQ(copy.workspace_bytes, made.workspace_bytes);
  EXPECT_STREQ(Plan{}.variant_name(), "");
  EXPECT_EQ(Plan{}.config_name(), "");
}

TEST(Plan, EveryOperatorHasAVariantAndAConfig) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int dtype = 0; dtype < kFloatDTypeCount; ++dtype) {
      Problem p = problem_of(static_cast<Op>(op));
      p.x_dtype = p.w_dtype = p.y_dtype = p.dw_dtype = static_cast<DType>(dtype);
      const auto made = plan(p, cpu_device());
      ASSERT_TRUE(succeeds(made)) << to_string(p);
      EXPECT_EQ(made->source, ChoiceSource::kHeuristic);
      EXPECT_NE(made->config_name(), "");
      if (p.x_dtype == DType::kF64) {
        EXPECT_STREQ(made->variant_name(), "cpu.reference");
      }
    }
  }
}

TEST(Plan, AllocatesNothing) {
  const Problem p = problem_of(Op::kMlp);
  Problem wrong = p;
  wrong.gate.limit = -1;
  const Device cpu = cpu_device();
  const FakeTable table("cpu.reference", "");
  const long before = allocations;
  const bool good = plan(p, cpu).has_value() && plan(p, cpu, {.tune = &table}).has_value() &&
                    plan(p, cpu, {.variant = "cpu.reference"}).has_value();
  const bool bad = !plan(wrong, cpu).has_value() && !plan(p, cpu, {.variant = "?"}).has_value();
  EXPECT_EQ(allocations, before);
  EXPECT_TRUE(good && bad);
  EXPECT_FALSE(explain(p, cpu).variants.empty());
  EXPECT_GT(allocations, before) << "the counter does not see the library's allocations";
}

// The first call may start the pool's threads; from then on run() lives on the plan's workspace.
TEST(Run, AllocatesNothing) {
  for (const char* variant : {"cpu.simd", "cpu.reference"}) {
    const Problem p = problem_of(Op::kMlp);
    const Plan made = plan(p, cpu_device(), {.variant = variant}).value();
    const auto count = [](std::int64_t rows, std::int64_t cols) {
      return std::vector<std::uint16_t>(static_cast<std::size_t>(rows * cols));
    };
    const auto x = count(p.m, p.d);
    const auto w_gate = count(p.h, p.d);
    const auto w_up = count(p.h, p.d);
    const auto w_down = count(p.d, p.h);
    auto y = count(p.m, p.d);
    Operands operands;
    operands.x = x.data();
    operands.w_gate = w_gate.data();
    operands.w_up = w_up.data();
    operands.w_down = w_down.data();
    operands.y = y.data();
    std::vector<unsigned char> memory(made.workspace_bytes + kWorkspaceAlignment);
    void* data = memory.data();
    std::size_t space = memory.size();
    ASSERT_NE(std::align(kWorkspaceAlignment, made.workspace_bytes, data, space), nullptr);
    const Workspace workspace{data, made.workspace_bytes};
    ASSERT_TRUE(succeeds(workspace_init(workspace, made.device, nullptr)));
    ASSERT_TRUE(succeeds(run(made, operands, workspace, nullptr)));
    const long before = allocations;
    const Status status = run(made, operands, workspace, nullptr);
    EXPECT_EQ(allocations, before) << variant;
    EXPECT_TRUE(succeeds(status));
  }
}

class Lines final : public Log {
 public:
  void write(const char* line) const noexcept override {
    all += line;
    all += '\n';
  }
  mutable std::string all;
};

TEST(Plan, TellsTheLogWhatItChoseAndWhy) {
  const Device cpu = cpu_device();
  const Lines lines;
  Problem p = problem_of(Op::kMlp);
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF64;
  ASSERT_TRUE(plan(p, cpu, {.log = &lines}).has_value());
  EXPECT_NE(lines.all.find("cpu.simd: "), std::string::npos) << lines.all;
  EXPECT_NE(lines.all.find("mlp 4x64x96: cpu.reference, config "), std::string::npos) << lines.all;
  lines.all.clear();
  const FakeTable table("cpu.unheard_of", "");
  ASSERT_TRUE(plan(problem_of(Op::kMlp), cpu, {.tune = &table, .log = &lines}).has_value());
  EXPECT_NE(lines.all.find("tuning table: variant \"cpu.unheard_of\", config \"\" passed over"),
            std::string::npos)
      << lines.all;
}

TEST(Plan, IsDeterministic) {
  const Device cpu = cpu_device();
  const Plan a = plan(problem_of(Op::kMlp), cpu).value();
  const Plan b = plan(problem_of(Op::kMlp), cpu).value();
  EXPECT_EQ(a.recipe, b.recipe);
  ASSERT_EQ(a.step_count, b.step_count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(a.step_count); ++i) {
    EXPECT_EQ(a.steps[i].kernel, b.steps[i].kernel);
    EXPECT_EQ(a.steps[i].config, b.steps[i].config);
    EXPECT_EQ(a.steps[i].role, b.steps[i].role);
  }
  EXPECT_EQ(a.workspace_bytes, b.workspace_bytes);
}

TEST(Plan, RefusesInvalidProblemsAndThreads) {
  Problem p = problem_of(Op::kMlp);
  for (const int threads : {-1, kMaxThreads + 1, 2'000'000'000}) {
    EXPECT_TRUE(refuses(plan(p, cpu_device(), {.threads = threads}),
                        "threads: got " + std::to_string(threads) + ", wanted 0 to 65536"));
  }
  EXPECT_EQ(plan(p, cpu_device(), {.threads = kMaxThreads}).value().threads, kMaxThreads);
  p.h = -3;
  EXPECT_TRUE(refuses(plan(p, cpu_device()), "h: got -3, wanted at least 1"));
}

TEST(Plan, ThreadsDefaultToTheDevice) {
  Device cpu = cpu_device();
  cpu.threads = 5;
  EXPECT_EQ(plan(problem_of(Op::kMlp), cpu).value().threads, 5);
  EXPECT_EQ(plan(problem_of(Op::kMlp), cpu, {.threads = 3}).value().threads, 3);
  cpu.threads = 0;  // a Device that the caller filled by hand
  EXPECT_EQ(plan(problem_of(Op::kMlp), cpu).value().threads, 1);
}

TEST(Plan, ForcesAVariantByName) {
  for (const std::string& name : variant_names(Backend::kCpu)) {
    Problem p = problem_of(Op::kMlp);
    const auto made = plan(p, cpu_device(), {.variant = name.c_str()});
    if (!made) continue;  // refused: a reason is tested below
    EXPECT_EQ(made->variant_name(), name);
    EXPECT_EQ(made->source, ChoiceSource::kForced);
  }
  EXPECT_TRUE(refuses(plan(problem_of(Op::kMlp), cpu_device(), {.variant = "cpu.none"}),
                      "variant: got \"cpu.none\", wanted a variant of the cpu backend"));
  EXPECT_TRUE(refuses(plan(problem_of(Op::kMlp), cpu_device(), {.variant = ""}),
                      "variant: got \"\", wanted"));
}

TEST(Plan, AForcedVariantThatRefusesSaysWhy) {
  Problem p = problem_of(Op::kMlp);
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF64;  // the reference alone takes fp64
  EXPECT_TRUE(fails(plan(p, cpu_device(), {.variant = "cpu.simd"}), ErrorCode::kUnsupported,
                    "variant cpu.simd: "));
}

TEST(Plan, ForcesAConfigByName) {
  const Problem p = problem_of(Op::kMlp);
  const auto made = plan(p, cpu_device(), {.config = "mlp=fp64"});
  ASSERT_TRUE(succeeds(made));
  EXPECT_STREQ(made->variant_name(), "cpu.reference");
  EXPECT_EQ(made->source, ChoiceSource::kForced);
  EXPECT_TRUE(refuses(plan(p, cpu_device(), {.variant = "cpu.reference", .config = "none"}),
                      "cpu.reference offers for this problem, such as \"mlp=fp64\""));
}

// Nothing named, no "=", a step that is not there, a word that its kernel does not have, an item
// that is empty.
TEST(Plan, RefusesConfigsThatNameWhatIsNotThere) {
  const Problem p = problem_of(Op::kMlp);
  for (const std::string config :
       {"", "none", "fp64", "mlp", "mlp=", "=fp64", "down=fp64", "mlp=fp32", "mlp=fp64,",
        ",mlp=fp64", "mlp=fp64,down=fp64", "mlp=fp64,,mlp=fp64", "mlp=fp64 ", "MLP=fp64"}) {
    const std::string wanted = "config: got \"" + config + "\", wanted";
    EXPECT_TRUE(refuses(plan(p, cpu_device(), {.config = config.c_str()}), wanted));
    EXPECT_TRUE(refuses(
        plan(p, cpu_device(), {.variant = "cpu.reference", .config = config.c_str()}), wanted));
  }
  const std::string overlong = "mlp=" + std::string(2 * kMaxConfig, 'x');
  EXPECT_TRUE(refuses(plan(p, cpu_device(), {.config = overlong.c_str()}), "config: got \"mlp="));
}

// A GPU that is described, not there.
Device hopper() {
  Device d;
  d.backend = Backend::kCuda;
  d.arch = Arch::kHopper;
  d.compute_capability = 90;
  d.sm_count = 132;
  d.smem_per_block_bytes = 232448;
  d.cooperative_launch = true;
  return d;
}

// What a config leaves out is as without one.
TEST(Plan, AConfigMayNameSomeStepsOnly) {
  if (variant_names(Backend::kCuda).empty()) GTEST_SKIP() << "needs a build with CUDA";
  Problem p = problem_of(Op::kMlp);
  p.m = 1024;
  p.d = 4096;
  p.h = 14336;
  const auto names = config_names("cuda.sm90", p, hopper());
  ASSERT_FALSE(names.empty());
  const auto parts_of = [](const std::string& name) {
    const std::size_t comma = name.find(',');
    return std::pair(name.substr(0, comma), name.substr(comma + 1));
  };
  const auto [gate_up, down] = parts_of(names.front());
  for (const std::string& name : names) {
    const auto [own_gate_up, own_down] = parts_of(name);
    const auto forced = [&](const std::string& config) {
      return plan(p, hopper(), {.variant = "cuda.sm90", .config = config.c_str()})
          .value()
          .config_name();
    };
    EXPECT_EQ(forced(own_gate_up), own_gate_up + "," + down);
    EXPECT_EQ(forced(own_down), gate_up + "," + own_down);
    EXPECT_EQ(forced(own_down + "," + own_gate_up), own_gate_up + "," + own_down);
  }
}

TEST(Plan, EveryConfigNameCanBeForced) {
  const Problem p = problem_of(Op::kMlp);
  for (const std::string& variant : variant_names(Backend::kCpu)) {
    const auto names = config_names(variant.c_str(), p, cpu_device());
    const auto by_default = plan(p, cpu_device(), {.variant = variant.c_str()});
    ASSERT_EQ(names.empty(), !by_default.has_value()) << variant;
    if (names.empty()) continue;
    EXPECT_EQ(names[0], by_default->config_name());
    for (const std::string& name : names) {
      const auto made = plan(p, cpu_device(), {.variant = variant.c_str(), .config = name.c_str()});
      ASSERT_TRUE(succeeds(made)) << variant << " " << name;
      EXPECT_EQ(made->config_name(), name);
    }
  }
  EXPECT_TRUE(config_names("cpu.none", p, cpu_device()).empty());
}

TEST(Plan, WithoutABackendThereIsNoVariant) {
  Device gpu;
  gpu.backend = Backend::kCuda;
  gpu.sm_count = 132;
  if (!variant_names(Backend::kCuda).empty()) GTEST_SKIP() << "built with CUDA";
  EXPECT_TRUE(fails(plan(problem_of(Op::kMlp), gpu), ErrorCode::kUnsupported,
                    "mlp: this Sluice was built without the cuda backend"));
  EXPECT_TRUE(fails(cuda_device(0), ErrorCode::kUnsupported, "built without CUDA"));
  EXPECT_EQ(cuda_device_count(), 0);
}

TEST(TuneTableHook, IsHonouredAndReported) {
  const FakeTable table("cpu.reference", "mlp=fp64");
  const auto made = plan(problem_of(Op::kMlp), cpu_device(), {.tune = &table});
  ASSERT_TRUE(succeeds(made));
  EXPECT_STREQ(made->variant_name(), "cpu.reference");
  EXPECT_EQ(made->source, ChoiceSource::kTuneTable);
  EXPECT_EQ(table.asked, 1);
}

TEST(TuneTableHook, UnknownRefusingAndOverlongEntriesArePassedOver) {
  const std::string overlong(kMaxConfig, 'x');
  const Plan heuristic = plan(problem_of(Op::kMlp), cpu_device()).value();
  for (const FakeTable& table :
       {FakeTable("cpu.none", ""), FakeTable("cpu.reference", "none"), FakeTable("", ""),
        FakeTable(overlong.c_str(), ""), FakeTable("cpu.reference", overlong.c_str())}) {
    const auto made = plan(problem_of(Op::kMlp), cpu_device(), {.tune = &table});
    ASSERT_TRUE(succeeds(made));
    EXPECT_STREQ(made->variant_name(), heuristic.variant_name());
    EXPECT_EQ(made->source, ChoiceSource::kHeuristic);
    EXPECT_EQ(table.asked, 1);
  }
  Problem p = problem_of(Op::kMlp);
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF64;
  const FakeTable refusing("cpu.simd", "");
  EXPECT_EQ(plan(p, cpu_device(), {.tune = &refusing}).value().source, ChoiceSource::kHeuristic);
  FakeTable silent("cpu.reference", "");
  silent.empty = true;
  EXPECT_EQ(plan(p, cpu_device(), {.tune = &silent}).value().source, ChoiceSource::kHeuristic);
}

TEST(TuneTableHook, IsNotAskedWhereAChoiceIsForced) {
  const FakeTable table("cpu.reference", "");
  ASSERT_TRUE(plan(problem_of(Op::kMlp), cpu_device(),
                   {.variant = "cpu.reference", .config = nullptr, .tune = &table})
                  .has_value());
  ASSERT_TRUE(
      plan(problem_of(Op::kMlp), cpu_device(), {.config = "mlp=fp64", .tune = &table}).has_value());
  EXPECT_EQ(table.asked, 0);
}

TEST(Explain, ListsEveryVariantOfTheBackendAndOneChoice) {
  const Problem p = problem_of(Op::kMlp);
  const Explanation why = explain(p, cpu_device());
  const auto names = variant_names(Backend::kCpu);
  ASSERT_EQ(why.variants.size(), names.size());
  int chosen = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(why.variants[i].variant, names[i]);
    chosen += why.variants[i].chosen ? 1 : 0;
    EXPECT_FALSE(why.variants[i].chosen && !why.variants[i].reason.empty());
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(why.config, plan(p, cpu_device()).value().config_name());
  ASSERT_EQ(why.steps.size(), 1U);
  const ExplainedStep& step = why.steps.front();
  EXPECT_EQ(step.name, "mlp");
  EXPECT_EQ(step.kernel, "cpu.simd");
  EXPECT_EQ(step.name + "=" + step.config, why.config);
  EXPECT_NE(step.blocks, "");
  EXPECT_EQ(step.passed_over, "") << "the recipe has one kernel";
  EXPECT_FALSE(why.error.has_value());
  EXPECT_EQ(names.back(), "cpu.reference") << "the reference is the last resort";
}

TEST(Explain, SaysWhatTheChosenRecipeIsThereFor) {
  std::set<std::string> reasons;
  const auto names = variant_names(Backend::kCpu);
  for (const std::string& name : names) {
    const Explanation why = explain(problem_of(Op::kMlp), cpu_device(), {.variant = name.c_str()});
    EXPECT_NE(why.reason, "") << name;
    reasons.insert(why.reason);
  }
  EXPECT_EQ(reasons.size(), names.size());
}

TEST(Explain, CarriesReasonsAndErrors) {
  Problem p = problem_of(Op::kMlp);
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF64;
  const Explanation why = explain(p, cpu_device(), {.variant = "cpu.simd"});
  ASSERT_TRUE(why.error.has_value());
  EXPECT_EQ(why.reason, "") << "of no recipe";
  for (const Refusal& v : why.variants) {
    EXPECT_FALSE(v.chosen);
    EXPECT_EQ(v.reason.empty(), v.variant == "cpu.reference") << v.variant;
  }
  p.m = -1;
  const Explanation invalid = explain(p, cpu_device());
  ASSERT_TRUE(invalid.error.has_value());
  EXPECT_TRUE(invalid.variants.empty() && invalid.steps.empty());
  EXPECT_EQ(invalid.error->text(), "m: got -1, wanted at least 0");
}

}  // namespace
}  // namespace sluice
