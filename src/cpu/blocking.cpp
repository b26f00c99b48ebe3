// SPDX-License-Identifier: Apache-2.0
#include "cpu/blocking.hpp"

#include <algorithm>
#include <limits>

#include "cpu/matrix.hpp"

namespace sluice::cpu {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::int64_t kFloat = sizeof(float);

// Cost of packing an element of A or B, in multiply-adds of one vector: a few instructions for
// every four elements against one instruction for a vector.
constexpr double kPackCost = 8;

std::int64_t l2_floats(std::int64_t l2_bytes) { return l2_budget_bytes(l2_bytes) / kFloat; }

// Rows of A and C that share L2 with a panel block of B: A takes rows * kBlockK floats, C rows *
// kMaxBlockCols, B kBlockK * kMaxBlockCols.
std::int64_t max_rows(std::int64_t l2_bytes, int tile_rows) {
  const std::int64_t budget = l2_floats(l2_bytes);
  const std::int64_t rows = (budget - kBlockK * kMaxBlockCols) / (kBlockK + kMaxBlockCols);
  return std::clamp<std::int64_t>(rows, 48, 480) / tile_rows * tile_rows;
}

// Hands out the payload piece by piece.
class Arena {
 public:
  std::size_t take(std::int64_t bytes) {
    const std::size_t at = used_;
    used_ += (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

// Sizes a thread's scratch for a GEMM of these blocks. `pairs` panels of a second C per panel.
void fit(Schedule& s, const GemmKernels& k, const Blocking& b, std::int64_t second_panels) {
  const std::int64_t width = std::int64_t{2} * k.lanes;
  const std::int64_t panels = std::max(b.panels, second_panels);
  s.a_floats = std::max(s.a_floats, ceil_div(b.rows, k.tile_rows) *
                                        std::max(k.a_width * kBlockK, k.tile_rows * kAStride));
  s.b_floats = std::max(s.b_floats, panels * width * kBlockK);
  s.c_floats = std::max(s.c_floats, b.rows * b.panels * width);
  s.c2_floats = std::max(s.c2_floats, b.rows * second_panels * width);
}

void take_scratch(Schedule& s, Arena& arena, std::int64_t tasks) {
  s.threads = static_cast<int>(std::min<std::int64_t>(s.threads, std::max<std::int64_t>(tasks, 1)));
  const std::int64_t each =
      round_up((s.a_floats + s.b_floats + s.c_floats + s.c2_floats) * kFloat, kAlign);
  s.panels_each = static_cast<std::size_t>(each);
  s.panels = arena.take(each * s.threads);
}

// Rows a task of dot products, a multiple of `unit`, itself one of the 8 that kernels take at once:
// the fewest tasks a thread that the limits allow, or up to two more where that leaves less to the
// thread with most.
std::int64_t dot_task_rows(std::int64_t row_bytes, std::int64_t rows, std::int64_t unit,
                           int threads) {
  const std::int64_t most =
      std::clamp<std::int64_t>(kDotTaskBytes / row_bytes / unit * unit, unit, kMaxDotRows);
  const std::int64_t least_each = std::max(kDotTasksEach, ceil_div(rows, most * threads));
  std::int64_t best = most;
  std::int64_t least_share = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t each = least_each; each < least_each + 3; ++each) {
    const std::int64_t task = round_up(ceil_div(rows, each * threads), unit);
    const std::int64_t share = ceil_div(ceil_div(rows, task), threads) * task;
    if (share < least_share) {
      least_share = share;
      best = task;
    }
  }
  return best;
}

void schedule_dots(const Problem& p, Schedule& s, Arena& arena) {
  // In fixed point h is stored by whole blocks.
  const std::int64_t cols_unit = s.fixed && p.op == Op::kMlp ? kBlockElems : 8;
  if (p.op != Op::kDown) {
    s.dot_cols = dot_task_rows(bytes_of(p.w_dtype, p.d), p.h, cols_unit, s.threads);
  }
  if (p.op != Op::kGateUp) {
    s.dot_rows = dot_task_rows(bytes_of(p.w_dtype, p.h), p.d, 8, s.threads);
  }
  const auto tokens_bytes = [&](std::int64_t k) {
    if (s.fixed) return p.m * FixedRows::stride_bytes(k);
    return p.m * token_stride(k, s.pairs) * size_bytes(token_dtype(p, s.pairs, k));
  };
  s.input = arena.take(tokens_bytes(p.op == Op::kDown ? p.h : p.d));
  if (p.op == Op::kMlp) s.hidden = arena.take(tokens_bytes(p.h));
}

// Whether tokens are multiplied in fixed point: those of 16 bits, with integers of blocks, where
// they do not stay bf16.
bool in_fixed_point(const Problem& p, const Schedule& s, const DotKernels& k) {
  return s.dots && !s.pairs && p.x_dtype != DType::kF32 && p.m <= k.max_fixed_tokens &&
         k.fixed_dots[static_cast<std::size_t>(p.w_dtype)] != nullptr;
}

// Whether weights can be multiplied where they lie, by one vector of tokens.
bool in_place(const Problem& p, const GemmKernels& k) {
  return k.row_tile != nullptr && p.w_dtype == DType::kF32;
}

struct Cutter {
  const GemmKernels& kernels;
  std::int64_t l2_bytes;
  int threads;
  [[nodiscard]] Blocking operator()(std::int64_t m, std::int64_t n, std::int64_t panel_cols,
                                    std::int64_t max_cols) const {
    return choose_blocking(m, ceil_div(n, panel_cols), max_cols / (std::int64_t{2} * kernels.lanes),
                           kernels, l2_bytes, threads);
  }
};

void schedule_forward(const Problem& p, const GemmKernels& k, std::int64_t l2_bytes, Schedule& s,
                      Arena& arena) {
  const std::int64_t width = std::int64_t{2} * k.lanes;
  s.pass_rows = std::min(p.m, round_up(ceil_div(p.m, ceil_div(p.m, kMaxPassRows)), width));
  const std::int64_t depth = p.op == Op::kDown ? p.h : p.d;
  s.pack_chunks = p.norm.enabled ? 1 : ceil_div(depth, kChunk);
  s.pack_tasks = ceil_div(s.pass_rows, width) * s.pack_chunks;
  std::int64_t tasks = s.pack_tasks;
  const auto fit_forward = [&](const ForwardBlocks& b, int matrices) {
    const std::int64_t rows = round_up(b.rows * matrices, std::int64_t{2} * k.tile_rows);
    s.a_floats = std::max(s.a_floats, std::int64_t{2} * k.tile_rows * kAStride);
    s.c_floats = std::max(s.c_floats, rows * b.ldc);
    tasks = std::max(tasks, b.tasks());
  };
  if (p.op != Op::kDown) {
    s.gate_up = choose_forward(p.h, 2, s.pass_rows, k, l2_bytes, s.threads);
    fit_forward(s.gate_up, 2);
  }
  if (p.op != Op::kGateUp) {
    s.down = choose_forward(p.d, 1, s.pass_rows, k, l2_bytes, s.threads);
    fit_forward(s.down, 1);
  }
  // pack_lines() writes whole vectors of k; the last panel may be narrow.
  const auto panel_bytes = [&](std::int64_t cols) {
    const std::int64_t steps = s.pairs ? ceil_div(cols, 2) : cols;
    return round_up(s.pass_rows, k.lanes) * round_up(steps, kMaxLanes) * kFloat;
  };
  s.input = arena.take(panel_bytes(depth));
  if (p.op == Op::kMlp) s.hidden = arena.take(panel_bytes(p.h));
  take_scratch(s, arena, tasks);
}

void schedule_backward(const Problem& p, const GemmKernels& k, const Cutter& cut, Schedule& s,
                       Arena& arena) {
  const std::int64_t width = std::int64_t{2} * k.lanes;
  // Beside a panel of dh, a recomputing task holds two of g and u.
  const std::int64_t most = p.recompute ? kMaxBlockCols / 3 / width * width : kMaxBlockCols;
  s.dh = cut(p.m, p.h, width, most);
  fit(s, k, s.dh, p.recompute ? 2 * s.dh.panels : 0);
  std::int64_t tasks = s.dh.tasks();
  if (p.op == Op::kMlpGrad) {
    s.dx = cut(p.m, p.d, width, kMaxBlockCols);
    s.dw_gate_up = cut(p.h, p.d, width, kMaxBlockCols);
    s.dw_down = cut(p.d, p.h, width, kMaxBlockCols);
    for (const Blocking& b : {s.dx, s.dw_gate_up, s.dw_down}) fit(s, k, b, 0);
    tasks = std::max(tasks, s.dx.tasks() + 2 * s.dw_gate_up.tasks() + s.dw_down.tasks());
    const std::int64_t bytes = p.m * p.h * size_bytes(p.x_dtype);
    s.hidden = arena.take(bytes);
    if (!p.save_dg_du) {
      s.dg = arena.take(bytes);
      s.du = arena.take(bytes);
    }
  }
  take_scratch(s, arena, tasks);
}

}  // namespace

std::int64_t l2_budget_bytes(std::int64_t l2_bytes) noexcept {
  constexpr std::int64_t kUsualL2 = std::int64_t{1} << 20;
  return (l2_bytes > 0 ? l2_bytes : kUsualL2) / 8 * 7;
}

Blocking choose_blocking(std::int64_t m, std::int64_t panels, std::int64_t max_panels,
                         const GemmKernels& kernels, std::int64_t l2_bytes, int threads) noexcept {
  const std::int64_t most_rows = max_rows(l2_bytes, kernels.tile_rows);
  const double width = 2.0 * kernels.lanes;
  Blocking best;
  double best_time = 0;
  const std::int64_t first = ceil_div(m, most_rows);
  // A few more blocks than needed, where that balances the threads better.
  for (std::int64_t m_blocks = first; m_blocks <= first + 3 && m_blocks <= m; ++m_blocks) {
    const std::int64_t rows = round_up(ceil_div(m, m_blocks), m_blocks > 1 ? kernels.tile_rows : 1);
    for (std::int64_t each = std::min(panels, std::max<std::int64_t>(max_panels, 1)); each >= 1;
         --each) {
      const Blocking b{rows, ceil_div(m, rows), each, ceil_div(panels, each)};
      const auto rounds = static_cast<double>(ceil_div(b.tasks(), threads));
      const double tile = static_cast<double>(rows) * static_cast<double>(each) * 2;
      const double packing = kPackCost / kernels.lanes *
                             (static_cast<double>(rows) + static_cast<double>(each) * width);
      const double time = rounds * (tile + packing);
      if (best.rows == 0 || time < best_time) best = b, best_time = time;
    }
  }
  return best;
}

ForwardBlocks choose_forward(std::int64_t rows, int matrices, std::int64_t tokens,
                             const GemmKernels& kernels, std::int64_t l2_bytes,
                             int threads) noexcept {
  // So many tasks a thread that an uneven end costs little.
  constexpr std::int64_t kTasksEach = 4;
  const std::int64_t width = std::int64_t{2} * kernels.lanes;
  const std::int64_t panels = ceil_div(tokens, width);
  ForwardBlocks b;
  for (std::int64_t most = kMaxForwardRows; most >= kMaxForwardRows / 4; most /= 2) {
    const std::int64_t budget =
        l2_floats(l2_bytes) - most * (kAStride + kMaxLanes) - width * kBlockK;
    b.rows = most / matrices;
    b.row_blocks = ceil_div(rows, b.rows);
    b.panels = std::clamp<std::int64_t>(budget / (most * width), 1, panels);
    b.token_blocks = ceil_div(panels, b.panels);
    b.ldc = b.panels * width + kMaxLanes;
    if (b.tasks() >= kTasksEach * threads) break;
  }
  return b;
}

bool multiplies_bf16(const Problem& p) noexcept {
  const bool forward = p.op == Op::kGateUp || p.op == Op::kDown || p.op == Op::kMlp;
  const bool backward = p.op == Op::kGateUpGrad || p.op == Op::kMlpGrad;
  if (p.x_dtype != DType::kBF16) return false;
  if (p.w_dtype == DType::kQ8_0 || p.w_dtype == DType::kQ4_0) return forward;
  return p.w_dtype == DType::kBF16 && (forward || (backward && p.y_dtype == DType::kBF16));
}

bool prefers_bf16_products(const Problem& p, const Device& device) noexcept {
  if (!multiplies_bf16(p)) return false;
  const bool one_token =
      p.m == 1 && p.w_dtype == DType::kBF16 && p.op != Op::kGateUpGrad && p.op != Op::kMlpGrad;
  return !device.slow_bf16_products || one_token;
}

DType token_dtype(const Problem& p, bool pairs, std::int64_t width) noexcept {
  if (pairs) return DType::kBF16;
  const bool own = p.m == 1 && p.w_dtype == p.x_dtype && width > DotKernels::kMaxWideCols;
  return own ? p.x_dtype : DType::kF32;
}

std::int64_t max_dot_tokens(const Problem& p, SimdTarget target) noexcept {
  const GemmKernels& k = gemm_kernels(target);
  if (k.has_pairs() && multiplies_bf16(p)) return DotKernels::kMaxPairTokens;
  return in_place(p, k) ? kMinInPlaceTokens - 1 : dot_kernels(target).max_tokens;
}

Schedule make_schedule(const Problem& p, const Device& device, int threads,
                       SimdTarget target) noexcept {
  const GemmKernels& k = gemm_kernels(target);
  Schedule s;
  s.threads = threads;
  s.pairs = k.has_pairs() && multiplies_bf16(p);
  Arena arena;
  const Cutter cut{k, device.l2_bytes, threads};
  switch (p.op) {
    case Op::kGateUp:
    case Op::kMlp:
    case Op::kDown:
      s.dots = p.m <= max_dot_tokens(p, target);
      s.fixed = in_fixed_point(p, s, dot_kernels(target));
      s.in_place = !s.dots && in_place(p, k) && p.m <= k.lanes;
      if (s.dots) {
        schedule_dots(p, s, arena);
      } else {
        schedule_forward(p, k, device.l2_bytes, s, arena);
      }
      break;
    case Op::kGateUpGrad:
    case Op::kMlpGrad:
      schedule_backward(p, k, cut, s, arena);
      break;
    case Op::kGateMul:
    case Op::kGateMulGrad:
    case Op::kNorm:
    case Op::kInputGrad:
    case Op::kWeightGrad:
    case Op::kColumnSum:
    case Op::kAllReduce:
      break;
  }
  s.bytes = arena.used();
  return s;
}

}  // namespace sluice::cpu
