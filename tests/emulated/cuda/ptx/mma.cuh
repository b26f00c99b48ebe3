// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "emulator.hpp"

namespace sluice::cuda::ptx {

// The fragments are those of src/cuda/ptx/mma.cuh.
template <class Element>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Lane {
    float d[4];
    Element a[4][2];
    Element b[2][2];
  };
  Lane own;
  std::memcpy(own.d, d, sizeof(own.d));
  std::memcpy(static_cast<void*>(own.a), a, sizeof(own.a));
  std::memcpy(static_cast<void*>(own.b[0]), &b0, 4);
  std::memcpy(static_cast<void*>(own.b[1]), &b1, 4);
  emulator::together(&own, sizeof(own), d, sizeof(own.d), [](const char* in, char* out) {
    float left[16][16];
    float right[16][8];
    Lane lanes[32];
    std::memcpy(static_cast<void*>(lanes), in, sizeof(lanes));
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4;
      const int q = lane % 4 * 2;
      for (int i = 0; i < 2; ++i) {
        for (int part = 0; part < 4; ++part) {
          left[g + part % 2 * 8][q + part / 2 * 8 + i] = static_cast<float>(lanes[lane].a[part][i]);
        }
        for (int part = 0; part < 2; ++part) {
          right[q + part * 8 + i][g] = static_cast<float>(lanes[lane].b[part][i]);
        }
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8;
        const int col = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][col];
        const float value = lanes[lane].d[i] + sum;
        std::memcpy(out + lane * 16 + i * 4, &value, 4);
      }
    }
  });
}

}  // namespace sluice::cuda::ptx
