// SPDX-License-Identifier: Apache-2.0
#include "harness/cpu_loops.hpp"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

namespace sluice::harness {
namespace {

// Keeps a value that nothing reads from being optimised away.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Memory on huge pages where the kernel grants them, so that page walks do not hide in the numbers.
class HugePages {
 public:
  explicit HugePages(std::size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    data_ = static_cast<char*>(p);
    madvise(p, bytes, MADV_HUGEPAGE);
  }
  ~HugePages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  [[nodiscard]] char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_;
};

// Threads that do the same work at once. They live from call to call: starting one takes longer
// than some work does.
class Team {
 public:
  explicit Team(int threads) : line_(threads) {
    try {
      for (int i = 1; i < threads; ++i) others_.emplace_back([this, i] { follow(i); });
    } catch (const std::system_error&) {  // those that there are do the work
      for (int i = static_cast<int>(size()); i < threads; ++i) line_.arrive_and_drop();
    }
  }
  ~Team() {
    work_ = nullptr;
    line_.arrive_and_wait();
    for (std::thread& other : others_) other.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls work(0), work(1), ... on a thread each.
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    line_.arrive_and_wait();
    work(0);
    line_.arrive_and_wait();
  }
  [[nodiscard]] std::size_t size() const { return others_.size() + 1; }

 private:
  void follow(int index) {
    for (line_.arrive_and_wait(); work_ != nullptr; line_.arrive_and_wait()) {
      (*work_)(index);
      line_.arrive_and_wait();
    }
  }

  std::barrier<> line_;
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> others_;
};

// Four streams: the share of one thread is cut in four parts that are read side by side, as a
// kernel reads four weight rows at once.
using ReadKernel = void (*)(const char* data, std::size_t bytes, int streams);

__attribute__((target("avx2"))) void read_avx2(const char* data, std::size_t bytes, int streams) {
  const std::size_t part = bytes / static_cast<std::size_t>(streams);
  __m256i sums[4] = {};
  for (std::size_t at = 0; at + 128 <= part; at += 128) {
    for (int s = 0; s < streams; ++s) {
      const char* p = data + static_cast<std::size_t>(s) * part + at;
      for (int v = 0; v < 4; ++v) {
        sums[v] = _mm256_or_si256(
            sums[v],
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + std::ptrdiff_t{32} * v)));
      }
    }
  }
  keep(sums);
}

void read_sse2(const char* data, std::size_t bytes, int streams) {
  const std::size_t part = bytes / static_cast<std::size_t>(streams);
  __m128i sums[4] = {};
  for (std::size_t at = 0; at + 64 <= part; at += 64) {
    for (int s = 0; s < streams; ++s) {
      const char* p = data + static_cast<std::size_t>(s) * part + at;
      for (int v = 0; v < 4; ++v) {
        sums[v] = _mm_or_si128(
            sums[v], _mm_load_si128(reinterpret_cast<const __m128i*>(p + std::ptrdiff_t{16} * v)));
      }
    }
  }
  keep(sums);
}

// Ten independent chains: FMA latency (4 to 5 cycles) times two units. Returns FLOPs done.
using FmaKernel = double (*)(long iterations);
constexpr int kChains = 10;

__attribute__((target("avx512f"))) double fma_avx512(long iterations) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(0.5F);
  const __m512 a = _mm512_set1_ps(0.999F);
  const __m512 b = _mm512_set1_ps(0.001F);
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 10
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  keep(sums);
  return static_cast<double>(iterations) * kChains * 16 * 2;
}

// A dot product of pairs is two multiply-adds a lane. Sixteen chains: its latency is the longer
// one.
__attribute__((target("avx512f,avx512bw,avx512bf16"))) double dots_bf16(long iterations) {
  constexpr int kBf16Chains = 16;
  __m512 sums[kBf16Chains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(0.5F);
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3A83));  // 0.001
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, a);
  }
  keep(sums);
  return static_cast<double>(iterations) * kBf16Chains * 16 * 4;
}

__attribute__((target("avx2,fma"))) double fma_avx2(long iterations) {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_set1_ps(0.5F);
  const __m256 a = _mm256_set1_ps(0.999F);
  const __m256 b = _mm256_set1_ps(0.001F);
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 10
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  keep(sums);
  return static_cast<double>(iterations) * kChains * 8 * 2;
}

// Without FMA: a multiplication and an addition.
double fma_sse2(long iterations) {
  __m128 sums[kChains];
  for (__m128& sum : sums) sum = _mm_set1_ps(0.5F);
  const __m128 a = _mm_set1_ps(0.999F);
  const __m128 b = _mm_set1_ps(0.001F);
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 10
    for (__m128& sum : sums) sum = _mm_add_ps(_mm_mul_ps(sum, a), b);
  }
  keep(sums);
  return static_cast<double>(iterations) * kChains * 4 * 2;
}

bool has(const Device& device, SimdTarget target) {
  return (device.simd_targets >> static_cast<unsigned>(target) & 1U) != 0;
}

class Loops final : public CpuLoops {
 public:
  Loops(const Device& device, int threads, std::size_t share)
      : team_(threads),
        share_(share),
        buffer_(share * static_cast<std::size_t>(threads)),
        read_(has(device, SimdTarget::kAvx2) ? read_avx2 : read_sse2),
        fma_(has(device, SimdTarget::kAvx512) ? fma_avx512
             : has(device, SimdTarget::kAvx2) ? fma_avx2
                                              : fma_sse2),
        dots_(has(device, SimdTarget::kAvx512Bf16) ? dots_bf16 : nullptr) {
    if (there()) team_.run([&](int i) { std::memset(mine(i), 1, share_); });
  }
  [[nodiscard]] bool there() const { return buffer_.data() != nullptr; }

  [[nodiscard]] std::size_t bytes() const noexcept override { return share_ * team_.size(); }
  void read(int streams) override {
    team_.run([&](int i) { read_(mine(i), share_, streams); });
  }
  void copy() override {
    team_.run([&](int i) {
      std::memcpy(mine(i), mine(i) + share_ / 2, share_ / 2);
      keep(*mine(i));
    });
  }
  double fma(int millions) override { return flops(fma_, millions); }
  double bf16_dots(int millions) override { return dots_ ? flops(dots_, millions) : 0; }

 private:
  [[nodiscard]] char* mine(int i) const {
    return buffer_.data() + static_cast<std::size_t>(i) * share_;
  }
  double flops(FmaKernel kernel, int millions) {
    std::vector<double> done(team_.size());
    team_.run([&](int i) { done[static_cast<std::size_t>(i)] = kernel(millions * 1'000'000L); });
    return std::accumulate(done.begin(), done.end(), 0.0);
  }

  Team team_;
  std::size_t share_;  // bytes of a thread
  HugePages buffer_;
  ReadKernel read_;
  FmaKernel fma_;
  FmaKernel dots_;
};

}  // namespace

Expected<std::unique_ptr<CpuLoops>> CpuLoops::make(const Device& device, int threads,
                                                   std::size_t bytes) {
  if (threads <= 0) threads = device.threads;
  const auto memory = static_cast<std::size_t>(std::max<std::int64_t>(device.memory_bytes, 1));
  // A thread's share is a multiple of 4 streams of 4 KiB, so that every load is aligned.
  constexpr std::size_t kUnit = 16384;
  const std::size_t units =
      std::min(bytes, memory / 8) / (kUnit * static_cast<std::size_t>(threads));
  auto loops = std::make_unique<Loops>(device, threads, std::max<std::size_t>(units, 1) * kUnit);
  if (!loops->there()) {
    return make_error(ErrorCode::kOutOfMemory, "ceilings: %zu bytes could not be allocated",
                      loops->bytes());
  }
  return std::unique_ptr<CpuLoops>(std::move(loops));
}

}  // namespace sluice::harness
