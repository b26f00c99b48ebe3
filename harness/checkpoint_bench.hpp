// SPDX-License-Identifier: Apache-2.0
// The main job: every MLP of a real checkpoint, fused against unfused, on rows of the model's own
// embedding table, each layer checked against fp64.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/bench.hpp"
#include "harness/checkpoint.hpp"

namespace sluice::harness {

/// The check of one layer at one M.
struct LayerCheck {
  std::int64_t m = 0;
  int layer = 0;
  Comparison fused;            ///< y of the fused path, sampled rows, against the oracle's bounds
  double unfused_rel_err = 0;  ///< mean relative error of the unfused path on the same elements
  [[nodiscard]] bool passed() const noexcept { return fused.passed(); }
};

struct CheckpointOptions {
  BenchOptions bench{};
  int layers = 0;  ///< only the first so many; 0 for all
};

/// What bench_checkpoint() found for one M.
struct CheckpointBench {
  std::vector<Row> rows;           ///< as CaseBench::rows; us is the mean of a pass over the layers
  std::vector<LayerCheck> checks;  ///< of every layer, in order
  bool converged = true;
  [[nodiscard]] bool passed() const noexcept;
};

/// The case of one layer for m tokens: all layers are alike. Errors: kInvalidArgument where they
/// differ in bias or layout; validate()'s.
[[nodiscard]] Expected<Case> checkpoint_case(const Checkpoint& checkpoint, std::int64_t m);

/// Runs the MLPs of all layers for m tokens: y = MLP_l(x_l), x_l = norm_l(embedding rows).
///
/// Each layer's fused y is compared with the oracle on sampled rows first; where all pass, passes
/// over the layers are timed, so that weights come from memory as in a model. On a rig whose memory
/// is the host's the weights are used where they were read to.
/// Errors: kInvalidArgument where the layers differ in bias or layout; those of embedding_rows(),
/// plan(), run() and the rig.
[[nodiscard]] Expected<CheckpointBench> bench_checkpoint(const Checkpoint& checkpoint,
                                                         std::int64_t m, Rig& rig,
                                                         const Ceilings& ceilings,
                                                         const CheckpointOptions& options);

/// {"model", "m", "layer", "rel_err", "unfused_rel_err", "worst_bound_share", "compared",
/// "passed"}.
[[nodiscard]] nlohmann::ordered_json to_json(const LayerCheck& check, const std::string& model);

}  // namespace sluice::harness
