// SPDX-License-Identifier: Apache-2.0
// GEMMs with the gated node: checks every instance of this GPU's architecture against fp64 on the
// host, then times it beside the stock epilogue and beside GEMM + activation.
//   gated_gemm [--json FILE] [--no-time]
// Exit code: 0 all checks passed, 1 one failed, 2 usage or no GPU of compute capability 9 or 10.0.
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "cuda_memory.hpp"
#include "gemm.hpp"
#include "math/gate.hpp"

namespace example {

std::vector<Instance>& instances() {
  static std::vector<Instance> all;
  return all;
}

namespace {

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

// An operand as its format stores it, and the values that its bytes mean.
struct Operand {
  std::vector<unsigned char> bytes;
  std::vector<unsigned char> scales;
  std::vector<float> values;
};

float e4m3_value(unsigned char code) {
  __nv_fp8_e4m3 value;
  value.__x = code;
  return float(value);
}

void append_bf16(Operand& to, float v) {
  const __nv_bfloat16 rounded = __float2bfloat16(v);
  unsigned char bytes[2];
  std::memcpy(bytes, &rounded, 2);
  to.bytes.insert(to.bytes.end(), bytes, bytes + 2);
  to.values.push_back(__bfloat162float(rounded));
}

void append_e4m3(Operand& to, float v, float scale) {
  const __nv_fp8_e4m3 rounded(v / scale);
  to.bytes.push_back(rounded.__x);
  to.values.push_back(float(rounded) * scale);
}

// Two to a byte, the first in its lower half.
void append_e2m1(Operand& to, float v, float scale) {
  const __nv_fp4_e2m1 rounded(v / scale);
  if (to.values.size() % 2 == 0) {
    to.bytes.push_back(rounded.__x & 15U);
  } else {
    to.bytes.back() |= (unsigned char)(rounded.__x << 4U);
  }
  to.values.push_back(float(rounded) * scale);
}

// `rows` of k normal values, of deviation width(row).
template <class Width>
Operand draw(const Instance& it, int rows, int k, const std::vector<std::int64_t>& scales_at,
             std::mt19937& random, const Width& width) {
  std::normal_distribution<float> normal;
  Operand out;
  const int block = it.input == Input::kMxf8 ? 32 : it.input == Input::kNvf4 ? 16 : k;
  if (!scales_at.empty()) {
    // Whole atoms of 128 rows by 4 scales, which the kernel's tensor map covers.
    const std::int64_t last = *std::max_element(scales_at.begin(), scales_at.end());
    out.scales.resize(std::size_t(last / 512 + 1) * 512);
  }
  for (int row = 0; row < rows; ++row) {
    float scale = 1;
    for (int c = 0; c < k; ++c) {
      if (!scales_at.empty() && c % block == 0) {
        // The exponent of the width, or its double: scales differ from block to block.
        const int twice = int(random() & 1U);
        unsigned char code = 0;
        if (it.input == Input::kMxf8) {
          code = (unsigned char)(127 + std::ilogb(width(row)) + twice);
          scale = std::ldexp(1.0F, int(code) - 127);
        } else {
          code = __nv_fp8_e4m3(width(row) * float(1 + twice) / 2).__x;
          scale = e4m3_value(code);
        }
        out.scales[std::size_t(scales_at[std::size_t(row) * (k / block) + c / block])] = code;
      }
      const float v = normal(random) * width(row);
      switch (it.input) {
        case Input::kBf16:
          append_bf16(out, v);
          break;
        case Input::kE4m3:
        case Input::kMxf8:
          append_e4m3(out, v, scale);
          break;
        case Input::kNvf4:
          append_e2m1(out, v, scale);
          break;
      }
    }
  }
  return out;
}

// A sum of k products, behind two scales, and a bias: its error as a share of the sum of their
// sizes. K roundings of 2^-24, and one bit less for what the tensor core truncates; e4m3 on Hopper
// keeps 13 bits of a sum of 32 products.
double sum_error(const Instance& it, int k) {
  if (it.capability == 9 && it.input == Input::kE4m3) return (k / 32 + 2) * std::ldexp(1, -13);
  return (k + 4) * std::ldexp(1, -23);
}

// A sum over tokens or columns, in whatever order: what it should be, and by how much its terms and
// its own roundings may miss.
struct Total {
  double value = 0;
  double error = 0;
  int terms = 0;

  void add(double term, double bound) {
    value += term;
    error += bound + std::ldexp(std::abs(term), -20);
    ++terms;
  }
  [[nodiscard]] bool holds(float got) const {
    return std::abs(double(got) - value) <= error + terms * std::ldexp(value, -23);
  }
};

// How many of the sums are wrong. Each is of what is not negative.
std::size_t wrong_sums(const std::vector<Total>& wanted, const Buffer<float>& sums) {
  std::vector<float> got(wanted.size());
  CUDA_OK(cudaMemcpy(got.data(), sums.data, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += !wanted[i].holds(got[i]);
  return wrong;
}

bool is_chain(const Instance& it) {
  return it.output == Output::kChainBf16 || it.output == Output::kReducedBf16;
}

// Every out element is compared; padding of rows and rows past M must keep their poison.
bool check(const Instance& it, int m, int half, int k, int batches = 1) {
  if (it.input != Input::kBf16) k = (k + 127) / 128 * 128;  // whole 16 bytes and blocks
  const int n = 2 * half;
  const bool fp8 = it.output == Output::kGatedE4m3;
  const bool chain = is_chain(it);
  const bool reduced = it.output == Output::kReducedBf16;
  const bool scaled = it.output == Output::kScaledBf16;
  const int columns = chain ? n : half;
  const int element = fp8 ? 1 : 2;
  const int stride = (columns + 31) / 32 * 32 + 32;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  // Gate and up differ in size, so that an exchange of the two shows.
  std::vector<float> width(n);
  std::vector<float> bias(n);
  for (int i = 0; i < half; ++i) {
    for (const bool up : {false, true}) {
      const int row = wide_column(it, i, up);
      bias[row] = it.bias ? normal(random) : 0;
      width[row] = (up ? 3.0F : 1.5F) / std::sqrt(float(k));
    }
  }
  std::vector<float> token_scales(m, 1);
  std::vector<float> column_scales(n, 1);
  for (float& s : token_scales) s = reduced || scaled ? 0.5F + std::abs(normal(random)) : 1;
  for (float& s : column_scales) s = scaled ? 0.5F + std::abs(normal(random)) : 1;
  std::vector<Total> token_sums(m);
  std::vector<Total> column_sums(n);
  std::vector<Total> sum_of_all(1);
  std::vector<std::int64_t> scales_at[2];
  if (it.scale_offsets != nullptr) {
    for (const bool of_b : {false, true}) scales_at[of_b] = it.scale_offsets(m, n, k, of_b);
  }
  const Operand a = draw(it, batches * m, k, scales_at[0], random, [](int) { return 1.0F; });
  const Operand b =
      draw(it, batches * n, k, scales_at[1], random, [&](int row) { return width[row % n]; });
  const std::size_t bytes = std::size_t(batches) * (m + 2) * stride * element;
  const unsigned char poison = 0xFF;  // NaN in bf16 and in e4m3
  Buffer<unsigned char> d_a(a.bytes);
  Buffer<unsigned char> d_b(b.bytes);
  Buffer<unsigned char> d_a_scales(a.scales);
  Buffer<unsigned char> d_b_scales(b.scales);
  Buffer<float> d_bias(bias);
  Buffer<float> d_token_scales(token_scales);
  Buffer<float> d_column_scales(column_scales);
  Buffer<float> d_token_sums{std::size_t(m)};
  Buffer<float> d_column_sums{std::size_t(n)};
  Buffer<float> d_sum(std::vector<float>(1, 0));
  Buffer<unsigned char> d_out(bytes);
  CUDA_OK(cudaMemset(d_out.data, poison, bytes));
  Call call{.m = m,
            .n = n,
            .k = k,
            .a = d_a.data,
            .b = d_b.data,
            .a_scales = d_a_scales.data,
            .b_scales = d_b_scales.data,
            .out = d_out.data,
            .out_stride = stride,
            .batches = batches,
            .out_batch_stride = std::int64_t(m + 2) * stride,
            .bias = d_bias.data,
            .token_scales = d_token_scales.data,
            .column_scales = d_column_scales.data,
            .token_sums = d_token_sums.data,
            .column_sums = d_column_sums.data,
            .sum = d_sum.data,
            .gate = {.alpha = 1.702F,
                     .limit = 2.5F,
                     .up_offset = 1.0F,
                     .gate_multiplier = 0.5F,
                     .output_multiplier = 1.5F},
            .scale = 4};
  auto gemm = it.make(call);
  const bool ran = gemm && gemm->run(nullptr) && cudaDeviceSynchronize() == cudaSuccess;
  if (!ran) {
    std::printf("FAIL %-22s %dx%dx%dx%d: refused or failed: %s\n", it.name.c_str(), batches, m, n,
                k, cudaGetErrorString(cudaGetLastError()));
    return false;
  }
  std::vector<unsigned char> out(bytes);
  CUDA_OK(cudaMemcpy(out.data(), d_out.data, bytes, cudaMemcpyDeviceToHost));

  std::size_t wrong = 0;
  std::size_t touched = 0;
  double worst = 0;  // error as a share of its bound
  for (int at_row = 0; at_row < batches * (m + 2); ++at_row) {
    const int batch = at_row / (m + 2);
    const int r = at_row % (m + 2);
    for (int c = 0; c < stride; ++c) {
      const unsigned char* at = &out[(std::size_t(at_row) * stride + c) * element];
      if (r >= m || c >= columns) {
        touched += std::count(at, at + element, poison) != element;
        continue;
      }
      double sum[2] = {};
      double size[2] = {};
      for (int up = 0; up < (chain ? 1 : 2); ++up) {
        const int row = chain ? c : wide_column(it, c, up != 0);
        const double scale =
            (chain ? double(call.scale) : 1) * double(token_scales[r]) * double(column_scales[row]);
        const float* x = &a.values[(std::size_t(batch) * m + r) * k];
        const float* w = &b.values[(std::size_t(batch) * n + row) * k];
        for (int i = 0; i < k; ++i) {
          const double product = scale * x[i] * w[i];
          sum[up] += product;
          size[up] += std::abs(product);
        }
        sum[up] += bias[row];
        size[up] += std::abs(bias[row]);
      }
      double want = chain ? std::max(sum[0], 0.0) : act(it, call.gate, sum[0], sum[1]);
      // Gates here have slopes below 1.2 · 0.75 in g, and are at most |g| + 1 in size: times 1.5
      // and up + 1. A chain has its first term alone.
      const double sums = sum_error(it, k);
      double bound =
          1.5 * sums * ((std::abs(sum[1]) + 1) * 1.2 * size[0] + (std::abs(sum[0]) + 1) * size[1]) +
          std::ldexp(1, -20) * (std::abs(sum[0]) + 1) * (std::abs(sum[1]) + 1);
      if (reduced) {
        for (Total* const total : {&token_sums[r], &column_sums[c], &sum_of_all[0]}) {
          total->add(want, bound);
        }
      }
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
  if (reduced) {
    wrong += wrong_sums(token_sums, d_token_sums) + wrong_sums(column_sums, d_column_sums) +
             wrong_sums(sum_of_all, d_sum);
  }
  const bool good = wrong == 0 && touched == 0;
  std::printf("%s %-22s %dx%dx%dx%d: worst %.3f of the bound, %zu wrong, %zu written outside\n",
              good ? "pass" : "FAIL", it.name.c_str(), batches, m, n, k, worst, wrong, touched);
  return good;
}

// Rows of so many columns would end inside 16 bytes, behind which the TMA was seen to write.
bool refuses(const Instance& it, int m, int h, int k) {
  Buffer<__nv_bfloat16> operands(std::size_t(4) * 1024 * 1024);
  const auto gemm = it.make({.m = m,
                             .n = 2 * h,
                             .k = k,
                             .a = operands.data,
                             .b = operands.data,
                             .a_scales = operands.data,
                             .b_scales = operands.data,
                             .out = operands.data,
                             .out_stride = 160});
  std::printf("%s %-24s %dx%dx%d: %s\n", gemm ? "FAIL" : "pass", it.name.c_str(), m, 2 * h, k,
              gemm ? "taken" : "refused");
  return !gemm;
}

// A gated node without an output stores nothing, and the GEMM runs: nothing is written at null.
bool leaves_out(const Instance& it, int m, int h, int k) {
  Buffer<__nv_bfloat16> operands(std::size_t(4) * 1024 * 1024);
  const auto gemm = it.make(
      {.m = m, .n = 2 * h, .k = k, .a = operands.data, .b = operands.data, .out_stride = h});
  const bool good = gemm && gemm->run(nullptr) && cudaDeviceSynchronize() == cudaSuccess;
  std::printf("%s %-22s %dx%dx%d without an output\n", good ? "pass" : "FAIL", it.name.c_str(), m,
              2 * h, k);
  return good;
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
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess ||
      (device.major != 9 && (device.major != 10 || device.minor != 0))) {
    std::fprintf(stderr, "no GPU of compute capability 9 or 10.0\n");
    return 2;
  }
  std::printf("%s\n", device.name);
  int checked = 0;
  bool good = true;
  for (const Instance& it : instances()) {
    if (it.capability != device.major) continue;
    if (it.output == Output::kWideBf16 || it.output == Output::kWideE4m3) continue;
    ++checked;
    // Half widths are multiples of every chunk; 192 and 320 end inside a tile of 128 columns.
    good &= check(it, 128, 256, 64);
    good &= check(it, 200, 192, 136);
    good &= check(it, 1, 320, 256);
    if (it.chunk <= 8 && !it.bias) {
      if (it.output == Output::kGatedBf16 || it.capability == 9) good &= check(it, 77, 144, 72);
      good &= refuses(it, 77, 137, it.input == Input::kBf16 ? 72 : 128);
    }
    const bool plain = !it.bias && it.scale_offsets == nullptr;
    if (plain && (it.output == Output::kGatedBf16 || it.output == Output::kGatedE4m3)) {
      good &= check(it, 130, 192, 72, 3);  // tails in every batch
      if (it.capability == 9) good &= leaves_out(it, 130, 192, 128);
    }
    // Sequences of tiles on every CTA: the buffers are used again.
    const bool carries = it.output == Output::kReducedBf16 || it.output == Output::kScaledBf16;
    if (carries || (!it.bias && it.act == Act::kSilu)) good &= check(it, 2200, 2496, 64);
  }
  good &= checked > 0;
  if (good && timed && !time_instances(device.major, device.name, json_path)) return 2;
  std::printf("%s\n", good ? "all checks passed" : "CHECKS FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) { return example::main_of(argc, argv); }
