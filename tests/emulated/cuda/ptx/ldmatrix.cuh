// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "emulator.hpp"

namespace sluice::cuda::ptx {

inline void load_matrices(std::uint32_t (&m)[4], std::uint32_t row_address, bool transposed) {
  emulator::together(&row_address, sizeof(row_address), m, sizeof(m),
                     [transposed](const char* in, char* out) {
                       for (int matrix = 0; matrix < 4; ++matrix) {
                         std::uint16_t rows[8][8];
                         std::uint32_t addresses[8];
                         std::memcpy(addresses, in + matrix * 32, sizeof(addresses));
                         emulator::count_conflicts(addresses);
                         for (int row = 0; row < 8; ++row) {
                           std::memcpy(rows[row], emulator::shared_at(addresses[row], 16), 16);
                         }
                         for (int lane = 0; lane < 32; ++lane) {
                           for (int i = 0; i < 2; ++i) {
                             const int along = lane % 4 * 2 + i;
                             const std::uint16_t value =
                                 transposed ? rows[along][lane / 4] : rows[lane / 4][along];
                             std::memcpy(out + lane * 16 + matrix * 4 + i * 2, &value, 2);
                           }
                         }
                       }
                     });
}

inline void ldmatrix_x4(std::uint32_t (&m)[4], std::uint32_t row_address) {
  load_matrices(m, row_address, false);
}

inline void ldmatrix_x4_transposed(std::uint32_t (&m)[4], std::uint32_t row_address) {
  load_matrices(m, row_address, true);
}

}  // namespace sluice::cuda::ptx
