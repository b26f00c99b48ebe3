// SPDX-License-Identifier: Apache-2.0
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "harness/oracle.hpp"

namespace sluice::harness {
namespace {

constexpr unsigned char kWorkspacePoison = 0xEE;
constexpr std::size_t kWorkspaceGuardBytes = 4096;
constexpr std::int64_t kScattered = 4096;  // elements away from the sampled lines

// How an output is sampled. Everything behind a row (or, for some weight gradients, a column) of an
// output is computed once, so whole lines are compared.
struct Sampling {
  bool by_column = false;
  double line_cost = 0;     // multiplications
  double element_cost = 0;  // of an element outside the lines; 0 where it costs as much as a line
};

Sampling sampling(const Problem& p, Operand output) {
  const auto m = static_cast<double>(p.m);
  const auto d = static_cast<double>(p.d);
  const auto h = static_cast<double>(p.h);
  switch (p.op) {
    case Op::kGateUp:
      if (output == Operand::kXSum) return {false, d, d};
      return {false, 2 * d * h, 2 * d};
    case Op::kMlp:
      if (output == Operand::kXSum) return {false, d, d};
      if (output == Operand::kG || output == Operand::kU) return {false, 2 * d * h, 2 * d};
      return {false, 3 * d * h, 0};
    case Op::kDown:
      return {false, d * h, h};
    case Op::kGateMul:
    case Op::kGateMulGrad:
      return {false, h, 1};
    case Op::kGateUpGrad:
      return {false, d * h, 0};
    case Op::kNorm:
      return {false, d, d};
    case Op::kInputGrad:
      return {false, 2 * d * h, 2 * h};
    case Op::kWeightGrad:
      return {false, m * d, m};
    case Op::kColumnSum:
      return {true, m, m};
    case Op::kMlpGrad:
    case Op::kAllReduce:
      break;
  }
  const double behind = p.recompute ? 3 : 1;
  switch (output) {
    case Operand::kDg:
    case Operand::kDu:
      return {false, behind * d * h, 0};
    case Operand::kDx:
      return {false, (behind + 2) * d * h, 0};
    case Operand::kDbDown:
      return {true, m, m};
    case Operand::kDbGate:
    case Operand::kDbUp:
      return {true, behind * m * d, 0};
    case Operand::kDwDown:
      return {true, (behind + 1) * m * d, 0};
    default:
      return {false, (behind + 1) * m * d, 0};
  }
}

// First, last, both sides of tile boundaries, and random lines.
std::set<std::int64_t> choose_lines(std::int64_t total, std::int64_t count, std::uint64_t seed) {
  std::set<std::int64_t> out;
  if (count >= total) {
    for (std::int64_t i = 0; i < total; ++i) out.insert(i);
    return out;
  }
  const auto full = [&] { return static_cast<std::int64_t>(out.size()) >= count; };
  auto random_below = [&, draws = std::int64_t{0}](std::int64_t bound) mutable {
    return static_cast<std::int64_t>(detail::draw(seed, ++draws, 0, 0) %
                                     static_cast<std::uint64_t>(bound));
  };
  out.insert(0);
  if (!full()) out.insert(total - 1);
  for (const std::int64_t tile : {128, 64, 16, 256, 32, 8}) {
    if (tile >= total) continue;
    const std::int64_t boundary = tile * (1 + random_below((total - 1) / tile));
    if (!full()) out.insert(boundary);
    if (!full()) out.insert(boundary - 1);
  }
  while (!full()) out.insert(random_below(total));
  return out;
}

}  // namespace

ExpectedOutput expected_output(const Problem& p, const OperandSpec& spec, std::uint64_t seed,
                               Oracle& oracle, const VerifyOptions& options, double budget) {
  const Operand id = spec.id;
  ExpectedOutput out{id, {}};
  const Sampling how = sampling(p, id);
  const std::int64_t total = how.by_column ? spec.cols : spec.rows;
  const std::int64_t length = how.by_column ? spec.rows : spec.cols;
  if (total == 0 || length == 0) return out;
  const auto affordable = static_cast<std::int64_t>(
      std::min(budget / how.line_cost,
               static_cast<double>(options.max_elements) / static_cast<double>(length)));
  const std::int64_t least = std::min(options.max_rows, total);
  const auto lines = choose_lines(total, std::clamp(affordable, least, total),
                                  seed + static_cast<std::uint64_t>(id));
  const auto expect = [&](std::int64_t row, std::int64_t col) {
    out.elements.push_back({row, col, oracle.at(id, row, col)});
  };
  for (const std::int64_t line : lines) {
    for (std::int64_t i = 0; i < length; ++i) {
      how.by_column ? expect(i, line) : expect(line, i);
    }
  }
  if (static_cast<std::int64_t>(lines.size()) == total || how.element_cost == 0) return out;
  const auto scattered =
      std::min(kScattered, static_cast<std::int64_t>(budget / how.element_cost / 4));
  for (std::int64_t i = 0; i < scattered; ++i) {
    const auto pick = [&](std::uint64_t lane, std::int64_t bound) {
      return static_cast<std::int64_t>(detail::draw(seed, i, 1, lane) %
                                       static_cast<std::uint64_t>(bound));
    };
    expect(pick(0, spec.rows), pick(1, spec.cols));
  }
  return out;
}

namespace {

// The same bits in every element; which NaN a NaN is, IEEE 754 leaves open.
bool same_elements(const OperandSpec& spec, const std::vector<char>& a,
                   const std::vector<char>& b) {
  if (a == b) return true;
  const HostMatrix first{spec, a.data()};
  const HostMatrix second{spec, b.data()};
  for (std::int64_t row = 0; row < spec.rows; ++row) {
    for (std::int64_t col = 0; col < spec.cols; ++col) {
      const auto at = static_cast<std::size_t>(offset_bytes(spec.layout, spec.dtype, row, col));
      const auto bytes = static_cast<std::size_t>(size_bytes(spec.dtype));
      if (std::memcmp(a.data() + at, b.data() + at, bytes) == 0) continue;
      if (!std::isnan(first.at(row, col)) || !std::isnan(second.at(row, col))) return false;
    }
  }
  return true;
}

// A stray write is a finding to report, every other failure an error.
Status note_stray_write(const Status& looked, std::string& stray_write) {
  if (looked || looked.error().code != ErrorCode::kInternal) return looked;
  if (stray_write.empty()) stray_write = looked.error().text();
  return {};
}

Status run_once(const Plan& plan, OperandSet& set, Rig& rig, std::string& stray_write) {
  auto memory = make_workspace(plan, rig);
  if (!memory) return memory.error();
  SLUICE_TRY(run(plan, set.operands(), memory->workspace, rig.stream()));
  SLUICE_TRY(rig.synchronize());
  SLUICE_TRY(note_stray_write(check_workspace(*memory, rig), stray_write));
  return note_stray_write(set.check_canaries(), stray_write);
}

// Where NaN is right, or may be, NaN poison that nothing wrote over is not told from a result.
bool hides_poison(const std::vector<ExpectedOutput>& expected) {
  for (const ExpectedOutput& output : expected) {
    for (const ExpectedElement& element : output.elements) {
      if (std::isnan(element.value.value) || element.value.may_overflow) return true;
    }
  }
  return false;
}

// On a CPU the second run has another thread count, which must not change a bit either.
Expected<Plan> second_plan(const Plan& first, const Options& options) {
  if (first.device.backend != Backend::kCpu) return first;
  const std::string config = first.config_name();
  Options other = options;
  other.variant = first.variant_name();
  other.config = config.c_str();
  other.threads = first.threads == 1 ? 3 : 1;
  return plan(first.problem, first.device, other);
}

// Outputs start from another poison than the first run's, so that an element that no run writes
// differs too.
Status run_again(const Plan& first, const Options& options, OperandSet& set, Rig& rig,
                 VerifyReport& report) {
  const auto before = output_bits(set);
  if (!before) return before.error();
  SLUICE_TRY(set.reset_outputs(Poison::kZero));
  const auto plan = second_plan(first, options);
  if (!plan) return plan.error();
  SLUICE_TRY(run_once(*plan, set, rig, report.stray_write));
  const auto changed = changed_output(set, *before);
  if (!changed) return changed.error();
  if (!changed->empty()) {
    report.unrepeated =
        fmt::format("{} (with {} and {} threads)", *changed, first.threads, plan->threads);
  }
  return {};
}

}  // namespace

Expected<OutputBits> output_bits(OperandSet& set) {
  OutputBits out;
  for (const Operand id : set.outputs()) {
    const auto now = set.host_matrix(id);
    if (!now) return now.error();
    const auto* const bytes = static_cast<const char*>(now->data);
    out.emplace_back(bytes, bytes + extent_bytes(now->spec));
  }
  return out;
}

Expected<std::string> changed_output(OperandSet& set, const OutputBits& before) {
  const auto after = output_bits(set);
  if (!after) return after.error();
  const std::vector<Operand> outputs = set.outputs();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const OperandSpec& spec = set.spec(outputs[i]);
    if (!same_elements(spec, before[i], (*after)[i])) return std::string(spec.name);
  }
  return std::string();
}

Expected<RigWorkspace> make_workspace(const Plan& plan, Rig& rig) {
  RigWorkspace out;
  if (plan.workspace_bytes == 0) return out;
  auto buffer = RigBuffer::make(rig, plan.workspace_bytes + kWorkspaceGuardBytes);
  if (!buffer) return buffer.error();
  out.buffer = std::move(*buffer);
  out.workspace = {out.buffer.data(), plan.workspace_bytes};
  SLUICE_TRY(rig.fill_bytes(out.buffer.data(), kWorkspacePoison, out.buffer.bytes()));
  SLUICE_TRY(workspace_init(out.workspace, plan.device, rig.stream()));
  return out;
}

Status check_workspace(const RigWorkspace& memory, Rig& rig) {
  if (memory.workspace.data == nullptr) return {};
  std::vector<unsigned char> guard(kWorkspaceGuardBytes);
  SLUICE_TRY(
      rig.download(guard.data(), memory.buffer.data() + memory.workspace.bytes, guard.size()));
  const auto broken = std::find_if(guard.begin(), guard.end(),
                                   [](unsigned char byte) { return byte != kWorkspacePoison; });
  if (broken == guard.end()) return {};
  return make_error(ErrorCode::kInternal, "workspace: a write %lld bytes behind its end",
                    static_cast<long long>(broken - guard.begin()) + 1);
}

Expected<std::vector<ExpectedOutput>> expected_outputs(OperandSet& set,
                                                       const VerifyOptions& verify) {
  const Case& c = set.test_case();
  std::vector<ExpectedOutput> out;
  if (c.problem.m == 0) return out;
  const auto inputs = set.host_inputs();
  if (!inputs) return inputs.error();
  Oracle oracle(c.problem, *inputs, verify.rounds);
  oracle.set_exact(c.fill == Fill::kIntegers && exact_integers(c.problem));
  const std::vector<Operand> outputs = set.outputs();
  const double budget = verify.max_operations / static_cast<double>(outputs.size());
  for (const Operand id : outputs) {
    out.push_back(expected_output(c.problem, set.spec(id), c.seed, oracle, verify, budget));
  }
  return out;
}

Expected<std::vector<Comparison>> compare_outputs(OperandSet& set,
                                                  const std::vector<ExpectedOutput>& expected) {
  std::vector<Comparison> out;
  for (const ExpectedOutput& output : expected) {
    const auto got = set.host_matrix(output.operand);
    if (!got) return got.error();
    Comparator comparator(output.operand, got->spec.dtype);
    for (const ExpectedElement& element : output.elements) {
      comparator.add(element.row, element.col, element.value, got->at(element.row, element.col));
    }
    out.push_back(comparator.result());
  }
  return out;
}

Expected<std::vector<Comparison>> compare_outputs(OperandSet& set, const VerifyOptions& verify) {
  const auto expected = expected_outputs(set, verify);
  if (!expected) return expected.error();
  return compare_outputs(set, *expected);
}

Expected<VerifyReport> Verification::run(const Options& options) {
  const auto made = plan(case_.problem, rig_.device(), options);
  if (!made) return made.error();
  VerifyReport report;
  report.test_case = case_;
  report.variant = made->variant_name();
  report.config = made->config_name();
  report.source = made->source;
  report.threads = made->threads;
  report.workspace_bytes = made->workspace_bytes;
  // Kept for the next run only if this one comes to its end and leaves it as it was filled.
  auto set = std::move(set_);
  if (set == nullptr) {
    auto filled = OperandSet::make(case_, rig_);
    if (!filled) return filled.error();
    set = std::move(*filled);
  } else {
    SLUICE_TRY(set->reset_outputs());
  }
  if (expected_.empty()) {
    auto expected = expected_outputs(*set, verify_);
    if (!expected) return expected.error();
    expected_ = std::move(*expected);
  }
  SLUICE_TRY(run_once(*made, *set, rig_, report.stray_write));
  auto outputs = compare_outputs(*set, expected_);
  if (!outputs) return outputs.error();
  report.outputs = std::move(*outputs);
  if ((verify_.repeat || hides_poison(expected_)) && case_.problem.m > 0) {
    SLUICE_TRY(run_again(*made, options, *set, rig_, report));
  }
  if (report.stray_write.empty()) set_ = std::move(set);
  return report;
}

bool VerifyReport::right() const noexcept {
  return stray_write.empty() && unrepeated.empty() &&
         (!outputs.empty() || test_case.problem.m == 0) &&
         std::all_of(outputs.begin(), outputs.end(),
                     [](const Comparison& c) { return c.failed == 0; });
}

bool VerifyReport::passed() const noexcept {
  return right() && std::all_of(outputs.begin(), outputs.end(),
                                [](const Comparison& c) { return c.passed(); });
}

std::string VerifyReport::text() const {
  std::string out = fmt::format("{} {}: {} ({}), config {}, {} threads, workspace {} bytes\n",
                                passed() ? "passed" : "FAILED", format_case(test_case), variant,
                                to_string(source), config, threads, workspace_bytes);
  if (outputs.empty() && test_case.problem.m > 0)
    out += "  no output was asked for, nothing is compared\n";
  for (const Comparison& c : outputs) out += "  " + to_string(c) + "\n";
  if (!stray_write.empty()) out += "  stray write: " + stray_write + "\n";
  if (!unrepeated.empty()) {
    out += "  other bits on the second run, or elements that no run writes: " + unrepeated + "\n";
  }
  if (!passed()) out += "  repeat with: " + repro() + "\n";
  return out;
}

}  // namespace sluice::harness
