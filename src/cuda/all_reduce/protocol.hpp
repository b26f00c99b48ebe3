// SPDX-License-Identifier: Apache-2.0
// What ranks agree on: where a tile's sums and signals lie in a peer buffer, and what a signal
// says. The kernel, the plan and the model check of tests/host_cuda read it here.
//
// Sums are pushed, and each rank reads its own memory alone. Runs are numbered (epochs); the inbox
// has two halves, for even and odd ones. Nobody pushes what a slower peer still reads: to end run e
// a rank waits for every rank's sums of e, which that one pushed after its run e - 1 had ended, so
// that run e + 1, whose half is that of e - 1, finds it free. Signals are never set back: a signal
// of a later run says of an earlier one that its tile is there too.
//
// one_shot_ll has no signals: each 8 bytes that it stores, which arrive as one, are 4 of data and a
// flag. Its runs have numbers and halves of their own, so that the argument holds among them alone,
// and its slots hold nothing else, so that no data pass for a flag. They lie in the header, which
// is zeroed, so that nothing that the memory held before does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/plan.hpp"

namespace sluice::cuda::all_reduce {

/// Signals that a rank has of each other, a phase: a tile is as many rows as M needs for that. At
/// most an H200's SMs, a CTA each: a second tile of a CTA would wait for the fence behind its
/// first.
inline constexpr int kMaxTiles = 128;

/// Which sums a tile's signal speaks of.
enum Phase : int { kPart = 0, kSum = 1 };
inline constexpr int kPhases = 2;

/// What one store carries: 4 bytes of data and their flag, twice. The memory model has each of the
/// two words arrive whole, and promises no more of the pair.
struct alignas(16) Packet {
  std::uint64_t words[2];
};
/// Of a half: 1 MiB of y from each of two ranks.
inline constexpr int kLlPackets = 262144;
/// How far the second of two packets lies behind the first: a warp stores whole lines of each.
inline constexpr int kLlApart = 32;

/// The beginning of each rank's peer buffer.
struct PeerHeader {
  std::uint64_t epoch;     ///< of the last run by signals; written by its owner alone, as are:
  std::uint32_t tickets;   ///< CTAs of this run that have ended, or read the header
  std::uint32_t failed;    ///< 0, or 1 + the rank that was waited for too long + 256 * the tile
  std::uint32_t dead;      ///< not 0 after a run that failed
  std::uint32_t ll_epoch;  ///< of the last run of one_shot_ll
  std::uint32_t unused[1018];
  std::uint64_t signals[kPhases][kMaxRanks][kMaxTiles];  ///< [phase][sender][tile]: an epoch
  std::uint32_t room[11264];
  Packet ll[2][kLlPackets];  ///< [half]: a sender's are together
};
static_assert(sizeof(PeerHeader) == kPeerHeaderBytes);
static_assert(offsetof(PeerHeader, failed) == 12 && offsetof(PeerHeader, signals) == 4096);

/// Whether a signal says that the tile of this epoch is there.
constexpr bool has_arrived(std::uint64_t signal, std::uint64_t epoch) { return signal >= epoch; }

/// The half of the inbox that an epoch uses.
constexpr int half_of(std::uint64_t epoch) { return static_cast<int>(epoch % 2); }

/// The flag of an epoch: never 0, and another for 2^31 epochs.
constexpr std::uint32_t ll_flag(std::uint32_t epoch) { return 2 * epoch + 1; }

/// Whether a run clears the half of the next one: else a slot that no run wrote for long could hold
/// the flag that is waited for.
constexpr bool clears_ll(std::uint32_t epoch) { return (epoch & 0x3FFFFFFE) == 0; }

/// One-shot: every rank sends every row to every rank, and all add. Two-shot: a rank adds its
/// segment of every row and sends the sum, so that less travels, twice. One-shot LL: the first with
/// flags in the data, so that twice as much travels, and no fence and signal follow it.
enum class Form : std::int32_t { kOneShot = 0, kTwoShot = 1, kOneShotLl = 2 };

/// How M rows are cut, and what a half of the inbox holds.
class Geometry {
 public:
  constexpr Geometry() = default;
  constexpr Geometry(Form form, int world, std::int64_t rows, std::int64_t row_bytes)
      : form_(form),
        world_(world),
        rows_(rows),
        row_bytes_(row_bytes),
        vectors_(static_cast<int>(row_bytes / 16)),
        ll_room_(kLlPackets / world),
        tile_rows_((rows + kMaxTiles - 1) / kMaxTiles),
        tiles_(static_cast<int>((rows + tile_rows_ - 1) / tile_rows_)),
        segment_(form == Form::kTwoShot ? (vectors_ + world - 1) / world : vectors_) {}

  [[nodiscard]] constexpr Form form() const { return form_; }
  [[nodiscard]] constexpr int world() const { return world_; }
  [[nodiscard]] constexpr std::int64_t rows() const { return rows_; }
  [[nodiscard]] constexpr std::int64_t row_bytes() const { return row_bytes_; }
  /// Of a row: 16 bytes each.
  [[nodiscard]] constexpr int vectors() const { return vectors_; }
  [[nodiscard]] constexpr std::int64_t tile_rows() const { return tile_rows_; }
  [[nodiscard]] constexpr int tiles() const { return tiles_; }
  /// Vectors of a row that a rank adds: all, or two-shot its segment, which may be shorter or none
  /// at the row's end.
  [[nodiscard]] constexpr int segment() const { return segment_; }
  [[nodiscard]] constexpr int segment_begin(int rank) const {
    return form_ == Form::kTwoShot ? min(rank * segment_, vectors_) : 0;
  }
  [[nodiscard]] constexpr int segment_end(int rank) const {
    return min(segment_begin(rank) + segment_, vectors_);
  }
  /// Where a sender's part of what this rank adds of a row lies in its inbox.
  [[nodiscard]] constexpr std::int64_t part_offset(int sender, std::int64_t row) const {
    return (sender * rows_ + row) * segment_ * 16;
  }
  /// Two-shot: where the sum of a row lies, behind all parts.
  [[nodiscard]] constexpr std::int64_t sum_offset(std::int64_t row) const {
    return part_offset(world_, 0) + row * row_bytes_;
  }
  /// One-shot LL: where the first of the two packets of 16 bytes of a row lies in a half.
  [[nodiscard]] constexpr int ll_packet(int sender, int row, int vector) const {
    const int n = row * vectors_ + vector;
    return sender * ll_room_ + n / kLlApart * kLlApart + n;
  }
  [[nodiscard]] constexpr bool fits_ll() const { return rows_ <= ll_room_ / 2 / vectors_; }
  [[nodiscard]] constexpr std::int64_t half_bytes() const {
    if (form_ == Form::kOneShotLl) return 0;
    const std::int64_t used = sum_offset(form_ == Form::kOneShot ? 0 : rows_);
    constexpr auto kUnit = static_cast<std::int64_t>(kPeerAlignment);
    return (used + kUnit - 1) / kUnit * kUnit;
  }

 private:
  static constexpr int min(int a, int b) { return a < b ? a : b; }

  Form form_ = Form::kOneShot;
  int world_ = 2;
  std::int64_t rows_ = 1;
  std::int64_t row_bytes_ = 16;
  int vectors_ = 1;
  int ll_room_ = kLlPackets / 2;  // packets that a sender has room for
  std::int64_t tile_rows_ = 1;
  int tiles_ = 1;
  int segment_ = 1;
};

/// Of buffers with this many bytes: where a half begins. It depends on no plan, so that runs of
/// different shapes follow each other.
constexpr std::size_t half_offset(std::size_t buffer_bytes, int half) {
  return kPeerHeaderBytes + (buffer_bytes - kPeerHeaderBytes) / 2 * static_cast<std::size_t>(half);
}

}  // namespace sluice::cuda::all_reduce
