// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "harness/oracle.hpp"
#include "harness/unfused.hpp"
#include "math/float_types.hpp"

namespace sluice::harness {
namespace {

// One layer on the rig. Inputs are kept on the host too, for the oracle.
struct PlacedLayer {
  Operands host{};    // x, weights and biases in host memory
  Operands device{};  // the same on the rig, and y
  std::vector<std::byte> x;
  std::vector<RigBuffer> buffers;
};

struct PlacedModel {
  Case test_case{};
  std::vector<PlacedLayer> layers;
  RigBuffer y;  // [M, D], written by every layer in turn
};

Status differs(const char* what, std::size_t layer) {
  return make_error(ErrorCode::kInvalidArgument,
                    "checkpoint: %s of layer %zu differs from layer 0, wanted equal layers", what,
                    layer);
}

// Copies `bytes` at `host` to the rig, or takes them as they lie where the rig's memory is the
// host's.
Expected<void*> place_on(Rig& rig, const void* host, std::int64_t bytes, PlacedLayer& layer) {
  if (host == nullptr || rig.host_memory()) return const_cast<void*>(host);
  auto buffer = RigBuffer::make(rig, static_cast<std::size_t>(bytes));
  if (!buffer) return buffer.error();
  SLUICE_TRY(rig.upload(buffer->data(), host, static_cast<std::size_t>(bytes)));
  layer.buffers.push_back(std::move(*buffer));
  return static_cast<void*>(layer.buffers.back().data());
}

Status upload_inputs(const Case& c, Rig& rig, PlacedLayer& layer) {
  const auto specs = operand_specs(c.problem);
  for (const OperandSpec& spec : specs) {
    const void* host = address(layer.host, spec.id);
    // w_up of a merged tensor goes with w_gate, so that one buffer still holds both.
    const bool merged = c.placement != Placement::kSeparate;
    if (host == nullptr || (merged && spec.id == Operand::kWUp)) continue;
    const std::int64_t pair = merged && spec.id == Operand::kWGate
                                  ? static_cast<const char*>(layer.host.w_up) -
                                        static_cast<const char*>(layer.host.w_gate)
                                  : 0;
    const std::int64_t before = std::max<std::int64_t>(0, -pair);  // of w_up, where that is first
    const auto placed = place_on(rig, static_cast<const char*>(host) - before,
                                 std::abs(pair) + extent_bytes(spec), layer);
    if (!placed) return placed.error();
    char* const own = static_cast<char*>(*placed) + before;
    set_address(layer.device, spec.id, own);
    if (pair != 0) set_address(layer.device, Operand::kWUp, own + pair);
  }
  return {};
}

Expected<PlacedModel> load(const Checkpoint& checkpoint, std::int64_t m, Rig& rig,
                           const CheckpointOptions& options) {
  PlacedModel model;
  const auto c = checkpoint_case(checkpoint, m);
  if (!c) return c.error();
  model.test_case = *c;
  const auto y_spec = operand_specs(c->problem)[static_cast<std::size_t>(Operand::kY)];
  auto y = RigBuffer::make(rig, static_cast<std::size_t>(extent_bytes(y_spec)));
  if (!y) return y.error();
  model.y = std::move(*y);
  const std::size_t count = options.layers > 0 ? std::min(checkpoint.layers.size(),
                                                          static_cast<std::size_t>(options.layers))
                                               : checkpoint.layers.size();
  for (std::size_t i = 0; i < count; ++i) {
    const MlpLayer& source = checkpoint.layers[i];
    PlacedLayer layer;
    auto x = embedding_rows(checkpoint, m, c->problem.x_dtype, &source);
    if (!x) return x.error();
    layer.x = std::move(*x);
    layer.host.x = layer.x.data();
    layer.host.w_gate = source.w_gate;
    layer.host.w_up = source.w_up;
    layer.host.w_down = source.w_down;
    layer.host.b_gate = source.b_gate;
    layer.host.b_up = source.b_up;
    layer.host.b_down = source.b_down;
    SLUICE_TRY(upload_inputs(*c, rig, layer));
    layer.device.y = model.y.data();
    model.layers.push_back(std::move(layer));
  }
  return model;
}

// First, last and evenly spread rows: as many as the oracle's budget for one layer allows.
std::vector<std::int64_t> sampled_rows(const Problem& p, const VerifyOptions& verify,
                                       std::size_t layers) {
  const double row_cost = 3.0 * static_cast<double>(p.d) * static_cast<double>(p.h);
  const double affordable = verify.max_operations / row_cost / static_cast<double>(layers);
  const auto count = static_cast<std::int64_t>(
      std::clamp(affordable, 1.0, static_cast<double>(std::min(p.m, verify.max_rows))));
  std::set<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    rows.insert(count == 1 ? p.m - 1 : i * (p.m - 1) / (count - 1));
  }
  return {rows.begin(), rows.end()};
}

// y of the rig, on the host.
Expected<std::vector<std::byte>> download_y(Rig& rig, const PlacedModel& model) {
  std::vector<std::byte> host(model.y.bytes());
  SLUICE_TRY(rig.synchronize());
  SLUICE_TRY(rig.download(host.data(), model.y.data(), host.size()));
  return host;
}

// Bytes that are NaN in every type, and such that are none: where NaN is right, what is not written
// passes with one of them alone.
constexpr unsigned char kPoisons[] = {0xFF, 0x00};

// Poisons y, runs, and brings y back.
Expected<std::vector<std::byte>> run_once(Rig& rig, const PlacedModel& model, const Run& one,
                                          unsigned char poison) {
  SLUICE_TRY(rig.fill_bytes(model.y.data(), poison, model.y.bytes()));
  SLUICE_TRY(one(rig.stream()));
  return download_y(rig, model);
}

// What the sampled rows of a layer's y should be.
std::vector<ExpectedElement> expected_rows(const PlacedModel& model, std::size_t index,
                                           const std::vector<std::int64_t>& rows) {
  const Problem& p = model.test_case.problem;
  Oracle oracle(p, model.layers[index].host);
  oracle.set_compared_elements(static_cast<std::int64_t>(rows.size() * model.layers.size()) * p.d);
  std::vector<ExpectedElement> out;
  for (const std::int64_t row : rows) {
    for (std::int64_t col = 0; col < p.d; ++col) {
      out.push_back({row, col, oracle.at(Operand::kY, row, col)});
    }
  }
  return out;
}

Expected<LayerCheck> check_layer(Rig& rig, const PlacedModel& model, std::size_t index,
                                 const Run& fused, const Run& unfused,
                                 const std::vector<std::int64_t>& rows) {
  const Problem& p = model.test_case.problem;
  const auto spec = operand_specs(p)[static_cast<std::size_t>(Operand::kY)];
  const auto expected = expected_rows(model, index, rows);
  const auto got = [&](const std::vector<std::byte>& y, const ExpectedElement& element) {
    return math::load(y.data() + offset_bytes(spec.layout, p.y_dtype, element.row, element.col),
                      p.y_dtype);
  };
  LayerCheck check;
  check.m = p.m;
  check.layer = static_cast<int>(index);
  for (const unsigned char poison : kPoisons) {
    const auto y = run_once(rig, model, fused, poison);
    if (!y) return y.error();
    Comparator comparator(Operand::kY, p.y_dtype);
    for (const ExpectedElement& element : expected) {
      comparator.add(element.row, element.col, element.value, got(*y, element));
    }
    check.fused = comparator.result();
    if (!check.fused.passed()) break;
  }
  if (!unfused) return check;
  const auto y = run_once(rig, model, unfused, kPoisons[0]);
  if (!y) return y.error();
  double error = 0;
  double size = 0;
  for (const ExpectedElement& element : expected) {
    size += std::fabs(element.value.value);
    error += std::fabs(got(*y, element) - element.value.value);
  }
  check.unfused_rel_err = size > 0 ? error / size : 0;
  return check;
}

}  // namespace

Expected<Case> checkpoint_case(const Checkpoint& checkpoint, std::int64_t m) {
  const MlpLayer& first = checkpoint.layers.front();
  Case c;
  Problem& p = c.problem;
  p.op = Op::kMlp;
  p.m = m;
  p.d = checkpoint.d;
  p.h = checkpoint.h;
  p.w_dtype = checkpoint.dtype;
  p.x_dtype = p.y_dtype = is_block_type(checkpoint.dtype) ? DType::kBF16 : checkpoint.dtype;
  p.gate = checkpoint.gate;
  p.bias_gate_up = first.b_gate != nullptr;
  p.bias_down = first.b_down != nullptr;
  c.block_rows = first.w_gate_up_layout.block_rows;
  c.placement = c.block_rows > 0 ? Placement::kInterleaved
                : first.merged   ? Placement::kConcatenated
                                 : Placement::kSeparate;
  c.up_first = first.merged && std::less<>()(first.w_up, first.w_gate);
  SLUICE_TRY(place(c));
  p.layout.w_gate_up = first.w_gate_up_layout;
  p.layout.w_down = first.w_down_layout;
  p.alignment_bytes = std::min(p.alignment_bytes, checkpoint.alignment_bytes);
  SLUICE_TRY(validate(p));
  for (std::size_t i = 0; i < checkpoint.layers.size(); ++i) {
    const MlpLayer& layer = checkpoint.layers[i];
    if ((layer.b_gate != nullptr) != p.bias_gate_up) return differs("b_gate", i).error();
    if ((layer.b_down != nullptr) != p.bias_down) return differs("b_down", i).error();
    if (layer.merged != first.merged || !(layer.w_gate_up_layout == p.layout.w_gate_up) ||
        !(layer.w_down_layout == p.layout.w_down)) {
      return differs("the layout", i).error();
    }
  }
  return c;
}

bool CheckpointBench::passed() const noexcept {
  return std::all_of(checks.begin(), checks.end(),
                     [](const LayerCheck& check) { return check.passed(); });
}

Expected<CheckpointBench> bench_checkpoint(const Checkpoint& checkpoint, std::int64_t m, Rig& rig,
                                           const Ceilings& ceilings,
                                           const CheckpointOptions& options) {
  auto loaded = load(checkpoint, m, rig, options);
  if (!loaded) return loaded.error();
  const PlacedModel& model = *loaded;
  const BenchOptions& bench = options.bench;
  const auto made = plan(model.test_case.problem, rig.device(), bench.plan);
  if (!made) return made.error();
  const auto workspace = make_workspace(*made, rig);
  if (!workspace) return workspace.error();
  auto baselines = make_baselines(model.test_case, rig, bench.plan);
  if (!baselines) return baselines.error();

  std::vector<Candidate> candidates = {{"sluice", {}}};
  for (const PlacedLayer& layer : model.layers) {
    candidates[0].runs.emplace_back([&, operands = layer.device](Stream stream) {
      return run(*made, operands, workspace->workspace, stream);
    });
  }
  for (const auto& baseline : *baselines) {
    candidates.push_back({baseline->name(), {}});
    for (const PlacedLayer& layer : model.layers) {
      candidates.back().runs.push_back(baseline->bind(layer.device));
    }
  }

  if (bench.paired != nullptr) bench.paired->append_to(candidates);

  CheckpointBench out;
  const bool has_unfused = !baselines->empty() && baselines->front()->name() == "own_unfused";
  const auto rows = sampled_rows(model.test_case.problem, bench.verify, model.layers.size());
  double worst = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (bench.progress) {
      bench.progress("M = " + std::to_string(m) + ": checking layer " + std::to_string(i + 1) +
                     " of " + std::to_string(model.layers.size()) + " against fp64");
    }
    const auto check = check_layer(rig, model, i, candidates[0].runs[i],
                                   has_unfused ? candidates[1].runs[i] : Run{}, rows);
    if (!check) return check.error();
    worst = std::max(worst, check->fused.mean_relative_error);
    out.checks.push_back(*check);
  }
  if (!out.passed()) return out;

  auto stopwatch = make_stopwatch(rig);
  if (!stopwatch) return stopwatch.error();
  const auto timings = time_interleaved(
      **stopwatch, candidates, bench.timer, [&](double elapsed_us, double allowed_us) {
        if (!bench.progress) return;
        bench.progress("M = " + std::to_string(m) + ": timing, " +
                       std::to_string(static_cast<int>(elapsed_us * 1e-6)) + " s of at most " +
                       std::to_string(static_cast<int>(allowed_us * 1e-6)));
      });
  if (!timings) return timings.error();
  Row row = make_row(model.test_case, *made, timings->front(), ceilings);
  row.model = checkpoint.name;
  row.rel_err = worst;
  const Problem& problem = model.test_case.problem;
  set_shares(row, bench.paired, *timings, bytes_moved(problem), flops(problem));
  for (const Timing& timing : *timings) out.converged = out.converged && timing.converged;
  if (baselines->empty()) out.rows.push_back(row);
  for (std::size_t i = 0; i < baselines->size(); ++i) {
    out.rows.push_back(row);
    const Baseline& baseline = *(*baselines)[i];
    set_baseline(out.rows.back(), baseline.name(), baseline.extra_bytes(), (*timings)[i + 1]);
  }
  return out;
}

nlohmann::ordered_json to_json(const LayerCheck& check, const std::string& model) {
  return {{"model", model},
          {"m", check.m},
          {"layer", check.layer},
          {"rel_err", check.fused.mean_relative_error},
          {"unfused_rel_err", check.unfused_rel_err},
          {"worst_bound_share", check.fused.worst.ratio},
          {"compared", check.fused.compared},
          {"passed", check.passed()}};
}

}  // namespace sluice::harness
