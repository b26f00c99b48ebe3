// SPDX-License-Identifier: Apache-2.0
// Which tiling the Hopper GEMM uses for which shape: pure arithmetic, tested on any CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "cuda/sm90/boxes.hpp"
#include "cuda/sm90/gemm/half_tiles.hpp"
#include "cuda/sm90/gemm/stream_k/schedule.hpp"

namespace sluice::cuda::sm90::gemm {

inline constexpr int kTileM = 128;   ///< rows of x a CTA, but under stream-K
inline constexpr int kTileK = 64;    ///< of a stage; 128 bytes: one swizzle atom
inline constexpr int kOutRows = 64;  ///< of the out tile: what a consumer finishes at a time
/// Operands with k along their rows come by boxes of so many columns; a tail tile has one.
inline constexpr int kColumnBox = 64;

/// What a GEMM of the family makes of its sums.
enum class GemmKind : std::uint8_t {
  kGateUp = 0,      ///< h, and g and u if asked: weight rows in pairs of gate and up
  kDown = 1,        ///< y
  kGateUpGrad = 2,  ///< dg, du, and h if asked, from dh: W_down with its columns as weight rows
  kInputGrad =
      3,  ///< dx, two products in one sum: W_gate and W_up with their columns as weight rows
  kWeightGrad = 4,  ///< a weight's gradient: both sides with their columns as rows, k are tokens
};

/// Parts of k at most: CTAs of a cluster that every device of this architecture runs.
inline constexpr int kMaxSplit = 8;

/// How CTAs divide the output, and consumers a tile.
enum class Schedule : std::uint8_t {
  kCooperative,  ///< whole tiles in waves; both consumers share a tile
  kPingpong,     ///< whole tiles in waves; consumers have a tile each, by turns
  kStreamK,      ///< equal shares of bytes instead of whole tiles, stream_k/schedule.hpp
  /// Stream-K where x and the weights change places in the WGMMA. Weight rows are its rows, tokens
  /// its columns, which come in eights where rows come in 64.
  kStreamKSwapAB,
  kSplitK,  ///< few tiles: the CTAs of a cluster have a part of k of one each, split_k/kernel.cuh
};

/// A kernel instantiation and how it walks the output.
struct Tiling {
  int tile_n = 192;  ///< weight rows a tile; half as many output columns in gate_up
  /// CTAs that share the weight tile by multicast, `rows` rows of x each; under swap-AB they share
  /// the rows of x, a weight tile each.
  int cluster = 2;
  Schedule schedule = Schedule::kPingpong;
  int group = 8;      ///< row tiles that are walked together, for L2; 0: all
  int rows = kTileM;  ///< rows of x a CTA
  int split = 1;      ///< CTAs that share a tile, with a part of k each; kSplitK

  [[nodiscard]] constexpr bool is_split_k() const noexcept { return split > 1; }
  [[nodiscard]] constexpr bool is_stream_k() const noexcept {
    return schedule == Schedule::kStreamK || swaps_ab();
  }
  [[nodiscard]] constexpr bool swaps_ab() const noexcept {
    return schedule == Schedule::kStreamKSwapAB;
  }
  /// CTAs that bring a part each of a stage's weights to all; and of its x.
  [[nodiscard]] constexpr int weight_parts() const noexcept { return swaps_ab() ? 1 : cluster; }
  [[nodiscard]] constexpr int input_parts() const noexcept { return swaps_ab() ? cluster : 1; }
  /// Whether outputs leave from registers, 32 weight rows at a time, and not by a tensor map.
  [[nodiscard]] constexpr bool stores_rows() const noexcept {
    return schedule == Schedule::kStreamK || schedule == Schedule::kSplitK;
  }
  /// Of so many row tiles, those that are walked together.
  [[nodiscard]] constexpr std::int64_t group_of(std::int64_t row_tiles) const noexcept {
    return group == 0 || group > row_tiles ? row_tiles : group;
  }
  /// Whether the order of the tiles is all that differs.
  [[nodiscard]] constexpr bool has_kernel_of(Tiling other) const noexcept {
    other.group = group;
    return *this == other;
  }
  friend constexpr bool operator==(const Tiling&, const Tiling&) = default;
};

/// Of split K, in gate_up and down alike: one kernel for each width, whatever the split.
inline constexpr Tiling kSplitKTilings[] = {
    {64, 1, Schedule::kSplitK, 16, kTileM, 2},
    {64, 1, Schedule::kSplitK, 16, kTileM, 4},
    {64, 1, Schedule::kSplitK, 16, kTileM, kMaxSplit},
    {128, 1, Schedule::kSplitK, 16, kTileM, 2},
    {128, 1, Schedule::kSplitK, 16, kTileM, 4},
    {128, 1, Schedule::kSplitK, 16, kTileM, kMaxSplit},
};
template <std::size_t kCount>
constexpr auto and_split_k(const Tiling (&others)[kCount]) noexcept {
  std::array<Tiling, kCount + std::size(kSplitKTilings)> all{};
  std::copy(std::begin(others), std::end(others), all.begin());
  std::copy(std::begin(kSplitKTilings), std::end(kSplitKTilings), all.begin() + kCount);
  return all;
}

/// All kernels of gate_up, each in two types; a new one is a line here. A ring has as many stages
/// as fit beside what else is in shared memory.
inline constexpr auto kGateUpTilings = and_split_k({
    {192, 2, Schedule::kPingpong, 8},
    {160, 2, Schedule::kPingpong, 8},
    {128, 2, Schedule::kPingpong, 8},
    {192, 1, Schedule::kPingpong, 16},
    {160, 1, Schedule::kPingpong, 16},
    {128, 1, Schedule::kPingpong, 16},
    {224, 1, Schedule::kCooperative, 16},
    {224, 1, Schedule::kStreamK, 16, 192},
    {192, 1, Schedule::kStreamK, 16, 192},
    {224, 1, Schedule::kStreamKSwapAB, 16, 144},
    {224, 1, Schedule::kStreamKSwapAB, 16, 160},
    {256, 2, Schedule::kStreamKSwapAB, 16, 144},
    {256, 2, Schedule::kStreamKSwapAB, 16, 160},
});
inline constexpr auto kDownTilings = and_split_k({
    {256, 2, Schedule::kCooperative, 8},
    {192, 2, Schedule::kPingpong, 8},
    {128, 2, Schedule::kPingpong, 8},
    {192, 1, Schedule::kPingpong, 16},
    {128, 1, Schedule::kPingpong, 16},
});
/// Its long epilogue has to run beside the other consumer's product: no cooperative tiles. Each
/// twice in each type, for plain silu and for every other gate.
inline constexpr Tiling kGateUpGradTilings[] = {
    {192, 2, Schedule::kPingpong, 8},
    {128, 2, Schedule::kPingpong, 8},
    {128, 1, Schedule::kPingpong, 16},
};
/// Of dx.
inline constexpr Tiling kInputGradTilings[] = {
    {256, 2, Schedule::kCooperative, 8},
    {192, 2, Schedule::kPingpong, 8},
    {128, 2, Schedule::kPingpong, 8},
};
/// No 128 x 256: of five shapes it took 2 to 9 % more at four, 5 % less at one.
inline constexpr Tiling kWeightGradTilings[] = {
    {192, 2, Schedule::kPingpong, 8},
    {128, 2, Schedule::kPingpong, 8},
};

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}

/// The tilings that exist for a kind.
[[nodiscard]] constexpr std::span<const Tiling> tilings(GemmKind kind) noexcept {
  switch (kind) {
    case GemmKind::kGateUp:
      return kGateUpTilings;
    case GemmKind::kDown:
      return kDownTilings;
    case GemmKind::kGateUpGrad:
      return kGateUpGradTilings;
    case GemmKind::kInputGrad:
      return kInputGradTilings;
    case GemmKind::kWeightGrad:
      break;
  }
  return kWeightGradTilings;
}

/// How rows lie on L2's lines of 128 bytes and sectors of 32. A stage has 128 bytes of a row: parts
/// of two lines where the row begins inside one, of five sectors where it begins inside one.
enum class Pitch : std::uint8_t { kWholeLines, kWholeSectors, kSplitSectors };

[[nodiscard]] constexpr Pitch pitch_of(std::int64_t row_stride_bytes) noexcept {
  if (row_stride_bytes % 128 == 0) return Pitch::kWholeLines;
  return row_stride_bytes % 32 == 0 ? Pitch::kWholeSectors : Pitch::kSplitSectors;
}

/// Whether rows of an input or output may go by way of whole lines in scratch, or must, for no
/// tensor map walks them.
enum class CopyRows : std::uint8_t { kNever, kMay, kMust };

/// What the choice depends on. `n` counts weight rows: 2 H for gate_up, D for down, H for
/// gate_up_grad, the columns of the output for the others.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  GemmKind kind = GemmKind::kDown;
  int sm_count = 132;
  bool partials = true;  ///< partial sums have a place in the workspace: stream-K may serve
  /// Groups of 8 rows in a block, where gate and up alternate in blocks of more; 0 elsewhere.
  std::int64_t block_groups = 0;
  bool turns = false;                  ///< those blocks take turns in one run of rows
  bool narrow_l2 = false;              ///< has_narrow_l2() of the device
  bool long_epilogue = false;          ///< gelu_erf's, or with a residual
  Pitch x_pitch = Pitch::kWholeLines;  ///< of the A operand
  Pitch w_pitch = Pitch::kWholeLines;  ///< of the weights
  CopyRows copy_x = CopyRows::kNever;
};

/// Tiles of a shape: those of a cluster count as one.
[[nodiscard]] constexpr std::int64_t tiles_of(const GemmShape& shape, const Tiling& t) noexcept {
  return ceil_div(ceil_div(shape.m, t.rows), t.weight_parts()) *
         ceil_div(ceil_div(shape.n, t.tile_n), t.input_parts());
}

/// Of so many rows of x those that each of the CTAs brings that share them: whole swizzle atoms.
[[nodiscard]] constexpr int input_part(int rows, int parts) noexcept {
  return parts == 1 ? rows : (rows + 8 * parts - 1) / (8 * parts) * 8;
}

/// Whether a kernel multiplies the first 64 rows alone of row tiles that have no more.
[[nodiscard]] constexpr bool leaves_out_halves(GemmKind kind, const Tiling& t) noexcept {
  return t.schedule == Schedule::kPingpong &&
         (kind == GemmKind::kGateUp || kind == GemmKind::kDown);
}

/// Whether such a kernel has no more in the last row tile, or in the last pair of them.
[[nodiscard]] constexpr bool ends_in_half(const GemmShape& shape, const Tiling& t) noexcept {
  const std::int64_t rest = shape.m % (std::int64_t{t.rows} * t.cluster);
  return leaves_out_halves(shape.kind, t) && rest > 0 && rest <= kOutRows;
}

/// Clusters that run at once.
[[nodiscard]] constexpr int clusters(const GemmShape& shape, const Tiling& t) noexcept {
  return std::max(1, shape.sm_count / t.cluster);
}

/// Sums of a stream-K tile, those behind its weight rows included; swapped, each of two consumers
/// has two WGMMAs of 64 weight rows.
[[nodiscard]] constexpr std::int64_t tile_sums(const Tiling& t) noexcept {
  return t.swaps_ab() ? std::int64_t{256} * t.rows : std::int64_t{t.rows} * t.tile_n;
}

/// Whether L2 is an H100's of 50 MB: a sixth fewer slices, and bytes a second, than in the 60 MB of
/// an H200, which the model's figures are from. A device that does not say is taken for an H200.
[[nodiscard]] constexpr bool has_narrow_l2(std::int64_t l2_bytes) noexcept {
  return l2_bytes > 0 && l2_bytes < 56 << 20;
}

/// Microseconds of a shape under a tiling, by a model: what the tensor cores, L2 and the memory
/// take, and the fix-up of cut tiles. Of gate_up within 10 % at two shapes of three; of the other
/// kinds good for an order alone. docs/kernels/gate_up.md.
[[nodiscard]] double cost(const GemmShape& shape, const Tiling& tiling) noexcept;

/// Whether a launch copies x's rows to a pitch of whole lines first, which cost() then counts: it
/// must, or the copy takes less than a GEMM loses to rows that split lines (not under stream-K).
[[nodiscard]] bool copies_x(const GemmShape& shape, const Tiling& tiling) noexcept;

/// Bytes from one row of such a copy to the next.
[[nodiscard]] constexpr std::int64_t whole_line_stride(std::int64_t row_bytes) noexcept {
  return ceil_div(row_bytes, 128) * 128;
}

/// What two take of which neither hides the other whole: the longer, and more where they are close.
[[nodiscard]] double longer_us(double a, double b, double power) noexcept;

/// The columns of an output: tiles of tile_n, then the rest in tiles of kColumnBox.
struct ColumnCut {
  int whole;  ///< tile columns
  int tail;   ///< tile columns; 0 where tiles of the last wave are as wide as the others

  friend bool operator==(const ColumnCut&, const ColumnCut&) = default;
};

/// The cut of least cost: tail tiles where they fill the last wave with less than whole ones.
/// Only kGateUpGrad and kWeightGrad have them.
[[nodiscard]] ColumnCut column_cut(const GemmShape& shape, const Tiling& tiling) noexcept;

/// The order of tiles where they end in half ones; by order alone where that brings nothing, or row
/// tiles are too many for it to matter.
[[nodiscard]] HalfTiles half_tiles(const GemmShape& shape, const Tiling& tiling) noexcept;

/// Whether the CTAs of whole tiles in waves are to keep in step (lockstep.cuh): rows are many, CTAs
/// come to more than one tile, and what a wave reads is more than L2 holds.
[[nodiscard]] bool keeps_lockstep(const GemmShape& shape, const Tiling& tiling) noexcept;

/// CTAs in step meet at the end of a turn that all have and, in long ones, every so many blocks of
/// k (60 to 100 us) before it: SMs differ by some percent, which in a turn of 300 us is more than
/// they wait for each other. No more often, since a meeting costs what they differ by since the
/// last.
inline constexpr int kLockstepBlocks = 192;

/// The block of k, of a turn's k_blocks, at which CTAs meet that have met at block k; k_blocks is
/// the turn's end.
[[nodiscard]] constexpr int next_meeting(int k, int k_blocks) noexcept {
  return k_blocks - k < 2 * kLockstepBlocks ? k_blocks : k + kLockstepBlocks;
}

/// Stream-K is offered up to so many, where whole tiles come into their own.
/// docs/kernels/gate_up.md.
inline constexpr int kStreamKMaxTokens = 384;

/// Who multiplies what of a shape under a stream-K tiling: at most one worker a cluster that fits
/// the device.
[[nodiscard]] StreamK stream_k_schedule(const GemmShape& shape, const Tiling& tiling) noexcept;

/// Groups of 8 gate rows that may follow each other in a tile before the same rows of up: the
/// epilogue of few tokens goes by 32 weight rows, the others' by tiles; swapped, a warp has one
/// group of each.
[[nodiscard]] constexpr int longest_run(const Tiling& tiling) noexcept {
  if (tiling.swaps_ab()) return 1;
  return tiling.stores_rows() || tiling.tile_n % 64 != 0 ? 2 : 4;
}

/// Swapped, the tokens of a turn of the epilogue.
inline constexpr int kPassTokens = 16;

/// Bytes of the workspace where CTAs leave the sums of cut tiles: two tiles each, in fp32; 0 where
/// no tile is cut.
[[nodiscard]] std::int64_t stream_k_partial_bytes(const GemmShape& shape,
                                                  const Tiling& tiling) noexcept;

/// The tilings that may serve a shape, cheapest first. Writes at most out.size(), returns how many
/// there are.
std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept;

/// Of gate_up and down: the table's first tiling with the loop orders that the table lacks, row by
/// row and column by column. Returns how many differ from what it has.
std::size_t loop_orders(const GemmShape& shape, std::span<Tiling, 2> out) noexcept;

/// The first of what ranked() gives.
[[nodiscard]] Tiling best_tiling(const GemmShape& shape) noexcept;

/// The best tiling of mlp_grad's dx, which no config names.
[[nodiscard]] Tiling best_input_grad(std::int64_t m, std::int64_t d, std::int64_t h,
                                     int sm_count) noexcept;

/// A box of the tensor maps of what the epilogue writes, and of what gate_up_grad's reads: as wide
/// as a swizzle allows.
[[nodiscard]] constexpr Box out_box(const Tiling& t, GemmKind kind) noexcept {
  if (t.swaps_ab()) return {16, kPassTokens};
  const int cols = kind == GemmKind::kGateUp ? t.tile_n / 2 : t.tile_n;
  return {cols % 64 == 0 ? 64 : cols % 32 == 0 ? 32 : 16, kOutRows};
}

/// "pp128x192c2g8": schedule (pp: pingpong, co: cooperative, sk: stream-K, sw: stream-K with
/// swap-AB), rows x weight rows, cluster, raster group; "sp128x64k8": split K, in so many
/// parts.
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm90::gemm
