// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/ceilings.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "harness/cuda/check.hpp"
#include "harness/cuda/cublaslt.hpp"
#include "harness/cuda/mma_peak.hpp"
#include "harness/cuda/read_bandwidth.hpp"
#include "harness/rig.hpp"
#include "harness/timer.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The shortest of `samples` runs in microseconds, after one that is not counted.
Expected<double> shortest_us(Stopwatch& stopwatch, const Run& run, int samples) {
  const auto handle = stopwatch.prepare({run});
  if (!handle) return handle.error();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= samples; ++i) {
    const auto us = stopwatch.time_us(*handle);
    if (!us) return us.error();
    if (i > 0) best = std::min(best, *us);
  }
  return best;
}

// NVML is the driver's; where it is missing the clocks are simply not known.
std::string current_clocks(int ordinal) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  using Init = int (*)();
  using ByBusId = int (*)(const char*, void**);
  using Clock = int (*)(void*, int, unsigned*);
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  const auto by_bus_id =
      reinterpret_cast<ByBusId>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto clock = reinterpret_cast<Clock>(dlsym(library, "nvmlDeviceGetClockInfo"));
  char bus_id[32] = {};
  void* device = nullptr;
  unsigned sm_mhz = 0;
  unsigned memory_mhz = 0;
  constexpr int kSmClock = 1;      // NVML_CLOCK_SM
  constexpr int kMemoryClock = 2;  // NVML_CLOCK_MEM
  const bool known = init != nullptr && by_bus_id != nullptr && clock != nullptr && init() == 0 &&
                     cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) == cudaSuccess &&
                     by_bus_id(bus_id, &device) == 0 && clock(device, kSmClock, &sm_mhz) == 0 &&
                     clock(device, kMemoryClock, &memory_mhz) == 0;
  return known ? fmt::format("SM {} MHz, memory {} MHz", sm_mhz, memory_mhz) : std::string();
}

Status measure_memory(Rig& rig, Stopwatch& stopwatch, bool quick, Ceilings& out) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  HARNESS_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
  const std::size_t wanted = (quick ? std::size_t{2} : std::size_t{8}) * 1024 * kMiB;
  const std::size_t bytes = std::min(wanted, free_bytes / 4) / (64 * kMiB) * (64 * kMiB);
  if (bytes == 0) {
    return make_error(ErrorCode::kOutOfMemory, "ceilings: %zu bytes of device memory are free",
                      free_bytes);
  }
  auto buffer = RigBuffer::make(rig, bytes + kMiB);
  if (!buffer) return buffer.error();
  char* const data = buffer->data();
  // Noise, not zeros: memory compression and power draw depend on what is read.
  OperandSpec noise;
  noise.dtype = DType::kBF16;
  noise.rows = static_cast<std::int64_t>(bytes / 8192);
  noise.cols = 4096;
  noise.layout.row_stride_bytes = 8192;
  FillParams params;
  params.key = 1;
  SLUICE_TRY(rig.fill_matrix(noise, params, data));
  const int samples = quick ? 5 : 11;
  const auto read_us = shortest_us(
      stopwatch,
      [&](Stream stream) { return enqueue_read(rig.device(), data, bytes, data + bytes, stream); },
      samples);
  if (!read_us) return read_us.error();
  out.read_tbps = static_cast<double>(bytes) / *read_us * 1e-6;
  const std::size_t half = bytes / 2;
  const auto copy_us = shortest_us(
      stopwatch,
      [&](Stream stream) { return enqueue_copy(rig.device(), data, data + half, half, stream); },
      samples);
  if (!copy_us) return copy_us.error();
  out.copy_tbps = static_cast<double>(bytes) / *copy_us * 1e-6;
  return {};
}

Status measure_gemm(Rig& rig, Stopwatch& stopwatch, bool quick, Ceilings& out) {
  auto library = CublasLt::open(rig);
  if (!library) return {};  // optional everywhere
  constexpr std::int64_t kSize = 8192;
  constexpr std::size_t kBytes = std::size_t{2} * kSize * kSize;
  auto buffer = RigBuffer::make(rig, 3 * kBytes);
  if (!buffer) return buffer.error();
  char* const a = buffer->data();
  char* const b = a + kBytes;
  char* const product = b + kBytes;
  OperandSpec spec;
  spec.dtype = DType::kBF16;
  spec.rows = kSize;
  spec.cols = kSize;
  spec.layout.row_stride_bytes = 2 * kSize;
  FillParams params;
  params.key = 2;
  SLUICE_TRY(rig.fill_matrix(spec, params, a));
  params.key = 3;
  SLUICE_TRY(rig.fill_matrix(spec, params, b));
  LtGemm gemm;
  gemm.m = gemm.n = gemm.k = kSize;
  gemm.a_stride = gemm.b_stride = gemm.out_stride = kSize;
  auto plan = (*library)->plan(gemm, a, b, product);
  if (!plan) return plan.error();
  const auto us = shortest_us(
      stopwatch, [&](Stream stream) { return (*plan)->run(a, b, product, stream); },
      quick ? 10 : 30);
  if (!us) return us.error();
  constexpr double kEdge = kSize;
  out.gemm_tflops = 2 * kEdge * kEdge * kEdge / *us * 1e-6;
  out.clocks = current_clocks(rig.device().ordinal);
  return {};
}

Status measure_mma(Rig& rig, Stopwatch& stopwatch, bool quick, Ceilings& out) {
  if (rig.device().compute_capability < 80) return {};
  // Some 3 ms, and often enough for clocks to come back that the GEMM before has lowered: it takes
  // all the power that the board may have, this loop three quarters of it.
  constexpr int kRounds = 10000;
  auto sink = RigBuffer::make(rig, 4);
  if (!sink) return sink.error();
  const auto us = shortest_us(
      stopwatch,
      [&](Stream stream) { return enqueue_mma(rig.device(), kRounds, sink->data(), stream); },
      quick ? 30 : 90);
  if (!us) return us.error();
  out.mma_sync_tflops = mma_flops(rig.device(), kRounds) / *us * 1e-6;
  return {};
}

}  // namespace

Expected<Ceilings> measure_cuda_ceilings(Rig& rig, const CeilingOptions& options) {
  HARNESS_CUDA_TRY(cudaSetDevice(rig.device().ordinal));
  auto stopwatch = make_stopwatch(rig);
  if (!stopwatch) return stopwatch.error();
  Ceilings out;
  SLUICE_TRY(measure_memory(rig, **stopwatch, options.quick, out));
  SLUICE_TRY(measure_gemm(rig, **stopwatch, options.quick, out));
  SLUICE_TRY(measure_mma(rig, **stopwatch, options.quick, out));
  if (out.clocks.empty()) out.clocks = current_clocks(rig.device().ordinal);
  return out;
}

}  // namespace sluice::harness
