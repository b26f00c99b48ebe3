// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_packing.hpp"

#include <charconv>
#include <optional>

namespace sluice::harness {

namespace {

constexpr const char* kBlock = "mlp_gate_up_block";
constexpr const char* kOrder = "mlp_gate_up_order";
constexpr const char* kHalves = "halves";

Error unknown(const CheckpointFiles& files, const char* key, const std::string& value,
              const char* wanted) {
  return make_error(ErrorCode::kUnsupported, "%s: %s is \"%s\", wanted %s",
                    printable(files.source).c_str(), key, printable(value, 40).c_str(), wanted);
}

}  // namespace

const char* to_string(PackOrder order) noexcept {
  return order == PackOrder::kGateUp ? "gate_up" : "up_gate";
}

Expected<GateUpPacking> read_packing(const CheckpointFiles& files) {
  GateUpPacking packing;
  const Expected<std::optional<std::string>> block = files.metadata(kBlock);
  if (!block) return block.error();
  if (*block && **block != kHalves) {
    const std::string& text = **block;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, packing.block_rows);
    if (error != std::errc{} || stop != end || packing.block_rows < 1) {
      return unknown(files, kBlock, text, "halves or a number of rows");
    }
  }
  const Expected<std::optional<std::string>> order = files.metadata(kOrder);
  if (!order) return order.error();
  if (*order) {
    const bool up_first = **order == to_string(PackOrder::kUpGate);
    if (!up_first && **order != to_string(PackOrder::kGateUp)) {
      return unknown(files, kOrder, **order, "gate_up or up_gate");
    }
    packing.order = up_first ? PackOrder::kUpGate : PackOrder::kGateUp;
  }
  return packing;
}

void write_packing(const GateUpPacking* packing,
                   std::map<std::string, std::string, std::less<>>& metadata) {
  metadata.erase(kBlock);
  metadata.erase(kOrder);
  if (packing == nullptr) return;
  metadata[kBlock] = packing->block_rows == 0 ? kHalves : std::to_string(packing->block_rows);
  metadata[kOrder] = to_string(packing->order);
}

}  // namespace sluice::harness
