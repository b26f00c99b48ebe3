// SPDX-License-Identifier: Apache-2.0
// The emulator itself: what it should find it finds.
#include "emulator.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace sluice {
namespace cuda::sm80 {
extern thread_local char smem[];
}
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kBytes = 4096;

std::string message_of(const std::function<void()>& kernel) {
  const Status status = emulator::run(2, kThreads, kBytes, kernel);
  return status ? "ok" : status.error().message;
}

// How many threads read what another warp's wrote.
int right_reads(bool barrier) {
  int right = 0;
  const Status status = emulator::run(1, kThreads, kBytes, [&] {
    auto* const words = reinterpret_cast<unsigned*>(cuda::sm80::smem);
    words[threadIdx.x] = threadIdx.x;
    if (barrier) __syncthreads();
    const unsigned other = (threadIdx.x + 32) % kThreads;
    if (words[other] == other) ++right;
  });
  EXPECT_TRUE(status) << status.error().message;
  return right;
}

TEST(Emulator, AMissingBarrierShows) {
  EXPECT_EQ(right_reads(true), static_cast<int>(kThreads));
  EXPECT_LT(right_reads(false), static_cast<int>(kThreads));
}

TEST(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  const std::array<unsigned, 4> from{1, 2, 3, 4};
  const auto word = [] {
    unsigned value = 0;
    std::memcpy(&value, cuda::sm80::smem, sizeof(value));
    return value;
  };
  EXPECT_EQ(message_of([&] {
              if (threadIdx.x != 0) return;
              const std::uint32_t to = cuda::ptx::shared_address(cuda::sm80::smem);
              cuda::ptx::cp_async_16(to, from.data(), true);
              cuda::ptx::cp_async_commit();
              cuda::ptx::cp_async_wait<1>();
              EXPECT_EQ(word(), 0xFFFFFFFFU);
              cuda::ptx::cp_async_wait<0>();
              EXPECT_EQ(word(), 1U);
              cuda::ptx::cp_async_16(to, nullptr, false);
              cuda::ptx::cp_async_commit();
              cuda::ptx::cp_async_wait<0>();
              EXPECT_EQ(word(), 0U);
            }),
            "ok");
}

std::uint64_t& barrier_at(int byte) {
  return *reinterpret_cast<std::uint64_t*>(cuda::sm80::smem + byte);
}

// Threads of two warps copy a word each, one of a third waits for both.
TEST(Emulator, CopiesArriveAtMbarriers) {
  const std::array<unsigned, 4> from{1, 2, 3, 4};
  const auto copy_to = [&](unsigned byte) {
    cuda::ptx::cp_async_16(cuda::ptx::shared_address(cuda::sm80::smem) + byte, from.data(), true);
    cuda::ptx::cp_async_arrive(barrier_at(64));
  };
  const auto word_at = [](unsigned byte) {
    unsigned value = 0;
    std::memcpy(&value, cuda::sm80::smem + byte, sizeof(value));
    return value;
  };
  EXPECT_EQ(message_of([&] {
              if (threadIdx.x == 0) cuda::ptx::mbarrier_init(barrier_at(64), 2);
              __syncthreads();
              const unsigned warp = threadIdx.x / 32;
              if (threadIdx.x % 32 != 0 || warp > 2) return;
              if (warp < 2) return copy_to(warp * 16);
              cuda::ptx::mbarrier_wait(barrier_at(64), 0);
              EXPECT_EQ(word_at(0), 1U);
              EXPECT_EQ(word_at(16), 1U);
            }),
            "ok");
  EXPECT_EQ(message_of([&] {
              if (threadIdx.x != 0) return;
              cuda::ptx::mbarrier_init(barrier_at(64), 1);
              copy_to(0);
              EXPECT_EQ(word_at(0), 0xFFFFFFFFU);
            }),
            "emulator: CTA 0: the CTA ends with copies that nobody has waited for");
  EXPECT_EQ(message_of([&] {
              if (threadIdx.x == 0) copy_to(0);
            }),
            "emulator: CTA 0: no mbarrier is there");
}

TEST(Emulator, MbarriersAreKnownAndWhole) {
  const auto arrivals_of_two = [](int arrivals, bool overwrite) {
    return message_of([=] {
      if (threadIdx.x == 0) cuda::ptx::mbarrier_init(barrier_at(0), 2);
      __syncthreads();
      if (threadIdx.x == 0 && overwrite) cuda::sm80::smem[7] = 0;
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < arrivals) cuda::ptx::mbarrier_arrive(barrier_at(0));
      cuda::ptx::mbarrier_wait(barrier_at(0), 0);
    });
  };
  EXPECT_EQ(arrivals_of_two(2, false), "ok");
  EXPECT_EQ(arrivals_of_two(1, false), "emulator: CTA 0: threads wait for each other for ever");
  EXPECT_EQ(arrivals_of_two(2, true), "emulator: CTA 0: an mbarrier is overwritten");
}

TEST(Emulator, CountsBankConflicts) {
  const auto conflicts_of = [](std::uint32_t pitch) {
    EXPECT_EQ(message_of([pitch] {
                std::uint32_t m[4];
                cuda::ptx::ldmatrix_x4(
                    m, cuda::ptx::shared_address(cuda::sm80::smem) + threadIdx.x % 8 * pitch);
              }),
              "ok");
    return emulator::take_conflicts();
  };
  EXPECT_EQ(conflicts_of(16), 0);
  EXPECT_EQ(conflicts_of(80), 0);
  EXPECT_EQ(conflicts_of(0), 0);
  EXPECT_GT(conflicts_of(128), 0);
}

TEST(Emulator, SaysWhatIsWrong) {
  emulator::limit_shared_memory(kBytes - 1);
  EXPECT_EQ(message_of([] {}), "emulator: no such launch");
  emulator::limit_shared_memory(kBytes);
  EXPECT_EQ(message_of([] {
              if (threadIdx.x < 64) cuda::ptx::named_barrier_sync(1, 96);
            }),
            "emulator: CTA 0: threads wait for each other for ever");
  EXPECT_EQ(message_of([] {
              cuda::ptx::cp_async_16(cuda::ptx::shared_address(cuda::sm80::smem), nullptr, false);
            }),
            "emulator: CTA 0: a thread ends with copies that it has not waited for");
  alignas(16) const char bytes[32] = {};
  EXPECT_EQ(message_of([&] {
              cuda::ptx::cp_async_16(cuda::ptx::shared_address(cuda::sm80::smem), bytes + 2, true);
            }),
            "emulator: CTA 0: a read that is not aligned");
  emulator::add_memory(bytes, 16);
  EXPECT_EQ(message_of([&] { static_cast<void>(__ldcg(bytes + 15)); }), "ok");
  EXPECT_EQ(message_of([&] { static_cast<void>(__ldcg(bytes + 16)); }),
            "emulator: CTA 0: a read outside of all memory");
  emulator::remove_memory(bytes);
  EXPECT_EQ(message_of([] { cuda::sm80::smem[kBytes] = 0; }),
            "emulator: CTA 0: shared memory after the CTA's is written");
  const std::uint32_t end = cuda::ptx::shared_address(cuda::sm80::smem) + kBytes;
  const auto load = [](std::uint32_t address) {
    return message_of([address] {
      std::uint32_t m[4];
      cuda::ptx::ldmatrix_x4(m, address);
    });
  };
  EXPECT_EQ(load(end - 16), "ok");
  EXPECT_EQ(load(end),
            "emulator: CTA 0: shared address " + std::to_string(end) + " is not the CTA's");
  EXPECT_EQ(load(end - 8),
            "emulator: CTA 0: shared address " + std::to_string(end - 8) + " is not the CTA's");
  EXPECT_EQ(load(end - 24),
            "emulator: CTA 0: shared address " + std::to_string(end - 24) + " is not aligned");
}

}  // namespace
}  // namespace sluice
