// SPDX-License-Identifier: Apache-2.0
// What Sm100GatedVisitor makes of one row of accumulators, on the host, before it rounds: every
// chunk and order, with and without a scale, against the formula, column by column. Exit code: 0
// all right, 1 not.
#include <cmath>
#include <cstdio>

#include "sluice/cutlass/gated_visitor.hpp"
#include "sluice/cutlass/sm100_gated_visitor.hpp"

namespace {

using sluice::cutlass::GateOrder;
using sluice::cutlass::HardSwishGate;
using sluice::cutlass::LeakyReluGate;
using sluice::cutlass::PlainGate;
using sluice::cutlass::Sm100GatedVisitor;
using sluice::cutlass::TanhGate;

bool good = true;

// The gate by its definition, in double.
template <sluice::Activation kActivation>
double value(PlainGate<kActivation>, double g, double u) {
  switch (kActivation) {
    case sluice::Activation::kSilu:
      return g / (1 + std::exp(-g)) * u;
    case sluice::Activation::kGeluTanh:
      return g / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g))) *
             u;
    case sluice::Activation::kGeluErf:
      return g / 2 * (1 + std::erf(g / std::sqrt(2.0))) * u;
    case sluice::Activation::kRelu:
      return std::fmax(g, 0) * u;
    case sluice::Activation::kSigmoid:
      return 1 / (1 + std::exp(-g)) * u;
    case sluice::Activation::kIdentity:
      return g * u;
  }
  return 0;
}
double value(TanhGate, double g, double u) { return std::tanh(g) * u; }
double value(HardSwishGate, double g, double u) {
  return g * std::fmin(std::fmax(g + 3, 0), 6) / 6 * u;
}
double value(LeakyReluGate gate, double g, double u) {
  return (g < 0 ? double(gate.slope) * g : g) * u;
}

template <class Element, class Act, int Chunk, GateOrder Order>
void check(const char* name) {
  constexpr int kWide = 2 * Chunk > 64 ? 2 * Chunk : 64;
  using Node = Sm100GatedVisitor<Element, Act, Chunk, Order>;
  const double scale = sizeof(Element) == 1 ? 3 : 1;  // 2-byte types take none
  cutlass::Array<float, kWide> wide;
  // No two alike, of both signs.
  for (int i = 0; i < kWide; ++i) {
    wide[i] = float((i * 37) % 97 - 48) / (i % 5 == 0 ? 1.0F : 16.0F) + 0.01F * float(i);
  }
  const auto h = Node::template halve<kWide>({}, 3.0F, wide);
  int wrong = 0;
  for (int i = 0; i < kWide / 2; ++i) {
    const int first = i / Chunk * 2 * Chunk + i % Chunk;
    const bool gate_first = Order == GateOrder::kGateFirst;
    const double g = double(wide[gate_first ? first : first + Chunk]);
    const double u = double(wide[gate_first ? first + Chunk : first]);
    const double want = value(Act{}, g, u) * scale;
    const double bound = std::ldexp(1, -20) * scale * (std::abs(g) + 1) * (std::abs(u) + 1);
    wrong += !(std::abs(double(h[i]) - want) <= bound);
  }
  std::printf("%s %s, chunk %d, %s first\n", wrong == 0 ? "pass" : "FAIL", name, Chunk,
              Order == GateOrder::kGateFirst ? "gate" : "up");
  good &= wrong == 0;
}

template <class Element, class Act, int... kChunks>
void check_chunks(const char* name) {
  (check<Element, Act, kChunks, GateOrder::kGateFirst>(name), ...);
  (check<Element, Act, kChunks, GateOrder::kUpFirst>(name), ...);
}

}  // namespace

int main() {
  using sluice::Activation;
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kSilu>, 1, 8, 16, 32, 64>("silu");
  check_chunks<cutlass::float_e4m3_t, PlainGate<Activation::kSilu>, 1, 8, 16, 32, 64>(
      "silu, scaled");
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kGeluTanh>, 1, 32>("gelu_tanh");
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kGeluErf>, 1, 32>("gelu_erf");
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kRelu>, 1, 32>("relu");
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kSigmoid>, 1, 32>("sigmoid");
  check_chunks<cutlass::bfloat16_t, PlainGate<Activation::kIdentity>, 1, 32>("identity");
  check_chunks<cutlass::bfloat16_t, TanhGate, 1, 32>("tanh");
  check_chunks<cutlass::bfloat16_t, HardSwishGate, 1, 32>("hard swish");
  check_chunks<cutlass::bfloat16_t, LeakyReluGate, 1, 32>("leaky relu");
  return good ? 0 : 1;
}
