// SPDX-License-Identifier: Apache-2.0
// What ranks agree on: where a tile's sums and signals lie in a peer buffer, and what a signal
// says. The kernel, the plan and the model check of tests/host_cuda read it here.
//
// Sums are pushed, and each rank reads its own memory alone. Runs are numbered (epochs); the inbox
// has two halves, for even and odd ones. Nobody pushes what a slower peer still reads: to end run e
// a rank waits for every rank's sums of e, which that one pushed after its run e - 1 had ended, so
// that run e + 1, whose half is that of e - 1, finds it free. Signals are never set back: a signal
// of a later run says of an earlier one that its tile is there too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/plan.hpp"

namespace sluice::cuda::all_reduce {

/// Signals that a rank has of each other, a phase: a tile is as many rows as M needs for that.
inline constexpr int kMaxTiles = 256;

/// Which sums a tile's signal speaks of.
enum Phase : int { kPart = 0, kSum = 1 };
inline constexpr int kPhases = 2;

/// The beginning of each rank's peer buffer.
struct PeerHeader {
  std::uint64_t epoch;    ///< of the last run that ended; written by its owner alone, as are:
  std::uint32_t tickets;  ///< CTAs of this run that have ended
  std::uint32_t failed;   ///< 0, or 1 + the rank that was waited for too long + 256 * the tile
  std::uint32_t dead;     ///< failed, in an earlier run
  std::uint32_t unused[1019];
  std::uint64_t signals[kPhases][kMaxRanks][kMaxTiles];  ///< [phase][sender][tile]: an epoch
  std::uint32_t room[7168];
};
static_assert(sizeof(PeerHeader) == kPeerHeaderBytes);
static_assert(offsetof(PeerHeader, failed) == 12 && offsetof(PeerHeader, signals) == 4096);

/// Whether a signal says that the tile of this epoch is there.
constexpr bool has_arrived(std::uint64_t signal, std::uint64_t epoch) { return signal >= epoch; }

/// The half of the inbox that an epoch uses.
constexpr int half_of(std::uint64_t epoch) { return static_cast<int>(epoch % 2); }

/// One-shot: every rank sends every row to every rank, and all add. Two-shot: a tile's owner adds
/// and sends the sum, so that less travels, twice.
enum class Form : std::int32_t { kOneShot = 0, kTwoShot = 1 };

/// How M rows are cut, and what a half of the inbox holds.
class Geometry {
 public:
  constexpr Geometry() = default;
  constexpr Geometry(Form form, int world, std::int64_t rows, std::int64_t row_bytes)
      : form_(form),
        world_(world),
        rows_(rows),
        row_bytes_(row_bytes),
        tile_rows_((rows + kMaxTiles - 1) / kMaxTiles),
        tiles_(static_cast<int>((rows + tile_rows_ - 1) / tile_rows_)),
        part_rows_(form == Form::kOneShot ? rows : (tiles_ + world - 1) / world * tile_rows_) {}

  [[nodiscard]] constexpr Form form() const { return form_; }
  [[nodiscard]] constexpr int world() const { return world_; }
  [[nodiscard]] constexpr std::int64_t rows() const { return rows_; }
  [[nodiscard]] constexpr std::int64_t row_bytes() const { return row_bytes_; }
  [[nodiscard]] constexpr std::int64_t tile_rows() const { return tile_rows_; }
  [[nodiscard]] constexpr int tiles() const { return tiles_; }
  /// Two-shot: who adds the tile.
  [[nodiscard]] constexpr int owner(int tile) const { return tile % world_; }
  /// Where a sender's part of a row of a tile lies in the inbox of who adds it.
  [[nodiscard]] constexpr std::int64_t part_offset(int sender, int tile, std::int64_t row) const {
    const std::int64_t at =
        form_ == Form::kOneShot ? row : row + (tile / world_ - tile) * tile_rows_;
    return (sender * part_rows_ + at) * row_bytes_;
  }
  /// Two-shot: where the sum of a row lies, behind all parts.
  [[nodiscard]] constexpr std::int64_t sum_offset(std::int64_t row) const {
    return (world_ * part_rows_ + row) * row_bytes_;
  }
  [[nodiscard]] constexpr std::int64_t half_bytes() const {
    const std::int64_t used = sum_offset(form_ == Form::kOneShot ? 0 : rows_);
    constexpr auto kUnit = static_cast<std::int64_t>(kPeerAlignment);
    return (used + kUnit - 1) / kUnit * kUnit;
  }

 private:
  Form form_ = Form::kOneShot;
  int world_ = 2;
  std::int64_t rows_ = 1;
  std::int64_t row_bytes_ = 16;
  std::int64_t tile_rows_ = 1;
  int tiles_ = 1;
  std::int64_t part_rows_ = 1;  // that a sender has room for
};

/// Of buffers with this many bytes: where a half begins. It depends on no plan, so that runs of
/// different shapes follow each other.
constexpr std::size_t half_offset(std::size_t buffer_bytes, int half) {
  return kPeerHeaderBytes + (buffer_bytes - kPeerHeaderBytes) / 2 * static_cast<std::size_t>(half);
}

}  // namespace sluice::cuda::all_reduce
