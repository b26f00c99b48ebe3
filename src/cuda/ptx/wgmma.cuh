// SPDX-License-Identifier: Apache-2.0
// wgmma: one warpgroup (128 threads) multiplies a 64 x 16 tile of A by a 16 x N tile of B, both in
// shared memory, into fp32 accumulators. PTX ISA 8.x, "Asynchronous warpgroup level matrix
// instructions".
//
// Accumulators of thread t: with w = t / 32 and l = t % 32, d[4 * j + 2 * i + c] is row
// 16 w + 8 i + l / 4, column 8 j + 2 (l % 4) + c. So columns 8 j and columns 8 (j + 1) lie in the
// same thread at the same place: a gate and its up where weight rows alternate by eight.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace sluice::cuda::ptx {

/// Shared-memory matrix descriptor of a K-major tile whose rows are 64 elements (128 bytes) under
/// the 128-byte swizzle: 8-row groups of 1024 bytes, the next one `kGroupBytes` on. Steps of 16
/// elements along K add 32 bytes to the address. PTX ISA, "Matrix descriptor".
template <int kGroupBytes = 1024>
__device__ __forceinline__ std::uint64_t descriptor_sw128(std::uint32_t address) {
  static_assert(kGroupBytes % 1024 == 0);
  constexpr std::uint64_t kLeading = 1;  // not read under a swizzle
  constexpr std::uint64_t kStride = kGroupBytes >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | (kLeading << 16) | (kStride << 32) |
         (kSwizzle128 << 62);
}

/// The descriptor of a B tile that lies with N contiguous, as a [K, N] row-major matrix does: boxes
/// of 64 columns (128 bytes a row of K) under the 128-byte swizzle, `box_bytes` apart. 8 rows of K
/// are 1024 bytes; steps of 16 along K add 2048 bytes to the address. Needs kTransposed of Wgmma.
/// PTX ISA, "Strides": MN-major, leading dimension offset between repeats of the swizzle span along
/// N, stride dimension offset between groups of eight along K.
__device__ __forceinline__ std::uint64_t descriptor_sw128_transposed(std::uint32_t address,
                                                                     std::uint32_t box_bytes) {
  constexpr std::uint64_t kStride = 1024 >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) |
         (static_cast<std::uint64_t>(box_bytes >> 4) << 16) | (kStride << 32) | (kSwizzle128 << 62);
}

/// The descriptor of what lies `units` of 16 bytes further. NOTE: the high word does not change.
/// Told so, ptxas computes descriptors in uniform registers; 64-bit sums took twice the
/// instructions of a GEMM's mainloop, which at the chip's power limit is time
/// (docs/kernels/gate_up.md).
__device__ __forceinline__ std::uint64_t further(std::uint64_t descriptor, std::uint32_t units) {
  return (descriptor & 0xFFFFFFFF00000000) | (static_cast<std::uint32_t>(descriptor) + units);
}

/// Orders register and shared-memory accesses of the warpgroup before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Keeps accesses to accumulators on their side of a wait: its instruction does not name them, so
/// the compiler may move plain register accesses across it, and ptxas then serialises the wgmma
/// (C7514).
template <int N>
__device__ __forceinline__ void wgmma_fence_accumulators(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Closes the group of all wgmma issued since the last commit.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most `kPending` committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// d = A * B (+ d unless `first`) for a tile of N columns. kTransposedB: B lies with N contiguous;
/// kTransposedA: A with M contiguous.
template <int N, class Element, bool kTransposedB = false, bool kTransposedA = false>
struct Wgmma;

// Operand lists of N / 2 accumulators: what they are, and their numbers in the text.
#define SLUICE_D8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SLUICE_D32(i) SLUICE_D8(i), SLUICE_D8(i + 8), SLUICE_D8(i + 16), SLUICE_D8(i + 24)
#define SLUICE_REGS8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SLUICE_REGS16 SLUICE_REGS8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_REGS32 \
  SLUICE_REGS16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_REGS48 \
  SLUICE_REGS32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SLUICE_REGS64 \
  SLUICE_REGS48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_REGS72 SLUICE_REGS64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SLUICE_REGS80 \
  SLUICE_REGS64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SLUICE_REGS96 \
  SLUICE_REGS80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SLUICE_REGS112 \
  SLUICE_REGS96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SLUICE_REGS128                                                                           \
  SLUICE_REGS112                                                                                 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

// a, b: the descriptors; first, tb, ta: the flags, all by their operand numbers.
#define SLUICE_WGMMA_OF(N, Element, type, regs, a, b, first, tb, ta, ...)                       \
  template <bool kTransposedB, bool kTransposedA>                                               \
  struct Wgmma<N, Element, kTransposedB, kTransposedA> {                                        \
    __device__ __forceinline__ static void mma(float (&d)[N / 2], std::uint64_t a_tile,         \
                                               std::uint64_t b_tile, bool is_first) {           \
      asm volatile("{.reg .pred add; setp.eq.b32 add, %" #first                                 \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" regs    \
                   "}, %" #a ", %" #b ", add, 1, 1, %" #ta ", %" #tb ";}"                       \
                   : __VA_ARGS__                                                                \
                   : "l"(a_tile), "l"(b_tile), "r"(static_cast<int>(is_first)),                 \
                     "n"(static_cast<int>(kTransposedB)), "n"(static_cast<int>(kTransposedA))); \
    }                                                                                           \
  };
#define SLUICE_WGMMA(N, regs, a, b, first, tb, ta, ...)                             \
  SLUICE_WGMMA_OF(N, __nv_bfloat16, "bf16", regs, a, b, first, tb, ta, __VA_ARGS__) \
  SLUICE_WGMMA_OF(N, __half, "f16", regs, a, b, first, tb, ta, __VA_ARGS__)

// Few columns: the tokens of a decode step, beside 64 rows of weights.
SLUICE_WGMMA(16, SLUICE_REGS8, 8, 9, 10, 11, 12, SLUICE_D8(0))
SLUICE_WGMMA(32, SLUICE_REGS16, 16, 17, 18, 19, 20, SLUICE_D8(0), SLUICE_D8(8))
SLUICE_WGMMA(64, SLUICE_REGS32, 32, 33, 34, 35, 36, SLUICE_D32(0))
SLUICE_WGMMA(96, SLUICE_REGS48, 48, 49, 50, 51, 52, SLUICE_D32(0), SLUICE_D8(32), SLUICE_D8(40))
SLUICE_WGMMA(128, SLUICE_REGS64, 64, 65, 66, 67, 68, SLUICE_D32(0), SLUICE_D32(32))
SLUICE_WGMMA(144, SLUICE_REGS72, 72, 73, 74, 75, 76, SLUICE_D32(0), SLUICE_D32(32), SLUICE_D8(64))
SLUICE_WGMMA(160, SLUICE_REGS80, 80, 81, 82, 83, 84, SLUICE_D32(0), SLUICE_D32(32), SLUICE_D8(64),
             SLUICE_D8(72))
SLUICE_WGMMA(192, SLUICE_REGS96, 96, 97, 98, 99, 100, SLUICE_D32(0), SLUICE_D32(32), SLUICE_D32(64))
SLUICE_WGMMA(224, SLUICE_REGS112, 112, 113, 114, 115, 116, SLUICE_D32(0), SLUICE_D32(32),
             SLUICE_D32(64), SLUICE_D8(96), SLUICE_D8(104))
SLUICE_WGMMA(256, SLUICE_REGS128, 128, 129, 130, 131, 132, SLUICE_D32(0), SLUICE_D32(32),
             SLUICE_D32(64), SLUICE_D32(96))

#undef SLUICE_WGMMA
#undef SLUICE_WGMMA_OF
#undef SLUICE_REGS128
#undef SLUICE_REGS112
#undef SLUICE_REGS96
#undef SLUICE_REGS80
#undef SLUICE_REGS72
#undef SLUICE_REGS64
#undef SLUICE_REGS48
#undef SLUICE_REGS32
#undef SLUICE_REGS16
#undef SLUICE_REGS8
#undef SLUICE_D32
#undef SLUICE_D8

/// d = A * B of N columns by instructions of at most kColumns each, where ptxas refuses one of N:
/// it wants the operands of one to fit the registers that a thread starts with (C7602). Rows of B
/// are 128 bytes.
template <int N, int kColumns, class Element, bool kTransposedB = false, bool kTransposedA = false>
struct SplitWgmma {
  static_assert(kColumns < N && N <= 2 * kColumns && kColumns % 8 == 0 && !kTransposedB);
  __device__ __forceinline__ static void mma(float (&d)[N / 2], std::uint64_t a_tile,
                                             std::uint64_t b_tile, bool first) {
    using Head = Wgmma<kColumns, Element, kTransposedB, kTransposedA>;
    using Tail = Wgmma<N - kColumns, Element, kTransposedB, kTransposedA>;
    Head::mma(reinterpret_cast<float(&)[kColumns / 2]>(d[0]), a_tile, b_tile, first);
    Tail::mma(reinterpret_cast<float(&)[(N - kColumns) / 2]>(d[kColumns / 2]), a_tile,
              further(b_tile, kColumns * 128 >> 4), first);
  }
};
template <int N, class Element, bool kTransposedB, bool kTransposedA>
struct SplitWgmma<N, N, Element, kTransposedB, kTransposedA>
    : Wgmma<N, Element, kTransposedB, kTransposedA> {};

}  // namespace sluice::cuda::ptx
