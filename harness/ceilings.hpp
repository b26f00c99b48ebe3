// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, measured in the run that uses it: memory read and copy
// bandwidth, FMA peak, and on a GPU the GEMM throughput. The denominators of roof_fraction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/status.hpp"

namespace sluice::harness {

class Rig;

/// Nothing where a ceiling does not exist on the device or was not measured.
struct Ceilings {
  std::optional<double> read_tbps;        ///< TB/s, reads alone, all threads or SMs
  std::optional<double> copy_tbps;        ///< TB/s, bytes read plus bytes written
  std::optional<double> gemm_tflops;      ///< TFLOP/s of the vendor's bf16 GEMM; GPU
  std::optional<double> mma_sync_tflops;  ///< TFLOP/s of bf16 mma.sync in registers; GPU
  std::optional<double> fma_gflops;       ///< GFLOP/s of fp32 FMA in registers, all threads; CPU
  std::optional<double> bf16_gflops;      ///< the same of bf16 dot products; a CPU that has them
  std::string clocks;                     ///< as the device reports them after the measurement
};

struct CeilingOptions {
  int threads = 0;     ///< CPU: 0 for all
  bool quick = false;  ///< less memory and fewer repetitions
};

/// Measures the ceilings of the rig's device.
/// CPU: the better of one and four streams a thread over a buffer well beyond the last-level cache,
/// best of several; a copy of half of it; register-only FMA loops of the best SIMD target, and of
/// bf16 dot products where there are any.
/// Errors: kOutOfMemory; those of the device.
Expected<Ceilings> measure_ceilings(Rig& rig, const CeilingOptions& options);

/// What a CPU multiplies with.
enum class Arithmetic { kFma, kBf16Dots };

/// The shortest time the work can take: the larger of bytes over the read ceiling and FLOPs over
/// the arithmetic ceiling (gemm_tflops where there is one, else fma_gflops or bf16_gflops), in
/// microseconds. Nothing where neither ceiling is known.
[[nodiscard]] std::optional<double> floor_us(const Ceilings& ceilings, double bytes, double flops,
                                             Arithmetic arithmetic = Arithmetic::kFma);

}  // namespace sluice::harness
