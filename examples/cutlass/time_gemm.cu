// SPDX-License-Identifier: Apache-2.0
// Times the instances beside the stock epilogue and beside GEMM + activation, at 8B and 70B.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cuda_memory.hpp"
#include "gemm.hpp"
#include "math/gate.hpp"

namespace example {
namespace {

__device__ __nv_bfloat16 stored(float h, __nv_bfloat16) { return __float2bfloat16(h); }
__device__ __nv_fp8_e4m3 stored(float h, __nv_fp8_e4m3) { return __nv_fp8_e4m3(h); }

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T of[4];
};

// What follows the stock GEMM: h[m, i] = Out(silu(y[m, 2i]) · y[m, 2i + 1]), 16 bytes read a
// thread.
template <class Out>
__global__ void silu_mul_adjacent(const uint4* y, Out* h, std::int64_t count) {
  const std::int64_t at = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  uint4 in = y[at];
  __nv_bfloat162 pairs[4];
  std::memcpy(pairs, &in, 16);
  Four<Out> out;
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(pairs[i]);
    out.of[i] = stored(sluice::math::activate(sluice::Activation::kSilu, v.x, 1.0F) * v.y, Out{});
  }
  reinterpret_cast<Four<Out>*>(h)[at] = out;
}

template <class T>
__global__ void fill(T* data, std::int64_t count, unsigned seed, float width) {
  const std::int64_t step = std::int64_t(gridDim.x) * blockDim.x;
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    // Sum of 4 uniform bytes of a hash: close to normal.
    unsigned x = unsigned(i) * 2654435761U + seed;
    x ^= x >> 16;
    x *= 0x85EBCA6BU;
    x ^= x >> 13;
    x *= 0xC2B2AE35U;
    x ^= x >> 16;
    const int sum = int(x & 255) + int((x >> 8) & 255) + int((x >> 16) & 255) + int(x >> 24);
    data[i] = stored((float(sum) - 510) / 148 * width, T{});
  }
}

// What an instance is in the results: its own name, or the baseline that it is.
std::string row_name(const Instance& it) {
  if (it.output == Output::kWideE4m3) return "cutlass_identity";
  if (it.output != Output::kWideBf16) return it.name;
  return it.input == Input::kBf16 ? "cutlass_act" : "cutlass_act_quantise";
}

// The shape of a row, and where rows go.
struct Shape {
  const char* model;
  int m;
  int d;
  int h;
};
struct Report {
  std::FILE* json = nullptr;
  bool first = true;
};

// Medians of interleaved runs of the instances of one input, without scales: kBf16 as T
// __nv_bfloat16, kE4m3 as __nv_fp8_e4m3. Weights rotate between two copies, each larger than L2.
template <class T>
void time_all(Input input, int capability, const Shape& shape, int swizzle, Report& report) {
  constexpr int kRuns = 15;
  const int m = shape.m;
  const int d = shape.d;
  const int h = shape.h;
  const int n = 2 * h;
  Buffer<T> a(std::size_t(m) * d);
  Buffer<T> b(std::size_t(2) * n * d);
  Buffer<__nv_bfloat16> wide(std::size_t(m) * n);
  Buffer<__nv_bfloat16> out(std::size_t(m) * h);
  fill<<<1024, 256>>>(a.data, std::int64_t(m) * d, 1, 1);
  fill<<<1024, 256>>>(b.data, std::int64_t(2) * n * d, 2, 1 / std::sqrt(float(d)));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  struct Row {
    const Instance* instance;
    std::unique_ptr<Gemm> gemm[2];
    std::vector<float> us;
  };
  std::vector<Row> rows;
  for (const Instance& it : instances()) {
    if (it.capability != capability || it.input != input || it.bias) continue;
    if (it.act != Act::kSilu && it.act != Act::kTakeGate) continue;  // one of each form
    Row row{&it, {}, {}};
    const bool is_wide = it.output == Output::kWideBf16 || it.output == Output::kWideE4m3;
    for (int copy = 0; copy < 2; ++copy) {
      const Call call{.m = m,
                      .n = n,
                      .k = d,
                      .a = a.data,
                      .b = b.data + std::size_t(copy) * n * d,
                      .out = is_wide ? wide.data : out.data,
                      .out_stride = is_wide ? n : h,
                      .swizzle = swizzle};
      row.gemm[copy] = it.make(call);
      if (!row.gemm[copy]) {
        std::fprintf(stderr, "%s: refused\n", it.name.c_str());
        std::exit(1);
      }
    }
    rows.push_back(std::move(row));
  }
  for (int run = -2; run < kRuns; ++run) {
    for (Row& row : rows) {
      CUDA_OK(cudaEventRecord(begin));
      const bool ran = row.gemm[run & 1]->run(nullptr);
      if (row.instance->output == Output::kWideBf16) {
        const std::int64_t count = std::int64_t(m) * n / 8;
        silu_mul_adjacent<<<unsigned((count + 255) / 256), 256>>>(
            reinterpret_cast<const uint4*>(wide.data), reinterpret_cast<T*>(out.data), count);
      }
      CUDA_OK(cudaEventRecord(end));
      CUDA_OK(cudaEventSynchronize(end));
      float ms = 0;
      CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
      if (!ran) std::exit(1);
      if (run >= 0) row.us.push_back(1000 * ms);
    }
  }
  for (Row& row : rows) {
    std::sort(row.us.begin(), row.us.end());
    const double us = double(row.us[kRuns / 2]);
    const double tflops = 2.0 * m * n * d / us * 1e-6;
    char line[512];
    std::snprintf(line, sizeof line,
                  "{\"model\": \"%s\", \"m\": %d, \"d\": %d, \"h\": %d, \"input\": \"%s\", "
                  "\"swizzle\": %d, \"variant\": \"%s\", \"median_us\": %.1f, "
                  "\"p10_us\": %.1f, \"p90_us\": %.1f, \"tflops\": %.1f}",
                  shape.model, m, d, h, input == Input::kBf16 ? "bf16" : "e4m3", swizzle,
                  row_name(*row.instance).c_str(), us, double(row.us[kRuns / 10]),
                  double(row.us[kRuns * 9 / 10]), tflops);
    std::printf("%s\n", line);
    if (report.json != nullptr) std::fprintf(report.json, "%s%s", report.first ? "" : ",\n", line);
    report.first = false;
  }
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
}

}  // namespace

bool time_instances(int capability, const char* device_name, const char* json_path) {
  Report report;
  if (json_path != nullptr) {
    report.json = std::fopen(json_path, "w");
    if (report.json == nullptr) {
      std::perror(json_path);
      return false;
    }
    std::fprintf(report.json, "{\"device\": \"%s\", \"rows\": [\n", device_name);
  }
  for (const Shape& shape :
       {Shape{"llama-3.1-8b", 4096, 4096, 14336}, Shape{"llama-3.1-70b", 4096, 8192, 28672}}) {
    for (const int swizzle : {1, 8}) {
      time_all<__nv_bfloat16>(Input::kBf16, capability, shape, swizzle, report);
      time_all<__nv_fp8_e4m3>(Input::kE4m3, capability, shape, swizzle, report);
    }
  }
  if (report.json != nullptr) {
    std::fprintf(report.json, "\n]}\n");
    std::fclose(report.json);
  }
  return true;
}

}  // namespace example
