// SPDX-License-Identifier: Apache-2.0
// gate_up, down and mlp for more than a few tokens, in one parallel region. Weights are A: their
// rows are widened a K block at a time, without being transposed. Tokens are B: packed once, shared
// by all threads. So C is [weight rows, tokens], and h of an mlp comes out as the panels that down
// reads.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "cpu/engine.hpp"
#include "cpu/next_rows.hpp"

namespace sluice::cpu {
namespace {

// Weights of a task that are read before its phase begins: an eighth of a usual L2.
constexpr std::int64_t kNearBytes = std::int64_t{128} << 10;

// Columns of a row that are one step of k: two where bf16 is multiplied in pairs.
std::int64_t step_cols(const Engine& e) { return e.schedule.pairs ? 2 : 1; }

// Panels of tokens in the workspace, [panel][k][columns]: 2 * lanes tokens each, or lanes in a last
// one with no more. Missing tokens are zeros in x and unread in h. A float may be a pair of bf16.
class TokenPanels {
 public:
  TokenPanels(const Engine& e, std::size_t offset, std::int64_t tokens, std::int64_t cols)
      : data_(static_cast<float*>(e.at(offset))),
        lanes_(e.lanes()),
        tokens_(tokens),
        // pack_lines() writes whole vectors of k.
        panel_floats_(round_up(ceil_div(cols, step_cols(e)), kMaxLanes) * 2 * lanes_) {}
  [[nodiscard]] std::int64_t count() const { return ceil_div(tokens_, 2 * lanes_); }
  [[nodiscard]] std::int64_t first(std::int64_t panel) const { return panel * 2 * lanes_; }
  [[nodiscard]] std::int64_t tokens(std::int64_t panel) const {
    return std::min(2 * lanes_, tokens_ - first(panel));
  }
  [[nodiscard]] std::int64_t width(std::int64_t panel) const {
    return tokens(panel) > lanes_ ? 2 * lanes_ : lanes_;
  }
  [[nodiscard]] float* at(std::int64_t panel, std::int64_t k) const {
    return data_ + panel * panel_floats_ + k * width(panel);
  }

 private:
  float* data_;
  std::int64_t lanes_;
  std::int64_t tokens_;
  std::int64_t panel_floats_;
};

// Weight rows of a task: `count` gate (or down) rows from `first` on, and as many up rows behind
// them, each part padded to whole tiles by null lines.
struct WeightRows {
  const Matrix& weights;
  const Matrix* up;
  std::int64_t first;
  std::int64_t count;
  std::int64_t padded;
  [[nodiscard]] std::int64_t lines() const { return up == nullptr ? padded : 2 * padded; }
};

WeightRows weight_rows(const Engine& e, const ForwardBlocks& blocks, std::int64_t block,
                       Operand weights, std::optional<Operand> up) {
  const Matrix& w = e.matrix(weights);
  const std::int64_t first = block * blocks.rows;
  const std::int64_t count = std::clamp<std::int64_t>(w.rows - first, 0, blocks.rows);
  // A narrow tile is two wide ones high; two matrices share the padding.
  const std::int64_t unit = (up ? 1 : 2) * std::int64_t{e.kernels.gemm.tile_rows};
  return {w, up ? &e.matrix(*up) : nullptr, first, count, round_up(count, unit)};
}

using Lines = std::array<const void*, kMaxForwardRows>;

void fill_lines(const WeightRows& rows, Lines& out) {
  const auto part = [&](const Matrix& w, std::size_t begin) {
    for (std::int64_t i = 0; i < rows.padded; ++i) {
      out[begin + static_cast<std::size_t>(i)] = i < rows.count ? w.at(rows.first + i, 0) : nullptr;
    }
  };
  part(rows.weights, 0);
  if (rows.up != nullptr) part(*rows.up, static_cast<std::size_t>(rows.padded));
}

void advance(Lines& lines, std::int64_t count, std::int64_t bytes) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto& line = lines[static_cast<std::size_t>(i)];
    if (line != nullptr) line = static_cast<const char*>(line) + bytes;
  }
}

// Panels [first, end) of a task and its C: [weight rows, tokens], `ldc` floats from row to row.
struct PanelRange {
  std::int64_t first;
  std::int64_t end;
  std::int64_t ldc;
};

// Full register tiles: tile_rows by two vectors of tokens, twice as many by one.
struct Tiles {
  GemmKernels::Tile wide;
  GemmKernels::Tile narrow;
};

Tiles tiles_of(const Engine& e) {
  const GemmKernels& gemm = e.kernels.gemm;
  const bool pairs = e.schedule.pairs;
  if (pairs && is_block_type(e.problem.w_dtype)) return {gemm.scaled_tile, gemm.narrow_scaled_tile};
  const auto& wide = (pairs ? gemm.pair_tile : gemm.tile)[static_cast<std::size_t>(Rows::kLines)];
  return {wide[static_cast<std::size_t>(gemm.tile_rows)],
          pairs ? gemm.narrow_pair_tile : gemm.narrow_tile};
}

// out[j] = bf16 of first[j] and second[j] as a pair; `second` may be null, `out` may be `first`.
void pair_up(const Engine& e, const float* first, const float* second, std::int64_t n, float* out) {
  constexpr auto kWidest = static_cast<std::size_t>(kMaxPassRows + kMaxLanes);
  const auto narrow = e.kernels.row.narrow[static_cast<std::size_t>(DType::kBF16)];
  alignas(64) std::uint16_t low[kWidest];
  alignas(64) std::uint16_t high[kWidest] = {};
  narrow(first, n, low);
  if (second != nullptr) narrow(second, n, high);
  for (std::int64_t j = 0; j < n; ++j) {
    out[j] = std::bit_cast<float>(low[j] | static_cast<std::uint32_t>(high[j]) << 16);
  }
}

// lines[row .. row + n) from column `col` on.
template <class Line>
void lines_from(const Lines& lines, std::int64_t row, std::int64_t n, std::int64_t col,
                Line** out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<const float*>(lines[static_cast<std::size_t>(row + i)]) + col;
  }
}

// c = rows · tokens for one narrow panel and fp32 weights, which are read where they lie: a few
// rows by a long piece of K, while the rows after them, or theirs of the next piece, are brought
// into L2.
void multiply_in_place(const Engine& e, const WeightRows& rows, const WeightRows& next,
                       const TokenPanels& tokens, const PanelRange& range, std::int64_t k,
                       float* c) {
  const std::int64_t height = e.kernels.gemm.tile_rows;
  const std::int64_t count = rows.lines();
  const std::int64_t step = block_k(k);
  const std::int64_t piece = std::max(kInPlaceCols / step, std::int64_t{1}) * step;
  const auto lines_of = [&](const WeightRows& some) {
    Lines lines;
    fill_lines(some, lines);
    // Rows of padding are computed from the first one, and not looked at.
    std::replace(lines.begin(), lines.begin() + count, static_cast<const void*>(nullptr), lines[0]);
    return lines;
  };
  const Lines lines = lines_of(rows);
  const Lines next_lines = lines_of(next.lines() == count && next.count > 0 ? next : rows);
  for (std::int64_t begin = 0; begin < k; begin += piece) {
    const std::int64_t end = std::min(begin + piece, k);
    for (std::int64_t row = 0; row < count; row += height) {
      const void* ahead[kMaxTileRows];
      if (row + height < count) {
        lines_from(lines, row + height, height, begin, ahead);
      } else {
        lines_from(end < k ? lines : next_lines, 0, height, end < k ? end : 0, ahead);
      }
      NextRows stream(ahead, static_cast<int>(height), bytes_of(DType::kF32, end - begin));
      for (std::int64_t at = begin; at < end; at += step) {
        const float* from[kMaxTileRows];
        lines_from(lines, row, height, at, from);
        e.kernels.gemm.row_tile(from, tokens.at(range.first, at), std::min(step, end - at),
                                c + row * range.ldc, range.ldc, at > 0, stream);
      }
    }
  }
}

// c = rows · tokens. `next` are the rows that this thread will probably read afterwards.
void multiply_rows(const Engine& e, const WeightRows& rows, const WeightRows& next,
                   const TokenPanels& tokens, const PanelRange& range, std::int64_t cols,
                   const Scratch& scratch) {
  if (e.schedule.in_place) {
    return multiply_in_place(e, rows, next, tokens, range, cols, scratch.c);
  }
  const GemmKernels& gemm = e.kernels.gemm;
  const Tiles tiles = tiles_of(e);
  const DType dtype = rows.weights.dtype;
  const std::int64_t count = rows.lines();
  const std::int64_t k = ceil_div(cols, step_cols(e));
  const std::int64_t step = block_k(k);
  const std::int64_t step_bytes = bytes_of(dtype, step * step_cols(e));
  const std::int64_t strip = strip_rows(gemm, tokens.width(range.end - 1) == gemm.lanes);
  Lines lines;
  Lines ahead_lines;
  fill_lines(rows, lines);
  ahead_lines = lines;
  for (std::int64_t begin = 0; begin < k; begin += step) {
    const std::int64_t size = std::min(step, k - begin);
    const bool last = begin + step >= k;
    if (!last) {
      std::copy(lines.begin(), lines.begin() + count, ahead_lines.begin());
      advance(ahead_lines, count, step_bytes);
    } else if (next.lines() == count) {
      fill_lines(next, ahead_lines);
    }
    // A strip of rows is widened into L1 and meets all panels of tokens, which stream from L2.
    for (std::int64_t row = 0; row < count; row += strip) {
      widen_strip(gemm, e.schedule.pairs, dtype, lines.data() + row, std::min(strip, count - row),
                  std::min(step * step_cols(e), cols - begin * step_cols(e)), scratch.a);
      const void* const* const ahead_strip =
          row + strip < count ? lines.data() + row + strip : ahead_lines.data();
      for (std::int64_t panel = range.first; panel < range.end; ++panel) {
        const bool narrow = tokens.width(panel) == gemm.lanes;
        const std::int64_t height = narrow ? strip : gemm.tile_rows;
        const GemmKernels::Tile tile = narrow ? tiles.narrow : tiles.wide;
        float* const c = scratch.c + tokens.first(panel) - tokens.first(range.first);
        for (std::int64_t i = row; i < std::min(row + strip, count); i += height) {
          const Ahead ahead{ahead_strip + (i - row), bytes_of(dtype, kAheadSteps * step_cols(e))};
          tile(scratch.a + (i - row) * kAStride, tokens.at(panel, begin), size, c + i * range.ldc,
               range.ldc, begin > 0, panel + 1 == range.end ? &ahead : nullptr);
        }
      }
    }
    advance(lines, count, step_bytes);
  }
}

class Forward {
 public:
  Forward(const Engine& e, std::int64_t first, std::int64_t count)
      : e_(e),
        p_(e.problem),
        first_(first),
        x_(e, e.schedule.input, count, p_.op == Op::kDown ? p_.h : p_.d),
        h_(e, e.schedule.hidden, count, p_.h) {}

  void pack(std::int64_t task) const;
  template <class Over>
  void bring_near(int phase, std::int64_t task, const Over& over) const;
  void gate_up(std::int64_t task, int worker) const;
  void down(std::int64_t task, int worker) const;

 private:
  void pack_normed(std::int64_t panel) const;
  void pack_lines(const void* const* lines, DType dtype, std::int64_t panel, std::int64_t col,
                  std::int64_t n) const;
  void put_hidden(const PanelRange& range, std::int64_t step, const float* h) const;
  [[nodiscard]] PanelRange panels(const ForwardBlocks& blocks, std::int64_t block) const;
  template <class Put>
  void each_token(const float* c, const PanelRange& range, std::int64_t n, const Put& put) const;

  const Engine& e_;
  const Problem& p_;
  std::int64_t first_;  // token of the problem
  TokenPanels x_;       // what is multiplied first: x, n of the norm, or h of a lone down
  TokenPanels h_;
};

// One panel's chunk of columns; with a norm, whose scale needs the whole row, one panel.
void Forward::pack(std::int64_t task) const {
  if (p_.norm.enabled) return pack_normed(task);
  const Matrix& in = e_.matrix(p_.op == Op::kDown ? Operand::kH : Operand::kX);
  const std::int64_t panel = task / e_.schedule.pack_chunks;
  const std::int64_t col = task % e_.schedule.pack_chunks * kChunk;
  if (panel >= x_.count()) return;
  const void* lines[2 * kMaxLanes];
  for (std::int64_t i = 0; i < x_.tokens(panel); ++i) {
    lines[i] = in.at(first_ + x_.first(panel) + i, col);
  }
  pack_lines(lines, in.dtype, panel, col, std::min(kChunk, in.cols - col));
}

// Columns [col, col + n) of a panel's tokens, whose lines begin there.
void Forward::pack_lines(const void* const* lines, DType dtype, std::int64_t panel,
                         std::int64_t col, std::int64_t n) const {
  pack_panel(e_.kernels.gemm, e_.schedule.pairs, dtype, lines, x_.tokens(panel), n, x_.width(panel),
             x_.at(panel, col / step_cols(e_)));
}

void Forward::pack_normed(std::int64_t panel) const {
  if (panel >= x_.count()) return;
  alignas(64) float rows[2 * kMaxLanes][kChunk];
  float scale[2 * kMaxLanes];
  const void* lines[2 * kMaxLanes];
  const bool pairs = e_.schedule.pairs;
  const std::int64_t tokens = x_.tokens(panel);
  const std::int64_t first = first_ + x_.first(panel);
  for (std::int64_t i = 0; i < tokens; ++i) {
    scale[i] = norm_scale(e_, first + i);
    lines[i] = rows[i];
  }
  for (std::int64_t col = 0; col < p_.d; col += kChunk) {
    const std::int64_t n = std::min(kChunk, p_.d - col);
    for (std::int64_t i = 0; i < tokens; ++i) {
      norm_output(e_, first + i, scale[i], col, n, rows[i]);
      // In place: the bf16 come to lie over the first half of their fp32.
      if (pairs) e_.kernels.row.narrow[static_cast<std::size_t>(DType::kBF16)](rows[i], n, rows[i]);
    }
    pack_lines(lines, pairs ? DType::kBF16 : DType::kF32, panel, col, n);
  }
}

PanelRange Forward::panels(const ForwardBlocks& blocks, std::int64_t block) const {
  const std::int64_t first = block * blocks.panels;
  const std::int64_t end = std::min(first + blocks.panels, x_.count());
  return {first, end, blocks.ldc};
}

// put(token of the problem, values) for every token of the range, values[i] = c[i, token], i < n.
template <class Put>
void Forward::each_token(const float* c, const PanelRange& range, std::int64_t n,
                         const Put& put) const {
  const void* lines[kMaxForwardRows];
  alignas(64) float rows[2 * kMaxLanes * kMaxForwardRows];
  const std::int64_t width = round_up(n, 4);
  for (std::int64_t panel = range.first; panel < range.end; ++panel) {
    const float* const from = c + x_.first(panel) - x_.first(range.first);
    for (std::int64_t i = 0; i < n; ++i) lines[i] = from + i * range.ldc;
    e_.kernels.gemm.pack_lines[static_cast<std::size_t>(DType::kF32)](
        lines, static_cast<int>(n), x_.tokens(panel), static_cast<int>(width), rows);
    for (std::int64_t t = 0; t < x_.tokens(panel); ++t) {
      put(first_ + x_.first(panel) + t, rows + t * width);
    }
  }
}

// One step of h for the tokens of a range.
void Forward::put_hidden(const PanelRange& range, std::int64_t step, const float* h) const {
  for (std::int64_t panel = range.first; panel < range.end; ++panel) {
    std::memcpy(h_.at(panel, step), h + x_.first(panel) - x_.first(range.first),
                static_cast<std::size_t>(h_.width(panel)) * sizeof(float));
  }
}

// Brings the first weights of a task near while a phase before it is not over: memory would be idle
// otherwise, and unfused operators cannot.
template <class Over>
void Forward::bring_near(int phase, std::int64_t task, const Over& over) const {
  if (phase == 0) return;
  const ForwardBlocks& blocks = phase == 1 ? e_.schedule.gate_up : e_.schedule.down;
  const auto up = phase == 1 ? std::optional(Operand::kWUp) : std::nullopt;
  const WeightRows rows = weight_rows(e_, blocks, task / blocks.token_blocks,
                                      phase == 1 ? Operand::kWGate : Operand::kWDown, up);
  const std::int64_t row_bytes = bytes_of(p_.w_dtype, std::min(rows.weights.cols, kInPlaceCols));
  const std::int64_t most = std::min(rows.count, kNearBytes / row_bytes);
  for (std::int64_t i = 0; i < most && !over(); ++i) {
    read_lines(rows.weights.at(rows.first + i, 0), row_bytes, over);
  }
}

// g and u of the block, then h row by row while they are in cache.
void Forward::gate_up(std::int64_t task, int worker) const {
  const ForwardBlocks& blocks = e_.schedule.gate_up;
  const std::int64_t block = task / blocks.token_blocks;
  const PanelRange range = panels(blocks, task % blocks.token_blocks);
  if (range.first >= range.end) return;
  const auto rows_of = [&](std::int64_t b) {
    return weight_rows(e_, blocks, b, Operand::kWGate, Operand::kWUp);
  };
  const WeightRows rows = rows_of(block);
  const Scratch scratch = e_.scratch(worker);
  multiply_rows(e_, rows, rows_of(block + e_.team.threads), x_, range, p_.d, scratch);

  const std::int64_t n = rows.count;
  float* const g = scratch.c;
  float* const u = scratch.c + rows.padded * range.ldc;
  const std::int64_t width =
      x_.first(range.end - 1) + x_.width(range.end - 1) - x_.first(range.first);
  if (p_.bias_gate_up) {
    alignas(64) float bias[kMaxForwardRows];
    const auto add = [&](Operand id, float* to) {
      load_vector(e_, id, rows.first, n, bias);
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t t = 0; t < width; ++t) to[i * range.ldc + t] += bias[i];
      }
    };
    add(Operand::kBGate, g);
    add(Operand::kBUp, u);
  }
  const auto store_to = [&](Operand id) {
    return [&, id](std::int64_t token, const float* values) {
      e_.io.store(e_.matrix(id), token, rows.first, n, values);
    };
  };
  if (p_.save_g_u) {
    each_token(g, range, n, store_to(Operand::kG));
    each_token(u, range, n, store_to(Operand::kU));
  }
  const std::int64_t step = step_cols(e_);
  for (std::int64_t first = 0; first < n; first += step) {
    float* const h = g + first * range.ldc;
    for (std::int64_t i = first; i < std::min(first + step, n); ++i) {
      float* const row = g + i * range.ldc;
      e_.kernels.gate.mul(p_.gate, row, u + i * range.ldc, width, row);
    }
    if (p_.op == Op::kGateUp) continue;
    if (e_.schedule.pairs) {
      pair_up(e_, h, first + 1 < n ? h + range.ldc : nullptr, width, h);
    } else {
      e_.io.round(p_.x_dtype, width, h);
    }
    put_hidden(range, (rows.first + first) / step, h);
  }
  if (p_.op == Op::kGateUp) each_token(g, range, n, store_to(Operand::kH));
}

void Forward::down(std::int64_t task, int worker) const {
  const ForwardBlocks& blocks = e_.schedule.down;
  const std::int64_t block = task / blocks.token_blocks;
  const PanelRange range = panels(blocks, task % blocks.token_blocks);
  if (range.first >= range.end) return;
  const auto rows_of = [&](std::int64_t b) {
    return weight_rows(e_, blocks, b, Operand::kWDown, std::nullopt);
  };
  const WeightRows rows = rows_of(block);
  const Scratch scratch = e_.scratch(worker);
  multiply_rows(e_, rows, rows_of(block + e_.team.threads), p_.op == Op::kDown ? x_ : h_, range,
                p_.h, scratch);
  alignas(64) float bias[kMaxForwardRows];
  load_vector(e_, Operand::kBDown, rows.first, rows.count, bias);
  each_token(scratch.c, range, rows.count, [&](std::int64_t token, float* values) {
    finish_y(e_, token, rows.first, rows.count, bias, values);
  });
}

}  // namespace

void forward_gemm(const Engine& e) noexcept {
  const Schedule& s = e.schedule;
  const std::int64_t passes = ceil_div(e.problem.m, s.pass_rows);
  const PhaseTasks tasks = {s.pack_tasks, s.gate_up.tasks(), s.down.tasks()};
  const auto forward = [&](std::int64_t pass) {
    const std::int64_t first = pass * s.pass_rows;
    return Forward(e, first, std::min(s.pass_rows, e.problem.m - first));
  };
  parallel_phases(
      e.team, passes, tasks,
      [&](std::int64_t pass, int phase, std::int64_t task, int worker) {
        if (phase == 0) return forward(pass).pack(task);
        if (phase == 1) return forward(pass).gate_up(task, worker);
        forward(pass).down(task, worker);
      },
      [&](std::int64_t pass, int phase, std::int64_t task, const auto& over) {
        forward(pass).bring_near(phase, task, over);
      });
}

}  // namespace sluice::cpu
