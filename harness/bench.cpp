// SPDX-License-Identifier: Apache-2.0
#include "harness/bench.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string_view>

#include "harness/data.hpp"
#include "harness/unfused.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "harness/cuda/predecessor.hpp"
#endif

namespace sluice::harness {
namespace {

// One operator of a pass: its plan, and operand sets to rotate over.
struct Part {
  Case test_case{};
  Plan plan{};
  RigWorkspace workspace{};
  std::vector<std::unique_ptr<OperandSet>> sets;

  [[nodiscard]] Run bind(std::size_t copy) const {
    return [this, copy](Stream stream) {
      return run(plan, sets[copy]->operands(), workspace.workspace, stream);
    };
  }
};

Error no_pass(const Case& c) {
  return make_error(
      ErrorCode::kInvalidArgument,
      "pass: got bwd or full for %s, wanted mlp or mlp_grad without norm, residual or sums",
      format_case(c).c_str());
}

// The operators that a pass of this case runs, in order.
Expected<std::vector<Case>> cases_of(const Case& c, Pass pass) {
  if (c.problem.m == 0) {
    return make_error(ErrorCode::kInvalidArgument, "bench: got m = 0, wanted at least 1");
  }
  const Problem& p = c.problem;
  if (p.op == Op::kMlpGrad && c.in_place) {
    return make_error(ErrorCode::kInvalidArgument,
                      "bench: got mlp_grad in_place, wanted g and u kept: written over, run after "
                      "run, they come to nothing, and products of zeros are faster");
  }
  if (pass == Pass::kForward || pass == Pass::kDecode) return std::vector<Case>{c};
  if ((p.op != Op::kMlp && p.op != Op::kMlpGrad) || p.norm.enabled || p.accumulate_dw ||
      p.residual != Residual::kNone) {
    return no_pass(c);
  }
  std::vector<Case> out;
  if (pass == Pass::kFull) {
    out.push_back(c);
    out.back().problem.op = Op::kMlp;
    out.back().problem.save_g_u = !p.recompute;
    out.back().problem.recompute = out.back().problem.save_dg_du = false;
    SLUICE_TRY(place(out.back()));
  }
  out.push_back(c);
  out.back().problem.op = Op::kMlpGrad;
  out.back().problem.save_g_u = false;
  SLUICE_TRY(place(out.back()));
  return out;
}

bool is_gradient(Op op) {
  return op == Op::kGateMulGrad || op == Op::kGateUpGrad || op == Op::kMlpGrad;
}

// Bytes of the operands of which `wanted` says so.
template <class Wanted>
std::int64_t bytes_where(const Problem& problem, Wanted wanted) {
  std::int64_t bytes = 0;
  for (const OperandSpec& spec : operand_specs(problem)) {
    if (spec.access == Access::kUnused || !wanted(spec.id)) continue;
    const std::int64_t rows = spec.layout.row_stride_bytes == 0 ? 1 : spec.rows;
    bytes += rows * bytes_of(spec.dtype, spec.cols);
  }
  return bytes;
}

Expected<Part> make_part(const Case& c, Rig& rig, const BenchOptions& options) {
  Part part;
  part.test_case = c;
  const auto made = plan(c.problem, rig.device(), options.plan);
  if (!made) return made.error();
  part.plan = *made;
  auto workspace = make_workspace(part.plan, rig);
  if (!workspace) return workspace.error();
  part.workspace = std::move(*workspace);

  // A training step keeps what its forward operator read and wrote, whoever recomputes what.
  const bool trains = options.pass == Pass::kBackward || options.pass == Pass::kFull;
  const std::int64_t rotating = trains ? operand_bytes(c.problem) : rotating_bytes(c.problem);
  const std::size_t copies =
      options.copies > 0 ? options.copies : timing::chain_copies(rotating, rig.device());
  if (const std::int64_t free = rig.free_bytes() / std::max<std::int64_t>(rotating, 1);
      options.copies > 0 && static_cast<std::int64_t>(copies) > free) {
    return make_error(ErrorCode::kOutOfMemory, "bench: got %zu copies, memory is free for %lld",
                      copies, static_cast<long long>(free));
  }
  for (std::size_t i = 0; i < copies; ++i) {
    if (options.progress) {
      options.progress(format_case(c) + ": filling copy " + std::to_string(i + 1) + " of " +
                       std::to_string(copies));
    }
    const bool shares = !trains && !part.sets.empty();
    const OperandSet* const first = shares ? part.sets.front().get() : nullptr;
    auto set = OperandSet::make(c, rig, Checked::kNo, first);
    if (!set) return set.error();
    part.sets.push_back(std::move(*set));
  }
  return part;
}

double worst_relative_error(const std::vector<VerifyReport>& checks) {
  double worst = 0;
  for (const VerifyReport& check : checks) {
    for (const Comparison& c : check.outputs) worst = std::max(worst, c.mean_relative_error);
  }
  return worst;
}

// The text of a case that differs from 1x1x1 in one token; `plain` where it does not differ.
std::string token_of(const Case& c, const char* plain) {
  const std::string text = format_case(c);
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? plain : text.substr(colon + 1);
}

// The kernel ahead of each run in a decode step.
Expected<Run> make_predecessor([[maybe_unused]] const Part& part, [[maybe_unused]] std::size_t copy,
                               [[maybe_unused]] const Rig& rig) {
#if defined(SLUICE_WITH_CUDA)
  const Operands& operands = part.sets[copy]->operands();
  const void* input = part.test_case.problem.op == Op::kDown ? operands.h : operands.x;
  if (rig.device().backend == Backend::kCuda && input != nullptr) {
    return Run([x = const_cast<void*>(input)](Stream s) { return enqueue_predecessor(x, s); });
  }
#endif
  return make_error(ErrorCode::kUnsupported, "pass decode: wanted a GPU and an operator of x or h");
}

// Puts the predecessor ahead of every run, and a candidate of predecessors alone at the end.
Status put_behind(const Part& part, const Rig& rig, std::vector<Candidate>& candidates) {
  Candidate alone{"predecessor", {}};
  for (std::size_t i = 0; i < candidates.front().runs.size(); ++i) {
    const auto predecessor = make_predecessor(part, i % part.sets.size(), rig);
    if (!predecessor) return predecessor.error();
    alone.runs.push_back(*predecessor);
    for (Candidate& candidate : candidates) {
      Run& run = candidate.runs[i];
      run = [first = *predecessor, second = run](Stream stream) -> Status {
        SLUICE_TRY(first(stream));
        return second(stream);
      };
    }
  }
  candidates.push_back(std::move(alone));
  return {};
}

// Takes the last timing, of the predecessor alone, from all others.
void take_predecessor(std::vector<Timing>& timings) {
  const double us = timings.back().median_us;
  timings.pop_back();
  for (Timing& timing : timings) {
    timing.median_us -= us;
    timing.p10_us -= us;
    timing.p90_us -= us;
  }
}

Run in_order(std::vector<Run> steps) {
  return [steps = std::move(steps)](Stream stream) -> Status {
    for (const Run& step : steps) SLUICE_TRY(step(stream));
    return {};
  };
}

// A rival of all parts, one baseline each, run in the same order.
struct Rival {
  std::vector<std::unique_ptr<Baseline>> steps;

  [[nodiscard]] std::string name() const { return steps.front()->name(); }
  // As in full_row: the parts run one after the other.
  [[nodiscard]] std::int64_t extra_bytes() const {
    std::int64_t most = 0;
    for (const auto& step : steps) most = std::max(most, step->extra_bytes());
    return most;
  }
};

// The rivals that every part has. What a forward part saves is no matter of its baselines, which
// store g and u in any case.
Expected<std::vector<Rival>> make_rivals(const std::vector<Part>& parts, Rig& rig,
                                         const BenchOptions& options) {
  std::vector<Rival> out;
  for (const Part& part : parts) {
    Case c = part.test_case;
    c.problem.save_g_u = c.problem.save_g_u && parts.size() == 1;
    auto made = make_baselines(c, rig, options.plan);
    if (!made) return made.error();
    std::erase_if(*made, [&](const std::unique_ptr<Baseline>& baseline) {
      return !options.baselines.empty() &&
             std::ranges::find(options.baselines, baseline->name()) == options.baselines.end();
    });
    if (&part == &parts.front()) {
      for (auto& baseline : *made) {
        out.emplace_back();
        out.back().steps.push_back(std::move(baseline));
      }
      continue;
    }
    for (Rival& rival : out) {
      for (auto& baseline : *made) {
        if (baseline == nullptr || baseline->name() != rival.name()) continue;
        rival.steps.push_back(std::move(baseline));
      }
    }
    std::erase_if(out, [&](const Rival& rival) {
      return rival.steps.size() != static_cast<std::size_t>(&part - parts.data()) + 1;
    });
  }
  return out;
}

// The least that one walk over the copies can take; 0 where no ceiling says.
double walk_floor_us(const std::vector<Part>& parts, const Ceilings& ceilings) {
  double us = 0;
  for (const Part& part : parts) {
    const Problem& p = part.test_case.problem;
    us += floor_us(ceilings, bytes_moved(p), flops(p)).value_or(0);
  }
  return us * static_cast<double>(parts.front().sets.size());
}

// Times the parts, run in order, and their rivals.
Expected<std::vector<Timing>> time_parts(const std::vector<Part>& parts,
                                         const std::vector<Rival>& rivals, Rig& rig,
                                         const Ceilings& ceilings, const BenchOptions& options) {
  Candidate own{"sluice", {}};
  std::vector<Candidate> candidates;
  const std::size_t copies = parts.front().sets.size();
  const std::size_t runs =
      options.copies > 0 ? copies
                         : timing::chain_runs(copies, walk_floor_us(parts, ceilings), rig.device());
  for (std::size_t i = 0; i < runs; ++i) {
    std::vector<Run> steps;
    steps.reserve(parts.size());
    for (const Part& part : parts) steps.push_back(part.bind(i % part.sets.size()));
    own.runs.push_back(in_order(std::move(steps)));
  }
  candidates.push_back(std::move(own));
  for (const Rival& rival : rivals) {
    Candidate candidate{rival.name(), {}};
    for (std::size_t i = 0; i < runs; ++i) {
      std::vector<Run> steps;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        const auto& sets = parts[k].sets;
        steps.push_back(rival.steps[k]->bind(sets[i % sets.size()]->operands()));
      }
      candidate.runs.push_back(in_order(std::move(steps)));
    }
    candidates.push_back(std::move(candidate));
  }
  const bool decode = options.pass == Pass::kDecode;
  if (decode) SLUICE_TRY(put_behind(parts.front(), rig, candidates));
  if (options.paired != nullptr) options.paired->append_to(candidates);
  auto stopwatch = make_stopwatch(rig);
  if (!stopwatch) return stopwatch.error();
  const auto progress = [&](double elapsed_us, double allowed_us) {
    if (!options.progress) return;
    options.progress(format_case(parts.front().test_case) + ": timing, " +
                     std::to_string(static_cast<int>(elapsed_us * 1e-6)) + " s of at most " +
                     std::to_string(static_cast<int>(allowed_us * 1e-6)));
  };
  auto timings = time_interleaved(**stopwatch, candidates, options.timer, progress);
  if (timings && decode) take_predecessor(*timings);
  return timings;
}

// The kernels of the plans' steps, each once, by commas.
std::string kernels_of(std::initializer_list<const Plan*> plans) {
  std::set<std::string> names;
  for (const Plan* made : plans) {
    const std::string config = made->config_name();
    const Options forced{.variant = made->variant_name(), .config = config.c_str()};
    for (const ExplainedStep& step : explain(made->problem, made->device, forced).steps) {
      names.insert(step.kernel);
    }
  }
  return fmt::format("{}", fmt::join(names, ","));
}

// The row of both halves of a training step together.
Row full_row(const std::vector<Part>& parts, const Timing& timing, const Ceilings& ceilings) {
  Row row = make_row(parts.back().test_case, parts.back().plan, timing, ceilings);
  const Problem& forward = parts.front().test_case.problem;
  const Problem& backward = parts.back().test_case.problem;
  const double work = flops(forward) + flops(backward);
  const double bytes = bytes_moved(forward) + bytes_moved(backward);
  row.pass = "full";
  row.kernels = kernels_of({&parts.front().plan, &parts.back().plan});
  row.tflops = work / timing.median_us * 1e-6;
  row.gbps = bytes / timing.median_us * 1e-3;
  if (const auto floor = floor_us(ceilings, bytes, work)) {
    row.roof_fraction = *floor / timing.median_us;
  }
  row.extra_bytes = static_cast<std::int64_t>(
      std::max(parts.front().plan.workspace_bytes, parts.back().plan.workspace_bytes));
  row.peak_bytes = std::max(operand_bytes(forward), operand_bytes(backward)) + row.extra_bytes;
  return row;
}

}  // namespace

bool CaseBench::passed() const noexcept {
  return std::all_of(checks.begin(), checks.end(),
                     [](const VerifyReport& check) { return check.passed(); });
}

std::string gate_text(const Gate& gate) {
  Case c;
  c.problem.m = c.problem.d = c.problem.h = 1;
  c.problem.gate = gate;
  return token_of(c, "silu");
}

std::string layout_text(const Case& test_case) {
  switch (test_case.placement) {
    case Placement::kSeparate:
      return "separate";
    case Placement::kConcatenated:
      return test_case.up_first ? "concat+up_first" : "concat";
    case Placement::kInterleaved:
      return "interleaved" + std::to_string(test_case.block_rows) +
             (test_case.up_first ? "+up_first" : "");
  }
  return "separate";
}

std::string dtype_text(const Problem& p) {
  const std::string x = to_string(p.x_dtype);
  const std::string w = to_string(p.w_dtype);
  const std::string y = to_string(p.y_dtype);
  return x == w && x == y ? x : x + "/" + w + "/" + y;
}

std::int64_t operand_bytes(const Problem& problem) {
  return bytes_where(problem, [](Operand) { return true; });
}

std::int64_t rotating_bytes(const Problem& problem) {
  return bytes_where(problem, [&](Operand id) { return timing::rotates(problem, id); });
}

Row make_row(const Case& c, const Plan& made, const Timing& timing, const Ceilings& ceilings) {
  const Problem& p = c.problem;
  Row row;
  row.op = p.op == Op::kMlpGrad ? "mlp_train" : to_string(p.op);
  row.pass = is_gradient(p.op) ? "bwd" : "fwd";
  if (p.op == Op::kMlpGrad) row.policy = p.recompute ? "recompute" : "save";
  row.m = p.m;
  row.d = p.d;
  row.h = p.h;
  row.dtype = dtype_text(p);
  row.gate = gate_text(p.gate);
  row.layout = layout_text(c);
  row.variant = made.variant_name();
  row.config = made.config_name();
  row.test_case = format_case(c);
  row.kernels = kernels_of({&made});
  row.threads = made.threads;
  row.us = timing.median_us;
  row.us_p10 = timing.p10_us;
  row.us_p90 = timing.p90_us;
  row.tflops = flops(p) / timing.median_us * 1e-6;
  row.gbps = bytes_moved(p) / timing.median_us * 1e-3;
  const bool bf16 = std::string_view(row.config).ends_with(to_string(SimdTarget::kAvx512Bf16));
  const Arithmetic arithmetic = bf16 ? Arithmetic::kBf16Dots : Arithmetic::kFma;
  if (const auto floor = floor_us(ceilings, bytes_moved(p), flops(p), arithmetic)) {
    row.roof_fraction = *floor / timing.median_us;
  }
  row.extra_bytes = static_cast<std::int64_t>(made.workspace_bytes);
  row.peak_bytes = operand_bytes(p) + row.extra_bytes;
  return row;
}

void set_shares(Row& row, const PairedCeilings* paired, std::span<const Timing> timings,
                double bytes, double flops) {
  if (paired == nullptr) return;
  const CeilingShares shares = paired->shares(timings, bytes, flops);
  row.read_share = shares.read;
  row.fma_share = shares.fma;
}

void set_baseline(Row& row, const std::string& name, std::int64_t extra_bytes,
                  const Timing& timing) {
  row.baseline = name;
  row.baseline_us = timing.median_us;
  row.ratio = timing.median_us / row.us;
  row.baseline_extra_bytes = extra_bytes;
}

std::int64_t signed_pair_offset(const Case& c) {
  const std::int64_t offset = pair_offset_bytes(c, Operand::kWGate);
  return c.up_first ? -offset : offset;
}

std::span<const char* const> timed_baselines() {
  static constexpr const char* kNames[] = {"own_unfused", "cublaslt+act", "cublaslt_chain",
                                           "cublaslt_gemm"};
  return kNames;
}

Expected<std::vector<std::unique_ptr<Baseline>>> make_baselines(const Case& c, Rig& rig,
                                                                const Options& forced) {
  std::vector<std::unique_ptr<Baseline>> out;
  auto unfused =
      UnfusedMlp::make(c.problem, signed_pair_offset(c), rig, forced.threads, forced.variant);
  if (unfused) {
    out.push_back(std::move(*unfused));
  } else if (unfused.error().code != ErrorCode::kUnsupported) {
    return unfused.error();
  }
#if defined(SLUICE_WITH_CUDA)
  if (rig.device().backend == Backend::kCuda) {
    auto rivals = make_cuda_baselines(c, rig);
    if (!rivals) return rivals.error();
    for (auto& rival : *rivals) out.push_back(std::move(rival));
  }
#endif
  return out;
}

Expected<CaseBench> bench_case(const Case& test_case, Rig& rig, const Ceilings& ceilings,
                               const BenchOptions& options) {
  const auto cases = cases_of(test_case, options.pass);
  if (!cases) return cases.error();
  CaseBench out;
  if (options.check) {
    for (const Case& c : *cases) {
      if (options.progress) options.progress(format_case(c) + ": checking against fp64");
      auto check = verify_case(c, rig, options.plan, options.verify);
      if (!check) return check.error();
      out.checks.push_back(std::move(*check));
    }
  }
  if (!out.passed()) return out;

  std::vector<Part> parts;
  for (const Case& c : *cases) {
    auto part = make_part(c, rig, options);
    if (!part) return part.error();
    parts.push_back(std::move(*part));
  }
  const auto rivals = make_rivals(parts, rig, options);
  if (!rivals) return rivals.error();
  const auto timings = time_parts(parts, *rivals, rig, ceilings, options);
  if (!timings) return timings.error();

  const Timing& own = timings->front();
  Row row = parts.size() == 1 ? make_row(parts.front().test_case, parts.front().plan, own, ceilings)
                              : full_row(parts, own, ceilings);
  if (options.pass == Pass::kDecode) row.pass = "decode";
  row.model = options.model;
  row.tp = options.tp;
  if (options.check) row.rel_err = worst_relative_error(out.checks);
  double bytes = 0;
  double work = 0;
  for (const Part& part : parts) {
    bytes += bytes_moved(part.test_case.problem);
    work += flops(part.test_case.problem);
  }
  set_shares(row, options.paired, *timings, bytes, work);
  for (const Timing& timing : *timings) out.converged = out.converged && timing.converged;
  if (rivals->empty()) out.rows.push_back(row);
  for (std::size_t i = 0; i < rivals->size(); ++i) {
    const Rival& rival = (*rivals)[i];
    out.rows.push_back(row);
    set_baseline(out.rows.back(), rival.name(), rival.extra_bytes(), (*timings)[i + 1]);
  }
  return out;
}

}  // namespace sluice::harness
