// SPDX-License-Identifier: Apache-2.0
#include "sluice/pack.hpp"

#include <cstddef>
#include <cstring>

namespace sluice {
namespace {

using ll = long long;
constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;  // as of every operand: validate.cpp

// One of the three matrices.
struct Rows {
  const char* name;
  const std::byte* begin;
  std::int64_t stride_bytes;
  std::int64_t extent_bytes;
};

struct Matrices {
  Rows gate;
  Rows up;
  Rows packed;
};

Status check_counts(const Packing& p) {
  if (p.h < 1) return make_error(kBad, "h: got %lld, wanted at least 1", ll{p.h});
  if (p.d < 1) return make_error(kBad, "d: got %lld, wanted at least 1", ll{p.d});
  const std::int64_t e = p.element_bytes;
  if (e != 1 && e != 2 && e != 4 && e != 8) {
    return make_error(kBad, "element_bytes: got %lld, wanted 1, 2, 4 or 8", ll{e});
  }
  if (p.block_rows < 1 || p.h % p.block_rows != 0) {
    return make_error(kBad, "block_rows: got %lld, wanted a divisor of H = %lld", ll{p.block_rows},
                      ll{p.h});
  }
  if (p.order != PackOrder::kGateUp && p.order != PackOrder::kUpGate) {
    return make_error(kBad, "order: got %d, wanted 0 (gate, up) or 1 (up, gate)",
                      static_cast<int>(p.order));
  }
  return {};
}

// Checks the memory of one or two matrices by itself and says where it lies.
Expected<Rows> place(const Packing& p, const char* name, const void* pointer, std::int64_t matrices,
                     std::int64_t stride_bytes) {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t extent = 0;
  const auto too_large = [&] {
    return make_error(kBad,
                      "%s: got %lld x %lld elements of %lld bytes, wanted less than 2^60 bytes",
                      name, ll{p.h}, ll{p.d}, ll{p.element_bytes});
  };
  if (__builtin_mul_overflow(p.d, p.element_bytes, &row)) return too_large();
  const std::int64_t stride = stride_bytes == kContiguous ? row : stride_bytes;
  if (stride < row || stride % p.element_bytes != 0) {
    return make_error(kBad,
                      "%s_stride_bytes: got %lld, wanted a multiple of element_bytes = %lld and at "
                      "least a row of %lld, or %lld for rows without a gap",
                      name, ll{stride_bytes}, ll{p.element_bytes}, ll{row}, ll{kContiguous});
  }
  if (__builtin_mul_overflow(p.h, matrices, &rows) ||
      __builtin_mul_overflow(rows - 1, stride, &extent) ||
      __builtin_add_overflow(extent, row, &extent) || extent >= kMaxBytes) {
    return too_large();
  }
  if (pointer == nullptr) {
    return make_error(kBad, "%s: got null, wanted a pointer to [%lld, %lld]", name, ll{rows},
                      ll{p.d});
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(p.element_bytes) !=
      0) {
    return make_error(kBad, "%s: got pointer %p, wanted a multiple of element_bytes = %lld", name,
                      pointer, ll{p.element_bytes});
  }
  return Rows{name, static_cast<const std::byte*>(pointer), stride, extent};
}

Expected<Matrices> place_all(const Packing& p, const void* gate, const void* up,
                             const void* packed) {
  SLUICE_TRY(check_counts(p));
  const auto g = place(p, "gate", gate, 1, p.gate_stride_bytes);
  if (!g) return g.error();
  const auto u = place(p, "up", up, 1, p.up_stride_bytes);
  if (!u) return u.error();
  const auto both = place(p, "packed", packed, 2, p.packed_stride_bytes);
  if (!both) return both.error();
  return Matrices{*g, *u, *both};
}

Status check_apart(const Rows& output, const Rows& other) {
  // By distances: an end may lie behind the last address.
  const auto here = reinterpret_cast<std::uintptr_t>(output.begin);
  const auto there = reinterpret_cast<std::uintptr_t>(other.begin);
  const bool after = here >= there;
  const std::uintptr_t distance = after ? here - there : there - here;
  const std::int64_t lower_extent = after ? other.extent_bytes : output.extent_bytes;
  if (distance >= static_cast<std::uintptr_t>(lower_extent)) return {};
  return make_error(kBad, "%s: the output overlaps %s (%s%lld bytes apart)", output.name,
                    other.name, after ? "" : "-", static_cast<ll>(distance));
}

// One block of rows.
void copy_rows(const Packing& p, const Rows& from, std::int64_t from_row, const Rows& to,
               std::int64_t to_row) {
  const std::int64_t row = p.d * p.element_bytes;
  const std::byte* const source = from.begin + from_row * from.stride_bytes;
  // `to` was given as void*.
  std::byte* const target = const_cast<std::byte*>(to.begin) + to_row * to.stride_bytes;
  if (from.stride_bytes == row && to.stride_bytes == row) {
    std::memcpy(target, source, static_cast<std::size_t>(p.block_rows * row));
    return;
  }
  for (std::int64_t i = 0; i < p.block_rows; ++i) {
    std::memcpy(target + i * to.stride_bytes, source + i * from.stride_bytes,
                static_cast<std::size_t>(row));
  }
}

// Calls move(matrix, its row, packed row) for each block of gate and of up.
template <class Move>
void for_each_block(const Packing& p, const Matrices& m, const Move& move) {
  const bool gate_first = p.order == PackOrder::kGateUp;
  const Rows& first = gate_first ? m.gate : m.up;
  const Rows& second = gate_first ? m.up : m.gate;
  for (std::int64_t row = 0; row < p.h; row += p.block_rows) {
    move(first, row, 2 * row);
    move(second, row, 2 * row + p.block_rows);
  }
}

}  // namespace

Status pack_gate_up(const Packing& packing, const void* gate, const void* up,
                    void* packed) noexcept {
  const auto m = place_all(packing, gate, up, packed);
  if (!m) return m.error();
  SLUICE_TRY(check_apart(m->packed, m->gate));
  SLUICE_TRY(check_apart(m->packed, m->up));
  for_each_block(packing, *m, [&](const Rows& rows, std::int64_t row, std::int64_t packed_row) {
    copy_rows(packing, rows, row, m->packed, packed_row);
  });
  return {};
}

Status unpack_gate_up(const Packing& packing, const void* packed, void* gate, void* up) noexcept {
  const auto m = place_all(packing, gate, up, packed);
  if (!m) return m.error();
  SLUICE_TRY(check_apart(m->gate, m->packed));
  SLUICE_TRY(check_apart(m->up, m->packed));
  SLUICE_TRY(check_apart(m->gate, m->up));
  for_each_block(packing, *m, [&](const Rows& rows, std::int64_t row, std::int64_t packed_row) {
    copy_rows(packing, m->packed, packed_row, rows, row);
  });
  return {};
}

}  // namespace sluice
