// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_pack.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/safetensors_writer.hpp"

namespace sluice::harness {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::array<std::string_view, 3> kProjections = {"gate_proj", "up_proj", "gate_up_proj"};
enum Projection : std::size_t { kGate, kUp, kBoth };

// Weights, or biases, of one gate and up: two tensors, or one.
struct Pair {
  std::string stem;    // "model.layers.0.mlp."
  std::string suffix;  // ".weight"
  std::array<const TensorView*, 3> views{};
  std::int64_t h = 0;
  std::int64_t row_bytes = 0;

  [[nodiscard]] std::string name(Projection p) const {
    return stem + std::string(kProjections[p]) + suffix;
  }
  [[nodiscard]] const TensorView& any() const {
    return views[kBoth] != nullptr ? *views[kBoth] : *views[kGate];
  }
};

Error refused(const CheckpointFiles& files, ErrorCode code, const std::string& tensor,
              const std::string& what) {
  return make_error(code, "%s: tensor %s: %s", printable(files.source).c_str(),
                    printable(tensor).c_str(), what.c_str());
}

std::string shape_text(const TensorView& view) {
  return fmt::format("{} [{}]", view.dtype_name, fmt::join(view.shape, ", "));
}

// Where a name is a part of a projection: which, and where its component begins.
std::pair<Projection, std::size_t> find_projection(std::string_view name) {
  if (name.find(".mlp.") == std::string_view::npos) return {kGate, std::string_view::npos};
  for (const Projection p : {kGate, kUp, kBoth}) {
    const std::size_t at = name.rfind(fmt::format(".{}", kProjections[p]));
    if (at != std::string_view::npos) return {p, at + 1};
  }
  return {kGate, std::string_view::npos};
}

// Shapes of a pair, of which both or one and the other are there.
Status measure(const CheckpointFiles& files, Pair& pair) {
  const auto bad = [&](const TensorView& view, const std::string& what) -> Status {
    return refused(files, ErrorCode::kInvalidArgument, view.name, what);
  };
  const auto [gate, up, both] = pair.views;
  if (both != nullptr && (gate != nullptr || up != nullptr)) {
    return bad(*both, "is there beside a separate projection");
  }
  if (both == nullptr && (gate == nullptr || up == nullptr)) {
    return bad(gate == nullptr ? *up : *gate,
               "has no " + printable(pair.name(gate == nullptr ? kGate : kUp)) + " beside it");
  }
  const TensorView& view = pair.any();
  const std::size_t dims = pair.suffix == ".weight" ? 2 : 1;
  const std::int64_t rows = view.shape.size() == dims ? view.shape[0] : 0;
  const std::int64_t halves = both == nullptr ? 1 : 2;
  if (rows < 1 || rows % halves != 0 || view.bytes == 0 || view.bytes % rows != 0) {
    return bad(view, std::string("got ") + shape_text(view) + ", wanted " +
                         (halves == 2 ? "[2H" : "[H") + (dims == 2 ? ", D]" : "]") +
                         " of rows of whole bytes");
  }
  if (both == nullptr && (up->shape != gate->shape || up->dtype_name != gate->dtype_name)) {
    return bad(*up, "got " + shape_text(*up) + ", wanted that of its gate, " + shape_text(*gate));
  }
  pair.h = rows / halves;
  pair.row_bytes = view.bytes / rows;
  return {};
}

Expected<std::vector<Pair>> find_pairs(const CheckpointFiles& files) {
  std::map<std::string, Pair> pairs;
  for (const auto& [name, view] : files.tensors) {
    const auto [projection, at] = find_projection(name);
    if (at == std::string::npos) continue;
    const std::string suffix = name.substr(at + kProjections[projection].size());
    if (suffix != ".weight" && suffix != ".bias") {
      return refused(files, ErrorCode::kUnsupported, name,
                     "wanted no part of a projection but its weight and bias");
    }
    Pair& pair = pairs[name.substr(0, at) + suffix];
    pair.stem = name.substr(0, at);
    pair.suffix = suffix;
    pair.views[projection] = &view;
  }
  if (pairs.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: holds no tensor named *.mlp.*gate_proj.weight or gate_up_proj.weight",
                      printable(files.source).c_str());
  }
  std::vector<Pair> list;
  for (auto& [key, pair] : pairs) {
    SLUICE_TRY(measure(files, pair));
    list.push_back(std::move(pair));
  }
  return list;
}

// Reads tensors and rearranges pairs; its buffers hold one pair at a time.
class Rearranger {
 public:
  Rearranger(CheckpointFiles& files, const GateUpPacking& source)
      : files_(files), source_(source) {}

  // A tensor as it is.
  Expected<Bytes> copy(const TensorView& view) {
    release();
    return load(view);
  }

  // gate_proj or up_proj of a pair.
  Expected<Bytes> separate(const Pair& pair, Projection which) {
    release();
    const auto found = gate_and_up(pair);
    if (!found) return found.error();
    return (*found)[which];
  }

  Expected<Bytes> packed(const Pair& pair, const GateUpPacking& target) {
    release();
    const auto found = gate_and_up(pair);
    if (!found) return found.error();
    packed_.resize(2 * (*found)[kGate].size());
    SLUICE_TRY(pack_gate_up(packing(pair, target), (*found)[kGate].data(), (*found)[kUp].data(),
                            packed_.data()));
    return Bytes(packed_);
  }

  static Packing packing(const Pair& pair, const GateUpPacking& how) {
    return {.h = pair.h,
            .d = pair.row_bytes,
            .element_bytes = 1,
            .block_rows = how.block_rows == 0 ? pair.h : how.block_rows,
            .order = how.order};
  }

 private:
  Expected<std::array<Bytes, 2>> gate_and_up(const Pair& pair) {
    std::array<Bytes, 2> found;
    if (pair.views[kBoth] == nullptr) {
      for (const Projection p : {kGate, kUp}) {
        const auto bytes = load(*pair.views[p]);
        if (!bytes) return bytes.error();
        found[p] = *bytes;
      }
      return found;
    }
    const auto both = load(*pair.views[kBoth]);
    if (!both) return both.error();
    gate_.resize(both->size() / 2);
    up_.resize(both->size() / 2);
    SLUICE_TRY(unpack_gate_up(packing(pair, source_), both->data(), gate_.data(), up_.data()));
    found = {Bytes(gate_), Bytes(up_)};
    return found;
  }

  Expected<Bytes> load(const TensorView& view) {
    SLUICE_TRY(files_.load(view));
    loaded_.push_back(&view);
    return Bytes(view.data, static_cast<std::size_t>(view.bytes));
  }

  void release() {
    for (const TensorView* view : loaded_) files_.unload(*view);
    loaded_.clear();
  }

  CheckpointFiles& files_;
  GateUpPacking source_;
  std::vector<std::byte> gate_, up_, packed_;
  std::vector<const TensorView*> loaded_;
};

Status check_blocks(const CheckpointFiles& files, const std::vector<Pair>& pairs,
                    const GateUpPacking& packing, bool merged_only) {
  for (const Pair& pair : pairs) {
    if (merged_only && pair.views[kBoth] == nullptr) continue;
    if (packing.block_rows == 0 || pair.h % packing.block_rows == 0) continue;
    return refused(files, ErrorCode::kInvalidArgument, pair.any().name,
                   "H = " + std::to_string(pair.h) + " is no multiple of the " +
                       std::to_string(packing.block_rows) + " rows of a block");
  }
  return {};
}

}  // namespace

Expected<PackReport> pack_checkpoint(const std::string& path, const std::string& out,
                                     const GateUpPacking* target) {
  Expected<CheckpointFiles> files = open_checkpoint_files(path);
  if (!files) return files.error();
  SLUICE_TRY(check_packed(*files, out));
  const Expected<GateUpPacking> source = read_packing(*files);
  if (!source) return source.error();
  const Expected<std::vector<Pair>> pairs = find_pairs(*files);
  if (!pairs) return pairs.error();
  SLUICE_TRY(check_blocks(*files, *pairs, *source, true));
  if (target != nullptr) SLUICE_TRY(check_blocks(*files, *pairs, *target, false));

  Rearranger rearranger(*files, *source);
  PackReport report;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, view] : files->tensors) {
    if (find_projection(name).second != std::string::npos) continue;
    tensors.push_back({name, view.dtype_name, view.shape, view.bytes,
                       [&rearranger, &view = view] { return rearranger.copy(view); }});
  }
  for (const Pair& pair : *pairs) {
    report.pairs += pair.suffix == ".weight" ? 1 : 0;
    const auto add = [&](Projection p, std::int64_t rows, auto data) {
      std::vector<std::int64_t> shape = pair.any().shape;
      shape[0] = rows;
      tensors.push_back({pair.name(p), pair.any().dtype_name, std::move(shape),
                         rows * pair.row_bytes, std::move(data)});
    };
    if (target != nullptr) {
      add(kBoth, 2 * pair.h, [&, target] { return rearranger.packed(pair, *target); });
      continue;
    }
    for (const Projection p : {kGate, kUp}) {
      add(p, pair.h, [&, p] { return rearranger.separate(pair, p); });
    }
  }
  report.tensors = static_cast<std::int64_t>(tensors.size());
  std::map<std::string, std::string, std::less<>> metadata;
  for (const SafeTensors& shard : files->shards) {
    metadata.insert(shard.metadata().begin(), shard.metadata().end());
  }
  write_packing(target, metadata);
  SLUICE_TRY(write_safetensors(out, std::move(tensors), metadata));
  return report;
}

}  // namespace sluice::harness
