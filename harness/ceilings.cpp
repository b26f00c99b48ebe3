// SPDX-License-Identifier: Apache-2.0
// Ceilings of a CPU: plain loads over memory, memcpy-like copies, FMA in registers; all threads at
// once, the best of several repetitions, because a ceiling is what the machine can do when nothing
// else disturbs it.
#include "harness/ceilings.hpp"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "harness/rig.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "harness/cuda/ceilings.hpp"
#endif

namespace sluice::harness {
namespace {

using Clock = std::chrono::steady_clock;

// Keeps a value that nothing reads from being optimised away.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Memory on huge pages where the kernel grants them, so that page walks do not hide in the numbers.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    data_ = static_cast<char*>(p);
    madvise(p, bytes, MADV_HUGEPAGE);
  }
  ~Buffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_;
};

// Seconds of the slowest thread, all started together; the best of `repetitions`. The threads live
// through all repetitions: starting one takes longer than a repetition may.
double best_seconds(int threads, int repetitions, const std::function<void(int)>& work) {
  std::barrier line(threads);
  std::vector<double> seconds(static_cast<std::size_t>(repetitions));
  const auto body = [&](int index) {
    for (int r = 0; r < repetitions; ++r) {
      line.arrive_and_wait();
      const auto start = Clock::now();
      work(index);
      line.arrive_and_wait();
      if (index == 0) {
        seconds[static_cast<std::size_t>(r)] =
            std::chrono::duration<double>(Clock::now() - start).count();
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(body, i);
  body(0);
  for (std::thread& thread : others) thread.join();
  return *std::min_element(seconds.begin(), seconds.end());
}

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

double gflops(FmaKernel kernel, int threads, int repetitions) {
  constexpr long kIterations = 4'000'000;  // 10 to 20 ms
  std::vector<double> done(static_cast<std::size_t>(threads));
  const double seconds = best_seconds(threads, repetitions, [&](int i) {
    done[static_cast<std::size_t>(i)] = kernel(kIterations);
  });
  double flops = 0;
  for (const double d : done) flops += d;
  return flops / seconds * 1e-9;
}

// The first processor's clock as the kernel reports it; empty where it does not.
std::string cpu_clock() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("cpu MHz", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) break;
    return "cpu " + line.substr(colon + 2, line.find('.', colon) - colon - 2) + " MHz";
  }
  return "";
}

Expected<Ceilings> measure_cpu(const Device& device, const CeilingOptions& options) {
  const int threads = options.threads > 0 ? options.threads : device.threads;
  const int repetitions = options.quick ? 3 : 9;
  // Ten times the largest last-level cache that one core reaches (see timing::kMaxRotationBytes).
  const std::size_t wanted = std::size_t{1} << (options.quick ? 29 : 30);
  const auto memory = static_cast<std::size_t>(std::max<std::int64_t>(device.memory_bytes, 1));
  // A thread's share is a multiple of 4 streams of 4 KiB, so that every load is aligned.
  const std::size_t unit = 16384 * static_cast<std::size_t>(threads);
  const std::size_t bytes = std::max<std::size_t>(std::min(wanted, memory / 8) / unit, 1) * unit;
  const std::size_t share = bytes / static_cast<std::size_t>(threads);
  const Buffer buffer(bytes);
  if (buffer.data() == nullptr) {
    return make_error(ErrorCode::kOutOfMemory, "ceilings: %zu bytes could not be allocated", bytes);
  }
  const auto mine = [&](int i) { return buffer.data() + static_cast<std::size_t>(i) * share; };
  best_seconds(threads, 1, [&](int i) { std::memset(mine(i), 1, share); });

  const ReadKernel read = has(device, SimdTarget::kAvx2) ? read_avx2 : read_sse2;
  double read_seconds = 0;
  for (const int streams : {1, 4}) {
    const double seconds =
        best_seconds(threads, repetitions, [&](int i) { read(mine(i), share, streams); });
    read_seconds = read_seconds == 0 ? seconds : std::min(read_seconds, seconds);
  }
  const double copy_seconds = best_seconds(threads, repetitions, [&](int i) {
    std::memcpy(mine(i), mine(i) + share / 2, share / 2);
    keep(*mine(i));
  });
  Ceilings out;
  out.read_tbps = static_cast<double>(bytes) / read_seconds * 1e-12;
  out.copy_tbps = static_cast<double>(bytes) / copy_seconds * 1e-12;
  const FmaKernel fma = has(device, SimdTarget::kAvx512) ? fma_avx512
                        : has(device, SimdTarget::kAvx2) ? fma_avx2
                                                         : fma_sse2;
  out.fma_gflops = gflops(fma, threads, repetitions);
  if (has(device, SimdTarget::kAvx512Bf16)) {
    out.bf16_gflops = gflops(dots_bf16, threads, repetitions);
  }
  out.clocks = cpu_clock();
  return out;
}

}  // namespace

Expected<Ceilings> measure_ceilings(Rig& rig, const CeilingOptions& options) {
  if (rig.device().backend == Backend::kCpu) return measure_cpu(rig.device(), options);
#if defined(SLUICE_WITH_CUDA)
  return measure_cuda_ceilings(rig, options);
#else
  return make_error(ErrorCode::kUnsupported, "ceilings: this Sluice was built without CUDA");
#endif
}

std::optional<double> floor_us(const Ceilings& ceilings, double bytes, double flops,
                               Arithmetic arithmetic) {
  std::optional<double> floor;
  const auto at_least = [&](double us) { floor = std::max(floor.value_or(0.0), us); };
  if (ceilings.read_tbps) at_least(bytes / *ceilings.read_tbps * 1e-6);
  const auto cpu_gflops =
      arithmetic == Arithmetic::kBf16Dots ? ceilings.bf16_gflops : ceilings.fma_gflops;
  if (ceilings.gemm_tflops) {
    at_least(flops / *ceilings.gemm_tflops * 1e-6);
  } else if (cpu_gflops) {
    at_least(flops / *cpu_gflops * 1e-3);
  }
  return floor;
}

}  // namespace sluice::harness
