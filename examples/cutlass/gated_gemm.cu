// SPDX-License-Identifier: Apache-2.0
// A bf16 GEMM with the gated visitor: checks every instance against fp64 on the host, then times it
// beside the stock epilogue and beside GEMM + activation.
//   gated_gemm [--json FILE] [--no-time]
// Exit code: 0 all checks passed, 1 one failed, 2 usage or no GPU of compute capability 9.0.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "gemm.hpp"
#include "math/gate.hpp"

namespace example {

std::vector<Instance>& instances() {
  static std::vector<Instance> all;
  return all;
}

namespace {

#define CUDA_OK(call)                                                      \
  do {                                                                     \
    const cudaError_t status = (call);                                     \
    if (status != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(2);                                                        \
    }                                                                      \
  } while (false)

template <class T>
struct Buffer {
  T* data = nullptr;
  explicit Buffer(std::size_t count) { CUDA_OK(cudaMalloc(&data, count * sizeof(T))); }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    CUDA_OK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
};

// The wide column of gate (or up) of column i of out.
int wide_column(const Instance& it, int i, bool up) {
  const int second = (up != it.up_first) ? 1 : 0;
  return i / it.chunk * 2 * it.chunk + second * it.chunk + i % it.chunk;
}

double act(const Instance& it, const sluice::Gate& gate, double g, double u) {
  sluice::Gate plain;
  switch (it.act) {
    case Act::kSilu:
      break;
    case Act::kGeluTanh:
      plain.activation = sluice::Activation::kGeluTanh;
      break;
    case Act::kGeluErf:
      plain.activation = sluice::Activation::kGeluErf;
      break;
    case Act::kRelu:
      plain.activation = sluice::Activation::kRelu;
      break;
    case Act::kLibrarySilu:
      plain = gate;
      break;
    case Act::kTanh:
      return std::tanh(g) * u;
    case Act::kHardSwish:
      return g * std::min(std::max(g + 3, 0.0), 6.0) / 6 * u;
    case Act::kLeakyRelu:
      return (g < 0 ? double(0.01F) * g : g) * u;
    case Act::kTakeGate:
      return g;
  }
  return sluice::math::gate_mul(plain, g, u);
}

// Every out element is compared; padding of rows and rows past M must keep their poison.
bool check(const Instance& it, int m, int half, int k) {
  const int n = 2 * half;
  const bool fp8 = it.output == Output::kGatedE4m3;
  const int element = fp8 ? 1 : 2;
  const int stride = (half + 15) / 16 * 16 + 32;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<__nv_bfloat16> a(std::size_t(m) * k);
  std::vector<__nv_bfloat16> b(std::size_t(n) * k);
  std::vector<float> bias(n);
  const float width = 1 / std::sqrt(float(k));
  for (auto& v : a) v = __float2bfloat16(normal(random));
  // Gate and up differ in size, so that an exchange of the two shows.
  for (int i = 0; i < half; ++i) {
    for (const bool up : {false, true}) {
      const int row = wide_column(it, i, up);
      bias[row] = it.bias ? normal(random) : 0;
      for (int c = 0; c < k; ++c) {
        b[std::size_t(row) * k + c] = __float2bfloat16(normal(random) * width * (up ? 3 : 1.5F));
      }
    }
  }
  const std::size_t bytes = std::size_t(m + 2) * stride * element;
  const unsigned char poison = 0xFF;  // NaN in bf16 and in e4m3
  Buffer<__nv_bfloat16> d_a(a);
  Buffer<__nv_bfloat16> d_b(b);
  Buffer<float> d_bias(bias);
  Buffer<unsigned char> d_out(bytes);
  CUDA_OK(cudaMemset(d_out.data, poison, bytes));
  Call call{.m = m,
            .n = n,
            .k = k,
            .a = d_a.data,
            .b = d_b.data,
            .out = d_out.data,
            .out_stride = stride,
            .bias = d_bias.data,
            .gate = {.alpha = 1.702F,
                     .limit = 2.5F,
                     .up_offset = 1.0F,
                     .gate_multiplier = 0.5F,
                     .output_multiplier = 1.5F},
            .scale = 4};
  auto gemm = it.make(call);
  const bool ran = gemm && gemm->run(nullptr) && cudaDeviceSynchronize() == cudaSuccess;
  if (!ran) {
    std::printf("FAIL %-22s %dx%dx%d: refused or failed: %s\n", it.name.c_str(), m, n, k,
                cudaGetErrorString(cudaGetLastError()));
    return false;
  }
  std::vector<unsigned char> out(bytes);
  CUDA_OK(cudaMemcpy(out.data(), d_out.data, bytes, cudaMemcpyDeviceToHost));

  std::vector<float> a_float(a.size());
  std::vector<float> b_float(b.size());
  std::transform(a.begin(), a.end(), a_float.begin(), [](auto v) { return __bfloat162float(v); });
  std::transform(b.begin(), b.end(), b_float.begin(), [](auto v) { return __bfloat162float(v); });
  std::size_t wrong = 0;
  std::size_t touched = 0;
  double worst = 0;  // error as a share of its bound
  for (int r = 0; r < m + 2; ++r) {
    for (int c = 0; c < stride; ++c) {
      const unsigned char* at = &out[(std::size_t(r) * stride + c) * element];
      if (r >= m || c >= half) {
        touched += std::count(at, at + element, poison) != element;
        continue;
      }
      double sum[2] = {};
      double size[2] = {};
      for (const int up : {0, 1}) {
        const int row = wide_column(it, c, up != 0);
        const float* x = &a_float[std::size_t(r) * k];
        const float* w = &b_float[std::size_t(row) * k];
        for (int i = 0; i < k; ++i) {
          const double product = double(x[i]) * w[i];
          sum[up] += product;
          size[up] += std::abs(product);
        }
        sum[up] += bias[row];
        size[up] += std::abs(bias[row]);
      }
      double want = act(it, call.gate, sum[0], sum[1]);
      // Sums: K roundings of 2^-24, and one bit less for what the tensor core truncates. Gates here
      // have slopes below 1.2 · 0.75 in g, and are at most |g| + 1 in size: times 1.5 and up + 1.
      const double sums = (k + 2) * std::ldexp(1, -23);
      double bound =
          1.5 * sums * ((std::abs(sum[1]) + 1) * 1.2 * size[0] + (std::abs(sum[0]) + 1) * size[1]) +
          std::ldexp(1, -20) * (std::abs(sum[0]) + 1) * (std::abs(sum[1]) + 1);
      double got = 0;
      if (fp8) {
        __nv_fp8_e4m3 value;
        std::memcpy(&value, at, 1);
        got = double(float(value));
        want = std::clamp(want * double(call.scale), -448.0, 448.0);
        bound = bound * double(call.scale) + std::ldexp(std::abs(want), -4) + std::ldexp(1, -10);
      } else {
        __nv_bfloat16 value;
        std::memcpy(&value, at, 2);
        got = double(__bfloat162float(value));
        bound += std::ldexp(std::abs(want), -8);
      }
      const double share = std::abs(got - want) / bound;
      worst = std::isnan(share) ? std::numeric_limits<double>::infinity() : std::max(worst, share);
      wrong += !(share <= 1);
    }
  }
  const bool good = wrong == 0 && touched == 0;
  std::printf("%s %-22s %dx%dx%d: worst %.3f of the bound, %zu wrong, %zu written outside\n",
              good ? "pass" : "FAIL", it.name.c_str(), m, n, k, worst, wrong, touched);
  return good;
}

// What follows the stock GEMM: h[m, i] = silu(y[m, 2i]) · y[m, 2i + 1], 16 bytes read a thread.
__global__ void silu_mul_adjacent(const uint4* y, uint2* h, std::int64_t count) {
  const std::int64_t at = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  uint4 in = y[at];
  __nv_bfloat162 pairs[4];
  std::memcpy(pairs, &in, 16);
  __nv_bfloat16 out[4];
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(pairs[i]);
    out[i] = __float2bfloat16(sluice::math::activate(sluice::Activation::kSilu, v.x, 1.0F) * v.y);
  }
  uint2 packed;
  std::memcpy(&packed, out, 8);
  h[at] = packed;
}

__global__ void fill(__nv_bfloat16* data, std::int64_t count, unsigned seed, float width) {
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
    data[i] = __float2bfloat16((float(sum) - 510) / 148 * width);
  }
}

// Medians of interleaved runs. Weights rotate between two copies, each larger than L2.
void time_all(const char* model, int m, int d, int h, int swizzle, std::FILE* json, bool& first) {
  constexpr int kRuns = 15;
  const int n = 2 * h;
  Buffer<__nv_bfloat16> a(std::size_t(m) * d);
  Buffer<__nv_bfloat16> b(std::size_t(2) * n * d);
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
    std::string name;
    std::unique_ptr<Gemm> gemm[2];
    std::vector<float> us;
  };
  std::vector<Row> rows;
  for (const Instance& it : instances()) {
    if (it.bias || it.act == Act::kLibrarySilu) continue;
    if (it.act != Act::kSilu && it.act != Act::kTakeGate) continue;
    Row row{&it, it.name, {}, {}};
    if (it.output == Output::kWideBf16) row.name = "cutlass_act";
    if (it.output == Output::kWideE4m3) row.name = "cutlass_identity";
    const bool is_wide = it.output == Output::kWideBf16 || it.output == Output::kWideE4m3;
    for (int copy = 0; copy < 2; ++copy) {
      row.gemm[copy] = it.make({.m = m,
                                .n = n,
                                .k = d,
                                .a = a.data,
                                .b = b.data + std::size_t(copy) * n * d,
                                .out = is_wide ? wide.data : out.data,
                                .out_stride = is_wide ? n : h,
                                .swizzle = swizzle});
      if (!row.gemm[copy]) {
        std::fprintf(stderr, "%s: refused\n", row.name.c_str());
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
            reinterpret_cast<const uint4*>(wide.data), reinterpret_cast<uint2*>(out.data), count);
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
                  "{\"model\": \"%s\", \"m\": %d, \"d\": %d, \"h\": %d, \"swizzle\": %d, "
                  "\"variant\": \"%s\", \"median_us\": %.1f, \"p10_us\": %.1f, \"p90_us\": %.1f, "
                  "\"tflops\": %.1f}",
                  model, m, d, h, swizzle, row.name.c_str(), us, double(row.us[kRuns / 10]),
                  double(row.us[kRuns * 9 / 10]), tflops);
    std::printf("%s\n", line);
    if (json != nullptr) std::fprintf(json, "%s%s", first ? "" : ",\n", line);
    first = false;
  }
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
}

// Rows of so many columns would end inside 16 bytes, behind which the TMA was seen to write.
bool refuses(const Instance& it, int m, int h, int k) {
  Buffer<__nv_bfloat16> operands(std::size_t(4) * 1024 * 1024);
  const auto gemm = it.make({.m = m,
                             .n = 2 * h,
                             .k = k,
                             .a = operands.data,
                             .b = operands.data,
                             .out = operands.data,
                             .out_stride = 160});
  std::printf("%s %-24s %dx%dx%d: %s\n", gemm ? "FAIL" : "pass", it.name.c_str(), m, 2 * h, k,
              gemm ? "taken" : "refused");
  return !gemm;
}

int main_of(int argc, char** argv) {
  const char* json_path = nullptr;
  bool timed = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else if (std::strcmp(argv[i], "--no-time") == 0) {
      timed = false;
    } else {
      std::fprintf(stderr, "usage: gated_gemm [--json FILE] [--no-time]\n");
      return 2;
    }
  }
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
    std::fprintf(stderr, "no GPU of compute capability 9.0\n");
    return 2;
  }
  std::printf("%s\n", device.name);
  bool good = !instances().empty();
  for (const Instance& it : instances()) {
    if (it.output != Output::kGatedBf16 && it.output != Output::kGatedE4m3) continue;
    // Half widths are multiples of every chunk; 192 and 320 end inside a tile of 128 columns.
    good &= check(it, 128, 256, 64);
    good &= check(it, 200, 192, 136);
    good &= check(it, 1, 320, 256);
    if (it.chunk <= 8 && !it.bias) good &= check(it, 77, 144, 72) && refuses(it, 77, 137, 72);
  }
  // Sequences of tiles on every CTA: the buffers are used again.
  for (const Instance& it : instances()) {
    if (it.name == "visitor_adjacent" || it.name == "visitor_chunk32") {
      good &= check(it, 2200, 2496, 64);
    }
  }
  if (good && timed) {
    std::FILE* json = json_path != nullptr ? std::fopen(json_path, "w") : nullptr;
    if (json_path != nullptr && json == nullptr) {
      std::perror(json_path);
      return 2;
    }
    if (json != nullptr) std::fprintf(json, "{\"device\": \"%s\", \"rows\": [\n", device.name);
    bool first = true;
    for (const int swizzle : {1, 8}) {
      time_all("llama-3.1-8b", 4096, 4096, 14336, swizzle, json, first);
      time_all("llama-3.1-70b", 4096, 8192, 28672, swizzle, json, first);
    }
    if (json != nullptr) {
      std::fprintf(json, "\n]}\n");
      std::fclose(json);
    }
  }
  std::printf("%s\n", good ? "all checks passed" : "CHECKS FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) { return example::main_of(argc, argv); }
