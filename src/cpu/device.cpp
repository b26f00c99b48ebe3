// SPDX-License-Identifier: Apache-2.0
// cpu_device(): what this machine's processor is and what the engine may use of it.
#include "sluice/device.hpp"

#include <cpuid.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cpu/cpuid.hpp"

namespace sluice {
namespace {

int usable_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// The brand string of cpuid leaves 0x80000002 to 0x80000004.
void read_name(char (&name)[96]) {
  unsigned words[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* w = words + std::size_t{4} * i;
    if (__get_cpuid(0x80000002U + i, &w[0], &w[1], &w[2], &w[3]) == 0) return;
  }
  char text[49] = {};
  std::memcpy(text, words, 48);
  const char* start = text + std::strspn(text, " ");
  std::snprintf(name, sizeof(name), "%s", start);
  for (std::size_t n = std::strlen(name); n > 0 && name[n - 1] == ' '; --n) name[n - 1] = '\0';
}

// clang 14's __builtin_cpu_supports does not know this one. Whether the system keeps the registers
// is asked with AVX2.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx512_bf16() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kBit = 1U << 5;  // of leaf 7, subleaf 1
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kBit) != 0;
}

bool slow_bf16_products() {
  unsigned leaf = 0;
  unsigned words[3] = {};  // the vendor's twelve letters are ebx, edx, ecx
  unsigned signature = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(0, &leaf, &words[0], &words[2], &words[1]) == 0) return false;
  if (__get_cpuid(1, &signature, &ebx, &ecx, &edx) == 0) return false;
  char vendor[sizeof(words)];
  std::memcpy(vendor, words, sizeof(words));
  return cpu::has_slow_bf16_products({vendor, sizeof(vendor)}, signature);
}

// What the targets are compiled for (Highway's HWY_AVX2 and HWY_AVX3) must all be there.
std::uint32_t simd_targets() {
  __builtin_cpu_init();
  const auto bit = [](SimdTarget t) { return 1U << static_cast<unsigned>(t); };
  std::uint32_t targets = bit(SimdTarget::kEmulated);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c() &&
                    __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
  if (!avx2) return targets;
  targets |= bit(SimdTarget::kAvx2);
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return targets;
  targets |= bit(SimdTarget::kAvx512);
  // VBMI for weights in blocks: of the CPUs with AVX-512 BF16, Cooper Lake alone lacks it.
  if (has_avx512_bf16() && __builtin_cpu_supports("avx512vbmi"))
    targets |= bit(SimdTarget::kAvx512Bf16);
  return targets;
}

std::int64_t cache_bytes(int name) { return std::max(0L, sysconf(name)); }

}  // namespace

Device cpu_device() noexcept {
  Device device;
  device.backend = Backend::kCpu;
  device.threads = usable_threads();
  device.simd_targets = simd_targets();
  device.slow_bf16_products = slow_bf16_products();
  device.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  device.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  device.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  device.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  read_name(device.name);
  return device;
}

Status limit_simd(Device& device, const char* name) noexcept {
  if (name == nullptr || *name == '\0') return {};
  for (int i = 0; i < kSimdTargetCount; ++i) {
    if (std::strcmp(name, to_string(static_cast<SimdTarget>(i))) != 0) continue;
    device.simd_targets &= (2U << i) - 1;
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "SIMD target: got \"%.32s\", wanted emulated, avx2, avx512 or avx512_bf16",
                    name);
}

#if !defined(SLUICE_WITH_CUDA)
int cuda_device_count() noexcept { return 0; }

Expected<Device> cuda_device(int /*ordinal*/) noexcept {
  return make_error(ErrorCode::kUnsupported, "device: this Sluice was built without CUDA");
}
#endif

}  // namespace sluice
