// SPDX-License-Identifier: Apache-2.0
// A model's own embeddings, normalised, as realistic inputs of its MLPs.
#include <algorithm>
#include <cmath>

#include "harness/checkpoint.hpp"
#include "math/float_types.hpp"

namespace sluice::harness {

std::vector<std::int64_t> spread_token_ids(std::int64_t m, std::int64_t vocabulary) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;  // 2^64 / phi
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(std::max<std::int64_t>(m, 0)));
  for (std::int64_t i = 0; i < m; ++i) {
    // frac((i + 1) / phi) to 32 bits, which any vocabulary fits in.
    const std::uint64_t fraction = ((static_cast<std::uint64_t>(i) + 1) * kGolden) >> 32;
    ids.push_back(
        static_cast<std::int64_t>((fraction * static_cast<std::uint64_t>(vocabulary)) >> 32));
  }
  return ids;
}

Expected<std::vector<std::byte>> embedding_rows(const Checkpoint& checkpoint, std::int64_t m,
                                                DType dtype, const MlpLayer* layer) {
  const TensorView& table = checkpoint.embedding;
  if (m < 0) {
    return make_error(ErrorCode::kInvalidArgument, "m: expected at least 0, got %lld",
                      static_cast<long long>(m));
  }
  if (table.data == nullptr || !table.dtype || table.shape[0] >= (std::int64_t{1} << 32)) {
    return make_error(ErrorCode::kUnsupported, "%s: no floating-point embed_tokens.weight",
                      checkpoint.name.c_str());
  }
  const std::int64_t d = checkpoint.d;
  const std::int64_t in = size_bytes(*table.dtype);
  const std::int64_t out = size_bytes(dtype);
  std::vector<std::byte> rows(static_cast<std::size_t>(m * d * out));
  std::vector<double> scale(static_cast<std::size_t>(d), 1.0);
  if (layer != nullptr && layer->norm_weight != nullptr) {
    const auto* const weights = static_cast<const std::byte*>(layer->norm_weight);
    for (std::int64_t c = 0; c < d; ++c) {
      scale[static_cast<std::size_t>(c)] =
          math::load(weights + c * size_bytes(layer->norm_dtype), layer->norm_dtype) +
          static_cast<double>(checkpoint.norm_weight_offset);
    }
  }
  std::vector<double> row(static_cast<std::size_t>(d));
  std::byte* target = rows.data();
  for (const std::int64_t id : spread_token_ids(m, table.shape[0])) {
    const std::byte* const source = table.data + id * d * in;
    double sum = 0;
    for (std::int64_t c = 0; c < d; ++c) {
      const double v = math::load(source + c * in, *table.dtype);
      row[static_cast<std::size_t>(c)] = v;
      sum += v * v;
    }
    const double factor =
        1.0 / std::sqrt(sum / static_cast<double>(d) + static_cast<double>(checkpoint.eps));
    for (std::size_t c = 0; c < row.size(); ++c, target += out) {
      math::store(target, dtype, row[c] * factor * scale[c]);
    }
  }
  return rows;
}

}  // namespace sluice::harness
