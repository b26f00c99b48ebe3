// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows in blocks with a few tokens. Included once per SIMD target.
//
// Rows are read in runs of kScaleRun blocks. While one run is multiplied, the scales of the next
// are widened a row at a time, and memory is asked for the run after that; next and after go on
// with the rows that follow. Left to the hardware, rows of a few KiB are over before it prefetches,
// and scales widened one by one cost as much as the weights: together two thirds of the time.
#if defined(SLUICE_CPU_DECODE_BLOCKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_DECODE_BLOCKS_INL
#undef SLUICE_CPU_DECODE_BLOCKS_INL
#else
#define SLUICE_CPU_DECODE_BLOCKS_INL
#endif

#include <algorithm>

#include "cpu/blocks-inl.hpp"
#include "cpu/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kRunElems = kScaleRun * kBlockElems;
// Lane sums are reduced and added up after so many runs, so that a long row is summed in parts.
inline constexpr std::int64_t kSumRuns = 8;

// So far ahead of its use memory is asked for, in runs: 1 KiB a row. Half of that leaves a fifth of
// the read bandwidth unused, twice of it costs q8_0 5 %.
template <class T>
inline constexpr int kRunsAhead = sizeof(T) > 32 ? 2 : 4;

// Which run of which group of rows: walks along a group's rows, then on to the next group.
template <class T, int kRows>
struct RunPosition {
  const void* const* lines;
  int groups;
  std::int64_t n;  // columns of a row
  int group = 0;
  std::int64_t k = 0;

  [[nodiscard]] HWY_INLINE RunPosition next() const {
    RunPosition out = *this;
    out.k += kRunElems;
    if (out.k >= n) out.k = 0, ++out.group;
    return out;
  }
  [[nodiscard]] bool there() const { return group < groups; }
  [[nodiscard]] HWY_INLINE int blocks() const {
    return static_cast<int>(std::min(kRunElems, n - k) / kBlockElems);
  }
  [[nodiscard]] HWY_INLINE const char* row(int i) const {
    return static_cast<const char*>(block_at<T>(lines[group * kRows + i], k));
  }
};

// Tokens in fp32, x[t * ldx + k]: what widened weights are multiplied with.
struct WideTokens {
  const float* x;
  std::int64_t ldx;
  [[nodiscard]] WideTokens from(std::int64_t token) const { return {x + token * ldx, ldx}; }
};

// How a group's blocks meet tokens in fp32, with the scales of two runs.
template <class T, int kRows, int kTokens>
class WideProducts {
 public:
  using D = F32;
  using Tokens = WideTokens;

  explicit WideProducts(const WideTokens& tokens) : tokens_(tokens) {}

  HWY_INLINE void load_scales(int buffer, int i, const RunPosition<T, kRows>& run) {
    scales_[buffer][i].load(run.row(i), run.blocks());
  }
  // sum[i][t] += the b-th block of each run, which begins at column k, by each token.
  HWY_INLINE void add_block(int buffer, const char* const (&line)[kRows], std::int64_t k, int b,
                            hn::Vec<D> (&sum)[kRows][kTokens]) const {
    const float* const at = tokens_.x + k + b * kBlockElems;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      hn::Vec<D> w[kBlockVecs];
      load_block<T>(line[i] + b * sizeof(T), scales_[buffer][i].at(b), w);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
        for (int v = 0; v < kBlockVecs; ++v) {
          const auto x = hn::LoadU(D(), at + t * tokens_.ldx + v * kLanes);
          sum[i][t] = hn::MulAdd(w[v], x, sum[i][t]);
        }
      }
    }
  }

 private:
  WideTokens tokens_;
  ScaleRun<T> scales_[2][kRows];
};

// out[t * ldo + i] = row i times token t, for groups * kRows rows.
template <template <class, int, int> class Products, class T, int kRows, int kTokens>
HWY_NOINLINE void dot_groups(const void* const* lines, int groups,
                             const typename Products<T, kRows, kTokens>::Tokens& tokens,
                             std::int64_t n, float* out, std::int64_t ldo) {
  using Position = RunPosition<T, kRows>;
  const typename Products<T, kRows, kTokens>::D d;
  constexpr int kBlocksARow = kScaleRun / kRows;  // between two rows' turns to be prepared
  constexpr std::int64_t kRunBytes = kScaleRun * static_cast<std::int64_t>(sizeof(T));
  Products<T, kRows, kTokens> products(tokens);
  Position now{lines, groups, n};
  for (int i = 0; now.there() && i < kRows; ++i) products.load_scales(0, i, now);
  int buffer = 0;
  hn::Vec<decltype(d)> sum[kRows][kTokens];
  float total[kTokens][kRows];
  while (now.there()) {
    const Position next = now.next();
    Position after = next;
    for (int r = 1; r < kRunsAhead<T>; ++r) after = after.next();
    const auto prepare = [&](int i) HWY_ATTR {
      if (next.there()) products.load_scales(1 - buffer, i, next);
      if (!after.there()) return;
      const char* const ahead = after.row(i);
      for (std::int64_t at = 0; at < kRunBytes; at += 64) __builtin_prefetch(ahead + at);
    };
    if (now.k % (kSumRuns * kRunElems) == 0) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::Zero(d);
      }
    }
    const char* line[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) line[i] = now.row(i);
    const int blocks = now.blocks();
    for (int b = 0; b < kScaleRun; ++b) {
      if (b % kBlocksARow == 0) prepare(b / kBlocksARow);
      if (HWY_UNLIKELY(b >= blocks)) continue;
      products.add_block(buffer, line, now.k, b, sum);
    }
    if (next.k % (kSumRuns * kRunElems) == 0) {  // also at the end of a row
      const bool first = now.k < kSumRuns * kRunElems;
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const float part = hn::GetLane(hn::SumOfLanes(d, sum[i][t]));
          total[t][i] = first ? part : total[t][i] + part;
          if (next.k == 0) out[t * ldo + now.group * kRows + i] = total[t][i];
        }
      }
    }
    now = next;
    buffer = 1 - buffer;
  }
}

// All rows against kTokens tokens, kRows rows at a time, then one by one; a row's sum is the same
// in either way.
template <template <class, int, int> class Products, class T, int kRows, int kTokens, class Tokens>
void dot_block_rows(const void* const* lines, int count, const Tokens& x, std::int64_t k,
                    float* out, std::int64_t ldo) {
  const int groups = count / kRows;
  const int done = groups * kRows;
  dot_groups<Products, T, kRows, kTokens>(lines, groups, x, k, out, ldo);
  dot_groups<Products, T, 1, kTokens>(lines + done, count - done, x, k, out + done, ldo);
}

template <template <class, int, int> class Products, class T, class Tokens>
void dot_blocks(const void* const* lines, int count, const Tokens& x, int tokens, std::int64_t k,
                float* out, std::int64_t ldo) {
  constexpr int kFew = kLanes == 16 ? 4 : 2;  // 32 or 16 registers for the sums
  // Further tokens take another pass over rows that are in a near cache by then.
  const int rows = tokens <= 4 ? count : 16;
  for (int i = 0; i < count; i += rows) {
    const void* const* from = lines + i;
    const int some = std::min(rows, count - i);
    for (int t = 0; t < tokens;) {
      const int passes = (tokens - t + 3) / 4;
      const int group = (tokens - t + passes - 1) / passes;
      const Tokens xt = x.from(t);
      float* to = out + t * ldo + i;
      switch (group) {
        case 1:
          dot_block_rows<Products, T, 8, 1>(from, some, xt, k, to, ldo);
          break;
        case 2:
          dot_block_rows<Products, T, 4, 2>(from, some, xt, k, to, ldo);
          break;
        case 3:
          dot_block_rows<Products, T, kFew, 3>(from, some, xt, k, to, ldo);
          break;
        default:
          dot_block_rows<Products, T, kFew, 4>(from, some, xt, k, to, ldo);
          break;
      }
      t += group;
    }
  }
}

template <class T>
void dots_of_blocks(const void* const* lines, int count, const float* x, std::int64_t ldx,
                    int tokens, std::int64_t k, float* out, std::int64_t ldo) {
  dot_blocks<WideProducts, T>(lines, count, WideTokens{x, ldx}, tokens, k, out, ldo);
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
