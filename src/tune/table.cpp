// SPDX-License-Identifier: Apache-2.0
#include "tune/table.hpp"

#include <algorithm>
#include <cmath>

namespace sluice::tune {
namespace {

bool by_key(const Entry& a, const Entry& b) { return a.key < b.key; }

double log2_of(std::int64_t width) {
  return std::log2(static_cast<double>(std::max<std::int64_t>(width, 1)));
}

// What differs in `b` from `a` that a nearest entry may differ in, widths and m not counted.
int differences(const ProblemKey& a, const ProblemKey& b) {
  const bool same_width = a.d == b.d && a.h == b.h;
  return (a.activation != b.activation ? 1 : 0) + (a.adds != b.adds ? 1 : 0) +
         (a.alignment_bytes != b.alignment_bytes ? 1 : 0) +
         (same_width && a.layout != b.layout ? 1 : 0);  // strides follow the widths
}

// Of problems that differ in m alone, those with the same are served by the same tiles. A GPU's
// keys have no threads.
std::int64_t tiles_of(const ProblemKey& key) {
  if (key.threads > 0 || key.m < kFirstTileTokens) return 0;
  return (std::min(key.m, kLastTileTokens + 1) + kTokensATile - 1) / kTokensATile;
}

}  // namespace

void Table::add(std::span<const Entry> entries) {
  // New ones first: unique() keeps the first of equals, and stable_sort their order.
  std::vector<Entry> all(entries.rbegin(), entries.rend());
  all.insert(all.end(), entries_.begin(), entries_.end());
  std::stable_sort(all.begin(), all.end(), by_key);
  const auto same_key = [](const Entry& a, const Entry& b) { return a.key == b.key; };
  all.erase(std::unique(all.begin(), all.end(), same_key), all.end());

  std::vector<double> log2_m;
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ProblemKey& key = all[i].key;
    log2_m.push_back(log2_of(key.m));
    if (i == 0 || !key.same_shape(all[i - 1].key)) {
      shapes.push_back({i, i, log2_of(key.d), log2_of(key.h)});
    }
    shapes.back().end = i + 1;
  }
  entries_ = std::move(all);
  log2_m_ = std::move(log2_m);
  shapes_ = std::move(shapes);
}

const Entry* Table::exact(const ProblemKey& key) const noexcept {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), key,
                       [](const Entry& entry, const ProblemKey& k) { return entry.key < k; });
  return at != entries_.end() && at->key == key ? &*at : nullptr;
}

const Entry* Table::nearest(const ProblemKey& key, double& closest) const noexcept {
  if (key.m < 1) return nullptr;
  const double m = log2_of(key.m);
  const double d = log2_of(key.d);
  const double h = log2_of(key.h);
  const Entry* best = nullptr;
  for (const Shape& shape : shapes_) {
    const ProblemKey& other = entries_[shape.begin].key;
    if (!key.same_kind(other)) continue;
    const double d_steps = std::fabs(shape.log2_d - d);
    const double h_steps = std::fabs(shape.log2_h - h);
    if (std::max(d_steps, h_steps) > kMaxWidthSteps) continue;
    const double aside = 4 * (d_steps + h_steps) + 0.125 * differences(key, other);
    if (aside > closest) continue;
    const auto begin = log2_m_.begin() + static_cast<std::ptrdiff_t>(shape.begin);
    const auto end = log2_m_.begin() + static_cast<std::ptrdiff_t>(shape.end);
    const auto above = std::lower_bound(begin, end, m);
    // The next larger m first, so that it wins among equals.
    for (const auto at : {above, above == begin ? end : above - 1}) {
      if (at == end || std::fabs(*at - m) > kMaxTokenSteps) continue;
      const double distance = aside + std::fabs(*at - m);
      if (distance >= closest) continue;
      const Entry& entry = entries_[static_cast<std::size_t>(at - log2_m_.begin())];
      if (tiles_of(entry.key) != tiles_of(key)) continue;
      best = &entry;
      closest = distance;
    }
  }
  return best;
}

}  // namespace sluice::tune
