// SPDX-License-Identifier: Apache-2.0
// A thread has one word of a row: 16, 4 or 2 bytes, as wide as the source's rows are aligned.
#include <algorithm>
#include <cstdint>

#include "cuda/cublaslt/padded_rows.hpp"
#include "cuda/host/launch.hpp"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElemBytes = 2;

// Here `cols` and `to_cols` count words.
template <class Word>
__global__ void __launch_bounds__(kThreads) pad_rows(const __grid_constant__ PadRowsParams p) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= p.to_cols) return;
  const Layout& l = p.layout;
  for (std::int64_t row = blockIdx.y; row < p.to_rows; row += gridDim.y) {
    Word word{};
    if (row < p.rows && col < p.cols) {
      const std::int64_t at = l.block_rows == 0 ? row * l.row_stride_bytes
                                                : row / l.block_rows * l.block_stride_bytes +
                                                      row % l.block_rows * l.row_stride_bytes;
      word = reinterpret_cast<const Word*>(static_cast<const char*>(p.from) + at)[col];
    }
    static_cast<Word*>(p.to)[row * p.to_cols + col] = word;
  }
}

template <class Word>
Status launch_words(const Device& device, PadRowsParams p, Stream stream) noexcept {
  constexpr std::int64_t kMostRows = 65535;
  constexpr std::int64_t kElems = sizeof(Word) / kElemBytes;
  p.cols /= kElems;
  p.to_cols /= kElems;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.to_cols + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min(p.to_rows, kMostRows)));
  shape.block = dim3(kThreads);
  return launch<&pad_rows<Word>>(device.ordinal, shape, stream, p);
}

}  // namespace

Status launch_pad_rows(const Device& device, const PadRowsParams& p, Stream stream) noexcept {
  const auto places = reinterpret_cast<std::uintptr_t>(p.from) |
                      static_cast<std::uintptr_t>(p.layout.row_stride_bytes) |
                      static_cast<std::uintptr_t>(p.layout.block_stride_bytes) |
                      static_cast<std::uintptr_t>(p.cols * kElemBytes);
  if (places % sizeof(uint4) == 0) return launch_words<uint4>(device, p, stream);
  if (places % sizeof(unsigned) == 0) return launch_words<unsigned>(device, p, stream);
  return launch_words<unsigned short>(device, p, stream);
}

}  // namespace sluice::cuda
