// SPDX-License-Identifier: Apache-2.0
// Device: a plain description, queried once. plan() reads nothing else, so plans for a device that
// is not there can be made and tested anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/export.hpp"
#include "sluice/status.hpp"

namespace sluice {

enum class Backend : std::uint8_t { kCpu = 0, kCuda = 1 };

/// GPU generations, by compute capability. Order is age: comparisons mean "at least".
enum class Arch : std::uint8_t {
  kNone = 0,       ///< not a GPU
  kTuring = 1,     ///< 7.5
  kAmpere = 2,     ///< 8.0, 8.6, 8.7
  kAda = 3,        ///< 8.9
  kHopper = 4,     ///< 9.0
  kBlackwell = 5,  ///< 10.x, 11.x and 12.x
};

/// The generation of a compute capability, as 10 · major + minor.
[[nodiscard]] constexpr Arch arch_of(int compute_capability) noexcept {
  if (compute_capability >= 100) return Arch::kBlackwell;
  if (compute_capability >= 90) return Arch::kHopper;
  if (compute_capability >= 89) return Arch::kAda;
  if (compute_capability >= 80) return Arch::kAmpere;
  if (compute_capability >= 75) return Arch::kTuring;
  return Arch::kNone;
}

/// SIMD targets of the CPU engine, as bits of Device::simd_targets; the best has the highest bit.
enum class SimdTarget : std::uint8_t {
  kEmulated = 0,    ///< plain C++ (Highway's EMU128), on any CPU
  kAvx2 = 1,        ///< AVX2, FMA, F16C, BMI2
  kAvx512 = 2,      ///< AVX-512 F, BW, CD, DQ, VL
  kAvx512Bf16 = 3,  ///< those, VBMI and AVX-512 BF16, for what multiplies bf16 by bf16
};
inline constexpr int kSimdTargetCount = 4;

/// The most threads of a Device and of a plan.
inline constexpr int kMaxThreads = 65536;

struct Device {
  Backend backend = Backend::kCpu;
  Arch arch = Arch::kNone;
  int ordinal = 0;               ///< CUDA device number; 0 for the CPU
  int compute_capability = 0;    ///< 10 · major + minor, e.g. 90; 0 for the CPU
  int sm_count = 0;              ///< streaming multiprocessors; 0 for the CPU
  int smem_per_block_bytes = 0;  ///< opt-in maximum of one block; 0 for the CPU
  bool cooperative_launch = false;
  int cublaslt_version = 0;         ///< CUDA: of the cuBLASLt that this process found, as
                                    ///< cublasLtGetVersion says it, e.g. 130100; 0 for none
  int driver_version = 0;           ///< as CUDA reports it, e.g. 13000; 0 for the CPU
  int runtime_version = 0;          ///< the CUDA runtime in this library; 0 for the CPU
  int threads = 1;                  ///< CPU: hardware threads this process may use; 0 is 1
  std::uint32_t simd_targets = 1;   ///< CPU: bit i is set where SimdTarget(i) can run
  bool slow_bf16_products = false;  ///< CPU: AVX-512 BF16 multiplies slower than FMA in fp32
  std::int64_t l1d_bytes = 0;       ///< CPU: of one core; 0 where unknown
  std::int64_t l2_bytes = 0;        ///< CPU: of one core; GPU: of the device
  std::int64_t l3_bytes = 0;        ///< CPU: of the socket; 0 where unknown or a GPU
  std::int64_t memory_bytes = 0;
  std::int64_t memory_bytes_per_second = 0;  ///< GPU: its bus times its clock; 0 where unknown
  char name[96]{};                           ///< as the CPU or driver names itself
};

/// Checks a description that a caller made or changed; plan() and explain() do so first. Errors:
/// kInvalidArgument for an unknown backend, a number that is negative or absurd, a CPU without
/// SimdTarget::kEmulated, a GPU without a multiprocessor. Thread-safe.
[[nodiscard]] SLUICE_EXPORT Status validate(const Device& device) noexcept;

/// Describes the CPU this process runs on. Never fails; reads cpuid and sysconf.
/// Thread-safe.
[[nodiscard]] SLUICE_EXPORT Device cpu_device() noexcept;

/// Takes from a CPU's description the SIMD targets above the one of this name ("avx2"): what is
/// planned for it then runs as on a CPU without them. Null, an empty name and a target above all
/// that it has change nothing. Errors: kInvalidArgument for a name that is none of to_string's.
[[nodiscard]] SLUICE_EXPORT Status limit_simd(Device& device, const char* name) noexcept;

/// Number of CUDA devices; 0 where there is no driver or Sluice was built without CUDA.
[[nodiscard]] SLUICE_EXPORT int cuda_device_count() noexcept;

/// Describes CUDA device `ordinal`. Makes no context current and leaves the current device as it
/// was. The first Hopper GPU makes it look for cuBLASLt, once a process: the process's own copy,
/// else the system's, which takes tens of milliseconds to load. Errors: kUnsupported where Sluice
/// was built without CUDA or no driver is found; kInvalidArgument for an ordinal that does not
/// exist; kDevice where the driver fails. Thread-safe.
[[nodiscard]] SLUICE_EXPORT Expected<Device> cuda_device(int ordinal) noexcept;

[[nodiscard]] SLUICE_EXPORT const char* to_string(Backend backend) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(Arch arch) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(SimdTarget target) noexcept;

}  // namespace sluice
