// SPDX-License-Identifier: Apache-2.0
#include "tune/key.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "sluice/operands.hpp"
#include "sluice/version.hpp"
#include "tune/build_id.hpp"
#include "tune/cursor.hpp"

namespace sluice::tune {
namespace {

// A new member of Problem that changes a kernel's time belongs in ProblemKey: see to it, then set
// the size.
static_assert(sizeof(void*) != 8 || sizeof(Problem) == 680);

constexpr std::string_view kCublasLt = ", cuBLASLt ";  // in driver_text(), before the version

constexpr std::uint64_t kFnvBasis = 0xCBF29CE484222325ULL;
constexpr std::uint64_t kFnvPrime = 0x100000001B3ULL;

std::uint64_t mix(std::uint64_t sum, std::int64_t value) {
  return (sum ^ static_cast<std::uint64_t>(value)) * kFnvPrime;
}

// What an operand adds to the key.
void add_operand(const OperandSpec& spec, ProblemKey& key) {
  const auto dtype = static_cast<std::uint8_t>(spec.dtype);
  switch (spec.id) {
    case Operand::kWGate:
    case Operand::kWDown:
      key.w_dtype = dtype;
      key.block_rows = std::max(key.block_rows, spec.layout.block_rows);
      break;
    case Operand::kY:
    case Operand::kDy:
      key.y_dtype = dtype;
      break;
    case Operand::kDwGate:
      key.dw_dtype = dtype;
      break;
    default:
      break;
  }
  key.block_cols = std::max(key.block_cols, spec.layout.block_cols);
  const Layout& l = spec.layout;
  key.layout = mix(key.layout, static_cast<std::int64_t>(spec.id));
  for (const std::int64_t part : {l.row_stride_bytes, l.block_rows, l.block_stride_bytes,
                                  l.block_cols, l.col_block_stride_bytes}) {
    key.layout = mix(key.layout, part);
  }
}

std::uint8_t bit(bool set, unsigned value) { return static_cast<std::uint8_t>(set ? value : 0U); }

// Printable ASCII; what a driver may call itself has no tabs and line breaks in a table.
std::string printable(const char* text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

}  // namespace

bool ProblemKey::same_kind(const ProblemKey& o) const noexcept {
  return op == o.op && x_dtype == o.x_dtype && w_dtype == o.w_dtype && y_dtype == o.y_dtype &&
         dw_dtype == o.dw_dtype && norm == o.norm && flags == o.flags && threads == o.threads &&
         block_rows == o.block_rows && block_cols == o.block_cols;
}

bool ProblemKey::same_shape(const ProblemKey& o) const noexcept {
  ProblemKey at_m = o;
  at_m.m = m;
  return at_m == *this;
}

ProblemKey key_of(const Problem& problem, const Device& device) noexcept {
  // What is timed of a sum over ranks is what precedes it, to which nothing is added.
  Problem p = problem;
  if (p.reduce.kind != ReduceKind::kNone) {
    p.reduce = {};
    p.bias_down = false;
    p.residual = Residual::kNone;
  }
  ProblemKey key;
  key.op = static_cast<std::uint8_t>(p.op);
  key.x_dtype = static_cast<std::uint8_t>(p.x_dtype);
  key.norm = !p.norm.enabled ? 0 : p.norm.add ? 2 : 1;
  key.flags =
      static_cast<std::uint8_t>(bit(p.save_g_u, 1) | bit(p.recompute, 2) | bit(p.accumulate_dw, 4) |
                                bit(p.weights_static, 8) | bit(p.save_dg_du, 16));
  key.threads = device.backend == Backend::kCpu ? device.threads : 0;
  key.d = p.op == Op::kGateMul || p.op == Op::kGateMulGrad ? 0 : p.d;
  key.h = p.op == Op::kNorm ? 0 : p.h;
  key.m = p.m;
  key.activation = static_cast<std::uint8_t>(p.gate.activation);
  key.adds = static_cast<std::uint8_t>(bit(p.bias_gate_up, 1) | bit(p.bias_down, 2) |
                                       4U * static_cast<unsigned>(p.residual));
  // Copies go by 16 bytes at most; a larger promise changes nothing.
  key.alignment_bytes = static_cast<std::int32_t>(std::min<std::int64_t>(p.alignment_bytes, 16));
  key.layout = kFnvBasis;
  for (const OperandSpec& spec : operand_specs(p)) {
    if (spec.access != Access::kUnused) add_operand(spec, key);
  }
  return key;
}

std::string to_text(const ProblemKey& k) {
  char text[320];
  std::snprintf(text, sizeof(text),
                "%s %lldx%lldx%lld %s/%s/%s/%s %s threads=%d norm=%d flags=%d adds=%d "
                "blocks=%lld/%lld align=%d layout=%016llx",
                to_string(static_cast<Op>(k.op)), static_cast<long long>(k.m),
                static_cast<long long>(k.d), static_cast<long long>(k.h),
                to_string(static_cast<DType>(k.x_dtype)), to_string(static_cast<DType>(k.w_dtype)),
                to_string(static_cast<DType>(k.y_dtype)), to_string(static_cast<DType>(k.dw_dtype)),
                to_string(static_cast<Activation>(k.activation)), k.threads, int{k.norm},
                int{k.flags}, int{k.adds}, static_cast<long long>(k.block_rows),
                static_cast<long long>(k.block_cols), k.alignment_bytes,
                static_cast<unsigned long long>(k.layout));
  return text;
}

std::optional<ProblemKey> parse_key(std::string_view text) {
  ProblemKey k;
  Cursor at(text);
  at.name<Op>(k.op, kOpCount).literal(" ").number(k.m).literal("x").number(k.d).literal("x");
  at.number(k.h).literal(" ").name<DType>(k.x_dtype, kDTypeCount).literal("/");
  at.name<DType>(k.w_dtype, kDTypeCount).literal("/").name<DType>(k.y_dtype, kDTypeCount);
  at.literal("/").name<DType>(k.dw_dtype, kDTypeCount).literal(" ");
  at.name<Activation>(k.activation, kActivationCount).literal(" threads=").number(k.threads);
  at.literal(" norm=").number(k.norm).literal(" flags=").number(k.flags);
  at.literal(" adds=").number(k.adds).literal(" blocks=").number(k.block_rows).literal("/");
  at.number(k.block_cols).literal(" align=").number(k.alignment_bytes);
  at.literal(" layout=").number(k.layout, 16);
  // Printing it again refuses leading zeros, and whatever else has two spellings.
  const bool has_h = static_cast<Op>(k.op) != Op::kNorm;
  if (!at.finished() || k.m < 1 || k.d < 0 || (k.h < 1) == has_h || to_text(k) != text) {
    return std::nullopt;
  }
  return k;
}

std::string device_text(const Device& d) {
  char text[256];
  if (d.backend == Backend::kCuda) {
    std::snprintf(text, sizeof(text), "cuda %s, %d.%d, %d SMs", d.name, d.compute_capability / 10,
                  d.compute_capability % 10, d.sm_count);
  } else {
    std::snprintf(text, sizeof(text), "cpu %s, SIMD %u, caches %lld %lld %lld", d.name,
                  d.simd_targets, static_cast<long long>(d.l1d_bytes),
                  static_cast<long long>(d.l2_bytes), static_cast<long long>(d.l3_bytes));
  }
  return printable(text);
}

std::string driver_text(const Device& d) {
  if (d.backend == Backend::kCpu) return "-";
  std::string text = "driver " + std::to_string(d.driver_version) + ", runtime " +
                     std::to_string(d.runtime_version);
  if (d.cublaslt_version != 0) text.append(kCublasLt) += std::to_string(d.cublaslt_version);
  return text;
}

int cublaslt_version_of(std::string_view driver_text) noexcept {
  const std::size_t at = driver_text.find(kCublasLt);
  int version = 0;
  if (at == std::string_view::npos) return 0;
  const bool whole = Cursor(driver_text.substr(at + kCublasLt.size())).number(version).finished();
  return whole ? version : 0;
}

std::string_view without_cublaslt(std::string_view driver_text) noexcept {
  return driver_text.substr(0, driver_text.find(kCublasLt));
}

std::string build_text() { return printable(SLUICE_VERSION " " SLUICE_BUILD_ID); }

bool same_device(const Device& a, const Device& b) noexcept {
  const bool same_kind = a.backend == b.backend && std::strcmp(a.name, b.name) == 0;
  if (a.backend == Backend::kCuda) {
    return same_kind && a.compute_capability == b.compute_capability && a.sm_count == b.sm_count &&
           a.driver_version == b.driver_version && a.runtime_version == b.runtime_version &&
           a.cublaslt_version == b.cublaslt_version;
  }
  return same_kind && a.simd_targets == b.simd_targets && a.l1d_bytes == b.l1d_bytes &&
         a.l2_bytes == b.l2_bytes && a.l3_bytes == b.l3_bytes;
}

std::uint64_t checksum(std::string_view bytes) noexcept {
  std::uint64_t sum = kFnvBasis;
  for (const char byte : bytes) {
    sum = (sum ^ static_cast<unsigned char>(byte)) * kFnvPrime;
  }
  return sum;
}

}  // namespace sluice::tune
