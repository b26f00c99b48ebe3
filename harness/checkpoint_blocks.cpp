// SPDX-License-Identifier: Apache-2.0
#include "harness/checkpoint_blocks.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "harness/strict_json.hpp"

namespace sluice::harness {

namespace {

constexpr const char* kKey = "mlp_weight_blocks";

std::optional<DType> block_type(std::string_view name) {
  for (int i = kFloatDTypeCount; i < kDTypeCount; ++i) {
    if (name == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return {};
}

bool is_mlp_weight(std::string_view name) {
  return name.find(".mlp.") != std::string_view::npos && name.ends_with(".weight");
}

Error refused(const CheckpointFiles& files, const TensorView& view, const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "%s: tensor %s: %s",
                    printable(files.source).c_str(), printable(view.name).c_str(), what.c_str());
}

Status read_tensor(const CheckpointFiles& files, DType dtype, TensorView& view) {
  const std::int64_t block = size_bytes(dtype);
  // A tensor without data may claim any width.
  if (view.shape.size() != 2 || view.bytes == 0 || view.shape[1] % block != 0) {
    return refused(files, view,
                   std::string("wanted bytes of [rows, ") + std::to_string(block) +
                       " n] for blocks of " + to_string(dtype));
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) %
          static_cast<std::uintptr_t>(alignment_of(dtype)) !=
      0) {
    return refused(files, view, "blocks begin at an odd address, wanted an even one");
  }
  view.shape[1] = view.shape[1] / block * kBlockElems;
  view.dtype = dtype;
  return {};
}

}  // namespace

Status read_blocks(CheckpointFiles& files) {
  const Expected<std::optional<std::string>> name = files.metadata(kKey);
  if (!name) return name.error();
  if (!*name) return {};
  const std::optional<DType> dtype = block_type(**name);
  if (!dtype) {
    return make_error(ErrorCode::kUnsupported, "%s: %s is \"%s\", wanted q8_0, q4_0 or q4_1",
                      printable(files.source).c_str(), kKey, printable(**name, 40).c_str());
  }
  for (auto& [tensor, view] : files.tensors) {
    if (!is_mlp_weight(tensor) || view.dtype_name != "U8") continue;
    SLUICE_TRY(read_tensor(files, *dtype, view));
  }
  return {};
}

}  // namespace sluice::harness
