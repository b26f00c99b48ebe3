// SPDX-License-Identifier: Apache-2.0
// Tensor maps on the hardware: every layout is loaded tile by tile by the copy engine and each
// element of shared memory compared with the element that the layout puts there.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/host/launch.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/ptx/tensor_copy.cuh"
#include "gpu.hpp"
#include "pair_coords.hpp"

namespace sluice {
namespace {

using cuda::PairView;
using cuda::TensorCoords;
using cuda::TensorSwizzle;
using harness::RigBuffer;

constexpr std::int32_t kBoxGroups = 4;
constexpr std::int32_t kBoxRowBytes = 128;  // one span of the widest swizzle
constexpr int kThreads = 128;

struct LoadParams {
  CUtensorMap map;
  TensorCoords coords;
  int rank;
  std::uint32_t bytes;
  unsigned char* out;  // shared memory as it is
};

__global__ void load_box(const __grid_constant__ LoadParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  namespace ptx = cuda::ptx;
  extern __shared__ __align__(1024) unsigned char box[];
  __shared__ std::uint64_t arrived;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(arrived, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(arrived, p.bytes);
    if (p.rank == 2) ptx::tensor_copy<2>(box, p.map, p.coords.at, arrived);
    if (p.rank == 4) ptx::tensor_copy<4>(box, p.map, p.coords.at, arrived);
    if (p.rank == 5) ptx::tensor_copy<5>(box, p.map, p.coords.at, arrived);
  }
  __syncthreads();
  ptx::mbarrier_wait(arrived, 0);
  for (std::uint32_t i = threadIdx.x; i < p.bytes; i += kThreads) p.out[i] = box[i];
#endif
}

class GpuTensorMap : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().compute_capability != 90)
      GTEST_SKIP() << "needs compute capability 9.0";
    out_ = std::move(RigBuffer::make(gpu::rig(), kMaxBox).value());
  }

  // The box at `coords` as it lies in shared memory.
  std::vector<unsigned char> load(const CUtensorMap& map, int rank, const TensorCoords& coords,
                                  std::uint32_t bytes) {
    LoadParams params{map, coords, rank, bytes, reinterpret_cast<unsigned char*>(out_.data())};
    cuda::LaunchShape shape;
    shape.block.x = kThreads;
    shape.smem_bytes = bytes;
    EXPECT_OK(gpu::rig().fill_bytes(out_.data(), 0xEE, kMaxBox));
    EXPECT_OK(cuda::launch<&load_box>(0, shape, gpu::rig().stream(), params));
    std::vector<unsigned char> host(bytes);
    EXPECT_OK(gpu::rig().download(host.data(), out_.data(), bytes));
    return host;
  }

  static constexpr std::size_t kMaxBox = 64 * 1024;
  RigBuffer out_;
};

// Where element (row, byte) of a box with 128-byte rows lies, by swizzle.
std::size_t box_offset(std::size_t row, std::size_t byte, TensorSwizzle swizzle) {
  const std::size_t at = row * kBoxRowBytes + byte;
  return swizzle == TensorSwizzle::kSwizzle128 ? at ^ ((row % 8) << 4) : at;
}

// A distinct pattern for each element, cut to its size.
std::uint32_t pattern(int half, std::int64_t row, std::int64_t col) {
  const auto mixed = static_cast<std::uint64_t>(half + 1) * 0x9E3779B97F4A7C15ULL +
                     static_cast<std::uint64_t>(row) * 0xD1B54A32D192ED03ULL +
                     static_cast<std::uint64_t>(col) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::uint32_t>(mixed >> 29);
}

struct PairLayout {
  const char* name;
  Layout layout;         // of each half
  std::int64_t gate_at;  // bytes from the buffer's start
  std::int64_t up_at;
};

std::vector<PairLayout> layouts(std::int64_t rows, std::int64_t row, DType dtype) {
  const std::int64_t half = rows * row;
  const std::int64_t cols = row / size_bytes(dtype);
  const Layout plain{.row_stride_bytes = row};
  std::vector<PairLayout> out = {
      {"[gate; up]", plain, 0, half},
      {"[up; gate]", plain, half, 0},
      {"separate, odd distance", plain, 0, half + std::int64_t{16} * 12345},
      {"separate, up lower", plain, half + std::int64_t{16} * 777, 0},
      {"padded rows", Layout{.row_stride_bytes = row + 48}, 0, rows * (row + 48)},
      {"two columns of blocks", Layout{.row_stride_bytes = 2 * row}, 0, row},
  };
  for (const std::int64_t b : {1, 2, 4, 8, 16, 24, 32, 48}) {
    const Layout layout = interleaved_rows(b, cols, dtype);
    out.push_back({"interleaved", layout, 0, b * row});
    out.push_back({"interleaved, up first", layout, b * row, 0});
  }
  return out;
}

TEST_F(GpuTensorMap, EveryPairLayoutLoadsEveryElement) {
  constexpr std::int64_t kRows = 192;
  int views = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const std::int64_t elem = size_bytes(dtype);
    const auto box_k = static_cast<std::int32_t>(kBoxRowBytes / elem);
    for (const std::int64_t cols : {std::int64_t{4} * box_k, std::int64_t{2} * box_k + 8}) {
      for (const PairLayout& l : layouts(kRows, cols * elem, dtype)) {
        SCOPED_TRACE(std::string(l.name) + ", blocks of " + std::to_string(l.layout.block_rows) +
                     ", " + to_string(dtype) + ", " + std::to_string(cols) + " columns");
        OperandSpec spec;
        spec.name = "w_gate";
        spec.dtype = dtype;
        spec.rows = kRows;
        spec.cols = cols;
        spec.layout = l.layout;
        const std::int64_t extent = extent_bytes(spec);
        const auto bytes = static_cast<std::size_t>(std::max(l.gate_at, l.up_at) + extent);
        std::vector<unsigned char> host(bytes, 0xCC);
        for (int half = 0; half < 2; ++half) {
          for (std::int64_t r = 0; r < kRows; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
              const std::uint32_t value = pattern(half, r, c);
              std::memcpy(host.data() + (half == 0 ? l.gate_at : l.up_at) +
                              offset_bytes(spec.layout, dtype, r, c),
                          &value, static_cast<std::size_t>(elem));
            }
          }
        }
        auto memory = std::move(RigBuffer::make(gpu::rig(), bytes).value());
        ASSERT_OK(gpu::rig().upload(memory.data(), host.data(), bytes));
        const char* gate = memory.data() + l.gate_at;
        const char* up = memory.data() + l.up_at;
        const auto pair = cuda::make_pair_view(spec, gate, up, box_k, kBoxGroups);
        ASSERT_OK(pair);
        EXPECT_EQ(pair->up_first, l.up_at < l.gate_at);
        for (const TensorSwizzle swizzle : {TensorSwizzle::kNone, TensorSwizzle::kSwizzle128}) {
          const auto map = cuda::encode(pair->view, pair->up_first ? up : gate, swizzle);
          ASSERT_OK(map);
          ++views;
          const int groups = pair->groups_a_copy;
          const auto box_bytes = static_cast<std::uint32_t>(groups * 16 * kBoxRowBytes);
          std::int64_t wrong = 0;
          for (std::int64_t group = 0; group < kRows / 8; group += groups) {
            for (std::int64_t k = 0; k < cols; k += box_k) {
              const auto box = load(*map, pair->view.rank, pair_coords(*pair, k, group), box_bytes);
              for (int g = 0; g < groups; ++g) {
                for (int half = 0; half < 2; ++half) {
                  for (int i = 0; i < 8; ++i) {
                    const std::int64_t r = (group + g) * 8 + i;
                    for (int c = 0; c < box_k; ++c) {
                      const int which = pair->up_first ? 1 - half : half;
                      const std::uint32_t want =
                          r < kRows && k + c < cols ? pattern(which, r, k + c) : 0;
                      const std::size_t at =
                          box_offset(static_cast<std::size_t>((g * 2 + half) * 8 + i),
                                     static_cast<std::size_t>(c * elem), swizzle);
                      wrong +=
                          std::memcmp(box.data() + at, &want, static_cast<std::size_t>(elem)) != 0;
                    }
                  }
                }
              }
            }
          }
          EXPECT_EQ(wrong, 0);
        }
      }
    }
  }
  EXPECT_EQ(views, 3 * 2 * 22 * 2);
}

TEST_F(GpuTensorMap, PlainMatricesLoadWithTailsAsZeros) {
  constexpr std::int32_t kBoxRows = 32;
  for (const auto& [rows, cols, stride] :
       {std::tuple{std::int64_t{70}, std::int64_t{200}, std::int64_t{400}},
        std::tuple{std::int64_t{1}, std::int64_t{100}, std::int64_t{200}},
        std::tuple{std::int64_t{33}, std::int64_t{61}, std::int64_t{160}}}) {
    OperandSpec spec;
    spec.name = "x";
    spec.dtype = DType::kBF16;
    spec.rows = rows;
    spec.cols = cols;
    spec.layout.row_stride_bytes = stride;
    std::vector<unsigned char> host(static_cast<std::size_t>(rows * stride), 0xCC);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::uint32_t value = pattern(0, r, c);
        std::memcpy(host.data() + offset_bytes(spec.layout, spec.dtype, r, c), &value, 2);
      }
    }
    auto memory = std::move(RigBuffer::make(gpu::rig(), host.size()).value());
    ASSERT_OK(gpu::rig().upload(memory.data(), host.data(), host.size()));
    const auto view = cuda::make_matrix_view(spec, memory.data(), 64, kBoxRows);
    ASSERT_OK(view);
    const auto map = cuda::encode(*view, memory.data(), TensorSwizzle::kSwizzle128);
    ASSERT_OK(map);
    std::int64_t wrong = 0;
    for (std::int64_t r0 = 0; r0 < rows; r0 += kBoxRows) {
      for (std::int64_t k = 0; k < cols; k += 64) {
        const TensorCoords coords{
            {static_cast<std::int32_t>(k), static_cast<std::int32_t>(r0), 0, 0, 0}};
        const auto box = load(*map, 2, coords, kBoxRows * kBoxRowBytes);
        for (int i = 0; i < kBoxRows; ++i) {
          for (int c = 0; c < 64; ++c) {
            const std::uint32_t want =
                r0 + i < rows && k + c < cols ? pattern(0, r0 + i, k + c) : 0;
            const std::size_t at =
                box_offset(static_cast<std::size_t>(i), static_cast<std::size_t>(c * 2),
                           TensorSwizzle::kSwizzle128);
            wrong += std::memcmp(box.data() + at, &want, 2) != 0;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << rows << " x " << cols;
  }
}

}  // namespace
}  // namespace sluice
