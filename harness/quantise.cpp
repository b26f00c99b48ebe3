// SPDX-License-Identifier: Apache-2.0
#include "harness/quantise.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "math/block_types.hpp"

namespace sluice::harness {
namespace {

float inverse(float v) { return v == 0 ? 0.0F : 1.0F / v; }

// Writes q(v) of each value as the nibbles of a block.
template <class Block, class Quantise>
void set_nibbles(Block& block, BlockValues values, const Quantise& q) {
  constexpr std::size_t kHalf = kBlockElems / 2;
  for (std::size_t j = 0; j < kHalf; ++j) {
    const auto low = static_cast<unsigned>(std::clamp(q(values[j]), 0, 15));
    const auto high = static_cast<unsigned>(std::clamp(q(values[j + kHalf]), 0, 15));
    block.q[j] = static_cast<std::uint8_t>(low | high << 4);
  }
}

math::Q8_0 make(math::Q8_0 block, BlockValues values, float scale) {
  block.d = math::to_f16(scale);
  const float steps = inverse(scale);
  for (std::size_t j = 0; j < values.size(); ++j) {
    block.q[j] = static_cast<std::int8_t>(std::lround(values[j] * steps));
  }
  return block;
}

math::Q4_0 make(math::Q4_0 block, BlockValues values, float scale) {
  block.d = math::to_f16(scale);
  const float steps = inverse(scale);
  set_nibbles(block, values, [steps](float v) { return static_cast<int>(v * steps + 8.5F); });
  return block;
}

math::Q4_1 make(math::Q4_1 block, BlockValues values, float scale, float least) {
  block.d = math::to_f16(scale);
  block.m = math::to_f16(least);
  const float steps = inverse(scale);
  // GGUF rounds so: v is not below the least, and a half goes up.
  set_nibbles(block, values,
              [=](float v) { return static_cast<int>(std::floor((v - least) * steps + 0.5F)); });
  return block;
}

template <class Block>
void put(const Block& block, void* to) {
  std::memcpy(to, &block, sizeof(block));
}

}  // namespace

void quantise_block(DType dtype, BlockValues values, void* block) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const float extreme = -*least > *most ? *least : *most;  // the largest magnitude, with its sign
  switch (dtype) {
    case DType::kQ8_0:
      return put(make(math::Q8_0{}, values, std::fabs(extreme) / 127), block);
    case DType::kQ4_0:
      return put(make(math::Q4_0{}, values, extreme / -8), block);
    case DType::kQ4_1:
      return put(make(math::Q4_1{}, values, (*most - *least) / 15, *least), block);
    default:
      return;
  }
}

void encode_units(DType dtype, BlockValues values, int shift, void* block) {
  const float scale = std::ldexp(1.0F, -shift);
  switch (dtype) {
    case DType::kQ8_0:
      return put(make(math::Q8_0{}, values, scale), block);
    case DType::kQ4_0:
      return put(make(math::Q4_0{}, values, scale), block);
    case DType::kQ4_1:
      return put(make(math::Q4_1{}, values, scale, -8 * scale), block);
    default:
      return;
  }
}

void set_block_scale(void* block, float scale) {
  const math::F16 d = math::to_f16(scale);
  std::memcpy(block, &d, sizeof(d));
}

}  // namespace sluice::harness
