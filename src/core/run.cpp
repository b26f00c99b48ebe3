// SPDX-License-Identifier: Apache-2.0
// run(): hop 1, checks pointers against the plan. The variant's launch is hop 2.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "core/variant.hpp"
#include "sluice/plan.hpp"

#if defined(SLUICE_WITH_CUDA)
#include "cuda/device.hpp"
#endif

namespace sluice {
namespace {

using ll = long long;
constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

struct Span {
  const OperandSpec* spec = nullptr;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

bool writes(const OperandSpec& spec) {
  return spec.access == Access::kWrite || spec.access == Access::kReadWrite;
}

Status check_pointer(const OperandSpec& spec, const void* pointer, std::int64_t alignment) {
  if (pointer == nullptr) {
    if (!spec.required) return {};
    return make_error(kBad, "%s: got null, wanted a pointer to [%lld, %lld] %s", spec.name,
                      ll{spec.rows}, ll{spec.cols}, to_string(spec.dtype));
  }
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer);
  if (bits % static_cast<std::uintptr_t>(alignment) != 0) {
    return make_error(kBad, "%s: got pointer %p, wanted a multiple of alignment_bytes = %lld",
                      spec.name, pointer, ll{alignment});
  }
  const std::int64_t unit = alignment_of(spec.dtype);
  if (bits % static_cast<std::uintptr_t>(unit) != 0) {
    return make_error(kBad, "%s: got pointer %p, wanted a multiple of the %s's %lld bytes",
                      spec.name, pointer, is_block_type(spec.dtype) ? "scale" : "element",
                      ll{unit});
  }
  return {};
}

// Elementwise in-place use: same base, same layout.
bool may_alias(Operand a, Operand b) {
  const auto pair = [&](Operand p, Operand q) { return (a == p && b == q) || (a == q && b == p); };
  return pair(Operand::kY, Operand::kResidual) || pair(Operand::kDg, Operand::kG) ||
         pair(Operand::kDu, Operand::kU);
}

// A matrix as units (rows, or blocks of rows) at a fixed period, and each unit as parts (blocks of
// columns, or the rows of a block) at a fixed period. Lengths in bytes; period 0 means one part.
struct Pattern {
  std::int64_t unit_period = 0;
  std::int64_t unit_length = 0;
  std::int64_t part_period = 0;
  std::int64_t part_length = 0;
};

Pattern pattern_of(const OperandSpec& spec) {
  const Layout& l = spec.layout;
  const std::int64_t elem = size_bytes(spec.dtype);
  const std::int64_t width = bytes_of(spec.dtype, spec.cols);
  if (l.block_rows > 0) {
    const std::int64_t rows = std::min(l.block_rows, spec.rows);
    return {spec.rows > l.block_rows ? l.block_stride_bytes : 0,
            (rows - 1) * l.row_stride_bytes + width, rows > 1 ? l.row_stride_bytes : 0, width};
  }
  const std::int64_t period = spec.rows > 1 ? l.row_stride_bytes : 0;
  if (l.block_cols > 0) {
    const std::int64_t cols = std::min(l.block_cols, spec.cols);
    const std::int64_t last = (spec.cols - 1) / l.block_cols * l.col_block_stride_bytes;
    return {period, last + cols * elem, spec.cols > cols ? l.col_block_stride_bytes : 0,
            cols * elem};
  }
  return {period, width, 0, width};
}

// Do the parts of a unit of `later`, which begins `distance` bytes after a unit of `earlier`, all
// fall behind it or into the gaps between its parts?
bool units_clear(const Pattern& earlier, const Pattern& later, std::int64_t distance) {
  if (distance >= earlier.unit_length) return true;
  if (earlier.part_period <= 0) return false;
  const std::int64_t phase = distance % earlier.part_period;
  return phase >= earlier.part_length && phase + later.part_length <= earlier.part_period;
}

// Two matrices of one Layout whose extents overlap: do they interleave without touching? A unit of
// the higher one meets two of the lower one: the last that begins before it and the next.
bool interleave(const Span& low, const Span& high) {
  if (!(low.spec->layout == high.spec->layout)) return false;
  const Pattern a = pattern_of(*low.spec);
  const Pattern b = pattern_of(*high.spec);
  const auto shift = static_cast<std::int64_t>(high.begin - low.begin);
  const std::int64_t period = std::max(a.unit_period, b.unit_period);
  if (period <= 0) return units_clear(a, b, shift);
  const std::int64_t distance = shift % period;
  return units_clear(a, b, distance) && units_clear(b, a, period - distance);
}

Status check_overlap(const Span& a, const Span& b) {
  if (!writes(*a.spec) && !writes(*b.spec)) return {};
  if (a.end <= b.begin || b.end <= a.begin) return {};
  if (a.begin == b.begin && a.spec->layout == b.spec->layout && may_alias(a.spec->id, b.spec->id)) {
    return {};
  }
  if (a.begin <= b.begin ? interleave(a, b) : interleave(b, a)) return {};
  const bool a_written = writes(*a.spec);
  return make_error(kBad, "%s: the output overlaps %s (%lld bytes apart)",
                    (a_written ? a : b).spec->name, (a_written ? b : a).spec->name,
                    static_cast<ll>(b.begin) - static_cast<ll>(a.begin));
}

Status check_workspace(const Plan& plan, const Workspace& workspace) {
  if (plan.workspace_bytes == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < plan.workspace_bytes) {
    return make_error(kBad, "workspace: got %zu bytes, wanted %zu",
                      workspace.data == nullptr ? std::size_t{0} : workspace.bytes,
                      plan.workspace_bytes);
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    return make_error(kBad, "workspace: got pointer %p, wanted a multiple of %zu", workspace.data,
                      kWorkspaceAlignment);
  }
  return {};
}

Status check_operands(const Plan& plan, const Operands& operands) {
  const auto specs = operand_specs(plan.problem);
  std::array<Span, kOperandCount> spans;
  std::size_t count = 0;
  for (const OperandSpec& spec : specs) {
    if (spec.access == Access::kUnused) continue;
    const void* pointer = address(operands, spec.id);
    SLUICE_TRY(check_pointer(spec, pointer, plan.problem.alignment_bytes));
    if (pointer == nullptr) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const Span span{&spec, begin, begin + static_cast<std::uintptr_t>(extent_bytes(spec))};
    for (std::size_t i = 0; i < count; ++i) SLUICE_TRY(check_overlap(spans[i], span));
    spans[count++] = span;
  }
  return {};
}

}  // namespace

Status run(const Plan& plan, const Operands& operands, Workspace workspace,
           Stream stream) noexcept {
  if (plan.variant == nullptr) {
    return make_error(kBad, "plan: got an empty plan, wanted one that plan() returned");
  }
  if (plan.problem.m == 0) return {};
  SLUICE_TRY(check_operands(plan, operands));
  SLUICE_TRY(check_workspace(plan, workspace));
  char* base = static_cast<char*>(workspace.data);
  void* payload = plan.workspace_bytes == 0 ? nullptr : base + kWorkspaceHeaderBytes;
  return plan.variant->launch(plan, operands, payload, base, stream);
}

Status workspace_init(Workspace workspace, const Device& device, Stream stream) noexcept {
  if (workspace.data == nullptr || workspace.bytes < kWorkspaceHeaderBytes) {
    return make_error(kBad, "workspace: got %zu bytes, wanted at least %zu",
                      workspace.data == nullptr ? std::size_t{0} : workspace.bytes,
                      kWorkspaceHeaderBytes);
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    return make_error(kBad, "workspace: got pointer %p, wanted a multiple of %zu", workspace.data,
                      kWorkspaceAlignment);
  }
  if (device.backend == Backend::kCpu) {
    std::memset(workspace.data, 0, kWorkspaceHeaderBytes);
    return {};
  }
#if defined(SLUICE_WITH_CUDA)
  return cuda::zero_header(workspace.data, device, stream);
#else
  static_cast<void>(stream);
  return make_error(ErrorCode::kUnsupported, "device: this Sluice was built without CUDA");
#endif
}

}  // namespace sluice
