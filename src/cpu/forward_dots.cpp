// SPDX-License-Identifier: Apache-2.0
// gate_up, down and mlp for a few tokens: bound by reading the weights, each once, in place.
// A task is a run of weight rows; tokens lie widened or as they are, for all threads together.
#include <algorithm>
#include <array>

#include "cpu/engine.hpp"
#include "cpu/next_rows.hpp"
#include "math/block_types.hpp"

namespace sluice::cpu {
namespace {

constexpr std::int64_t kMaxTokens = std::max(DotKernels::kMaxTokens, DotKernels::kMaxPairTokens);
constexpr std::int64_t kMaxLines = 2 * kMaxDotRows;  // gate and up rows
// Weights of a task that are read before its phase begins: half of a usual L2.
constexpr std::int64_t kNearBytes = kDotTaskBytes / 2;

// Orders of columns in kernels of pairs, by the type of weights that has another than its own.
const DotKernels::PairOrder* order_of(DType weights) {
  static constexpr DotKernels::PairOrder kOfBytes = pair_order(DType::kQ8_0);
  static constexpr DotKernels::PairOrder kOfNibbles = pair_order(DType::kQ4_0);
  if (weights == DType::kQ8_0) return &kOfBytes;
  return weights == DType::kQ4_0 ? &kOfNibbles : nullptr;
}

// Rows of tokens in the workspace as the kernels read them: in token_dtype(), or in fixed point.
struct Tokens {
  char* data;
  DType dtype;
  std::int64_t stride;                 // elements; rows are zero from their width to here
  const DotKernels::PairOrder* order;  // null: as they come
  std::int64_t width;
  bool fixed;

  [[nodiscard]] FixedRows fixed_rows() const { return {data, width}; }

  [[nodiscard]] char* at(std::int64_t token, std::int64_t col) const {
    return data + (token * stride + col) * size_bytes(dtype);
  }
  // Columns [col, col + n) of a token, rounded to its type; whole blocks in fixed point.
  void put(const Engine& e, std::int64_t token, std::int64_t col, std::int64_t n,
           const float* values) const {
    if (fixed) {
      const std::int64_t block = col / kBlockElems;
      return e.kernels.dot.to_fixed(values, n, e.problem.x_dtype,
                                    fixed_rows().blocks(token) + block,
                                    fixed_rows().scales(token) + block);
    }
    const auto narrow = e.kernels.row.narrow[static_cast<std::size_t>(dtype)];
    if (order == nullptr) return narrow(values, n, at(token, col));
    std::uint16_t narrowed[kChunk];
    narrow(values, n, narrowed);
    auto* const row = reinterpret_cast<std::uint16_t*>(at(token, 0));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t in_unit = (col + i) % DotKernels::kPairElems;
      row[col + i - in_unit + (*order)[static_cast<std::size_t>(in_unit)]] = narrowed[i];
    }
  }
};
static_assert(kMaxDotRows <= kChunk);

Tokens tokens_at(const Engine& e, std::size_t offset, std::int64_t width) {
  const bool pairs = e.schedule.pairs;
  const Tokens out{static_cast<char*>(e.at(offset)),
                   token_dtype(e.problem, pairs, width),
                   token_stride(width, pairs),
                   pairs ? order_of(e.problem.w_dtype) : nullptr,
                   width,
                   e.schedule.fixed};
  if (out.fixed) {
    const std::int64_t blocks = width / kBlockElems;
    for (std::int64_t t = 0; t < e.problem.m; ++t) {
      float* const scales = out.fixed_rows().scales(t);
      std::fill(scales + blocks, scales + round_up(blocks, FixedRows::kScaleUnit), 0.0F);
    }
    return out;
  }
  // In another order the padding is spread over the last unit.
  const std::int64_t whole = out.order != nullptr ? width - width % DotKernels::kPairElems : width;
  for (std::int64_t t = 0; t < e.problem.m; ++t) {
    std::fill(out.at(t, whole), out.at(t, out.stride), char{0});
  }
  return out;
}

// One token of what is multiplied first: x, n where there is a norm, or h of a lone down.
void load_token(const Engine& e, const Tokens& out, std::int64_t t) {
  if (e.problem.norm.enabled) {
    return norm_row(e, t, [&](std::int64_t col, std::int64_t n, const float* values) {
      out.put(e, t, col, n, values);
    });
  }
  const Matrix& in = e.matrix(e.problem.op == Op::kDown ? Operand::kH : Operand::kX);
  alignas(64) float values[kChunk];
  for (std::int64_t col = 0; col < in.cols; col += kChunk) {
    const std::int64_t n = std::min(kChunk, in.cols - col);
    e.io.load(in, t, col, n, values);
    out.put(e, t, col, n, values);
  }
}

struct Sums {
  alignas(64) float value[kMaxTokens][kMaxLines];
};

// Weight rows of a task, and behind them those that this thread will probably read next.
struct Lines {
  std::array<const void*, kMaxLines + DotKernels::kAheadLines> row;
  std::int64_t count = 0;
};

class Forward {
 public:
  explicit Forward(const Engine& e);

  // The tokens are loaded, then gate_up, then down.
  [[nodiscard]] const PhaseTasks& tasks() const { return tasks_; }
  void run(int phase, std::int64_t task) const;
  template <class Over>
  void bring_near(int phase, std::int64_t task, const Over& over) const;

 private:
  [[nodiscard]] Lines lines(int phase, std::int64_t task) const;
  [[nodiscard]] Lines lines_with_ahead(int phase, std::int64_t task) const;
  void dots(const Lines& lines, const Tokens& x, std::int64_t k, Sums& out) const;
  void add_kept_blocks(const Lines& lines, const Tokens& x, std::int64_t k, Sums& out) const;
  template <class Put>
  void gate_up_columns(std::int64_t task, std::int64_t n, const Put& put) const;
  void load(std::int64_t task) const;
  void gate_up(std::int64_t task) const;
  void down(std::int64_t task) const;

  const Engine& e_;
  const Problem& p_;
  Tokens x_{};       // what is multiplied first: x, n of the norm, or h of a lone down
  Tokens hidden_{};  // what down reads
  std::int64_t cols_;
  std::int64_t rows_;
  PhaseTasks tasks_{};
};

Forward::Forward(const Engine& e)
    : e_(e), p_(e.problem), cols_(e.schedule.dot_cols), rows_(e.schedule.dot_rows) {
  const bool has_gate_up = p_.op != Op::kDown;
  const bool has_down = p_.op != Op::kGateUp;
  const std::int64_t width = has_gate_up ? p_.d : p_.h;
  x_ = tokens_at(e, e.schedule.input, width);
  hidden_ = has_gate_up && has_down ? tokens_at(e, e.schedule.hidden, p_.h) : x_;
  // Loading few tokens takes microseconds: less than it takes to share them.
  tasks_ = {p_.m < 8 ? 1 : p_.m, has_gate_up ? ceil_div(p_.h, cols_) : 0,
            has_down ? ceil_div(p_.d, rows_) : 0};
}

void Forward::run(int phase, std::int64_t task) const {
  if (phase == 0) return load(task);
  if (phase == 1) return gate_up(task);
  down(task);
}

Lines Forward::lines(int phase, std::int64_t task) const {
  Lines out;
  const auto append = [&](Operand id, std::int64_t first, std::int64_t count) {
    const Matrix& w = e_.matrix(id);
    const std::int64_t there = std::min(count, w.rows - first);
    w.rows_at(first, there, out.row.data() + out.count);
    out.count += there;
  };
  if (phase == 1) {
    append(Operand::kWGate, task * cols_, cols_);
    append(Operand::kWUp, task * cols_, cols_);
  } else {
    append(Operand::kWDown, task * rows_, rows_);
  }
  return out;
}

// Down's weights follow gate_up's, as they depend on nothing.
Lines Forward::lines_with_ahead(int phase, std::int64_t task) const {
  Lines out = lines(phase, task);
  const PhaseTask next = next_task(tasks_, phase, task, e_.team.threads);
  const Matrix& w = e_.matrix(next.phase == 1 ? Operand::kWGate : Operand::kWDown);
  const std::int64_t first = next.task * (next.phase == 1 ? cols_ : rows_);
  const void** const ahead = out.row.data() + out.count;
  const std::int64_t there =
      next.there ? std::min<std::int64_t>(DotKernels::kAheadLines, w.rows - first) : 0;
  w.rows_at(first, there, ahead);
  std::fill(ahead + there, ahead + DotKernels::kAheadLines, ahead[there - 1]);
  return out;
}

// Brings the first weights of a task near while a phase before it is not over: memory would be idle
// otherwise, and unfused operators cannot.
template <class Over>
void Forward::bring_near(int phase, std::int64_t task, const Over& over) const {
  if (phase == 0) return;
  const Lines ahead = lines(phase, task);
  const std::int64_t row_bytes = bytes_of(p_.w_dtype, phase == 1 ? p_.d : p_.h);
  const std::int64_t most = std::min(ahead.count, kNearBytes / row_bytes);
  for (std::int64_t i = 0; i < most && !over(); ++i) {
    read_lines(ahead.row[static_cast<std::size_t>(i)], row_bytes, over);
  }
}

// Adds what the fixed point of a token leaves out, by the kernel that widens weights.
void Forward::add_kept_blocks(const Lines& lines, const Tokens& x, std::int64_t k,
                              Sums& out) const {
  const auto dots = e_.kernels.dot.dots[static_cast<std::size_t>(p_.w_dtype)];
  for (std::int64_t t = 0; t < p_.m; ++t) {
    const float* const scales = x.fixed_rows().scales(t);
    for (std::int64_t b = 0; b < k / kBlockElems; ++b) {
      if (scales[b] != kKept) continue;
      const FixedBlock& block = x.fixed_rows().blocks(t)[b];
      alignas(64) float values[kBlockElems];
      for (std::int64_t j = 0; j < kBlockElems; ++j) {
        values[j] = static_cast<float>(math::load(&block.q[j], p_.x_dtype));
      }
      Lines at = lines;
      for (std::int64_t i = 0; i < at.count; ++i) {
        const void*& row = at.row[static_cast<std::size_t>(i)];
        row = static_cast<const char*>(row) + bytes_of(p_.w_dtype, b * kBlockElems);
      }
      alignas(64) float sums[kMaxLines];
      dots(at.row.data(), static_cast<int>(at.count), values, kBlockElems, 1, kBlockElems, sums,
           kMaxLines);
      e_.kernels.row.add(sums, at.count, out.value[t]);
    }
  }
}

void Forward::dots(const Lines& lines, const Tokens& x, std::int64_t k, Sums& out) const {
  const DotKernels& kernels = e_.kernels.dot;
  const auto count = static_cast<int>(lines.count);
  const auto tokens = static_cast<int>(p_.m);
  const auto weights = static_cast<std::size_t>(p_.w_dtype);
  if (x.fixed) {
    kernels.fixed_dots[weights](lines.row.data(), count, x.fixed_rows(), tokens, k, out.value[0],
                                kMaxLines);
    return add_kept_blocks(lines, x, k, out);
  }
  if (e_.schedule.pairs) {
    return kernels.pair_dots[weights](lines.row.data(), count,
                                      reinterpret_cast<std::uint16_t*>(x.data), x.stride, tokens, k,
                                      out.value[0], kMaxLines);
  }
  if (x.dtype != DType::kF32) {
    return kernels.own_dots[weights](lines.row.data(), count, x.data, k, out.value[0]);
  }
  kernels.dots[weights](lines.row.data(), count, reinterpret_cast<float*>(x.data), x.stride, tokens,
                        k, out.value[0], kMaxLines);
}

void Forward::load(std::int64_t task) const {
  if (tasks_[0] > 1) return load_token(e_, x_, task);
  for (std::int64_t t = 0; t < p_.m; ++t) load_token(e_, x_, t);
}

// h of n columns for all tokens; put(token, values) takes it.
template <class Put>
void Forward::gate_up_columns(std::int64_t task, std::int64_t n, const Put& put) const {
  const std::int64_t col = task * cols_;
  Sums sums;
  dots(lines_with_ahead(1, task), x_, p_.d, sums);
  alignas(64) float b_gate[kMaxDotRows];
  alignas(64) float b_up[kMaxDotRows];
  if (p_.bias_gate_up) {
    load_vector(e_, Operand::kBGate, col, n, b_gate);
    load_vector(e_, Operand::kBUp, col, n, b_up);
  }
  for (std::int64_t t = 0; t < p_.m; ++t) {
    float* const g = sums.value[t];
    float* const u = g + n;
    if (p_.bias_gate_up) {
      e_.kernels.row.add(b_gate, n, g);
      e_.kernels.row.add(b_up, n, u);
    }
    if (p_.save_g_u) {
      e_.io.store(e_.matrix(Operand::kG), t, col, n, g);
      e_.io.store(e_.matrix(Operand::kU), t, col, n, u);
    }
    e_.kernels.gate.mul(p_.gate, g, u, n, g);
    put(t, g);
  }
}

void Forward::gate_up(std::int64_t task) const {
  const std::int64_t col = task * cols_;
  const std::int64_t n = std::min(cols_, p_.h - col);
  gate_up_columns(task, n, [&](std::int64_t t, float* h) {
    if (p_.op == Op::kGateUp) return e_.io.store(e_.matrix(Operand::kH), t, col, n, h);
    e_.io.round(p_.x_dtype, n, h);
    hidden_.put(e_, t, col, n, h);
  });
}

void Forward::down(std::int64_t task) const {
  const std::int64_t col = task * rows_;
  const std::int64_t n = std::min(rows_, p_.d - col);
  Sums sums;
  dots(lines_with_ahead(2, task), hidden_, p_.h, sums);
  alignas(64) float bias[kMaxDotRows];
  load_vector(e_, Operand::kBDown, col, n, bias);
  for (std::int64_t t = 0; t < p_.m; ++t) finish_y(e_, t, col, n, bias, sums.value[t]);
}

}  // namespace

void forward_dots(const Engine& e) noexcept {
  const Forward forward(e);
  parallel_phases(
      e.team, 1, forward.tasks(),
      [&](std::int64_t, int phase, std::int64_t task, int) { forward.run(phase, task); },
      [&](std::int64_t, int phase, std::int64_t task, const auto& over) {
        forward.bring_near(phase, task, over);
      });
}

}  // namespace sluice::cpu
