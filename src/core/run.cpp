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

// Where an operand lies. Specs are asked for again where two of these meet, which is rare, and not
// kept for every run.
struct Span {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  Operand id{};
  bool written = false;
};

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
bool interleave(const OperandSpec& low, const OperandSpec& high, std::uintptr_t distance_bytes) {
  if (!(low.layout == high.layout)) return false;
  const Pattern a = pattern_of(low);
  const Pattern b = pattern_of(high);
  const auto shift = static_cast<std::int64_t>(distance_bytes);
  const std::int64_t period = std::max(a.unit_period, b.unit_period);
  if (period <= 0) return units_clear(a, b, shift);
  const std::int64_t distance = shift % period;
  return units_clear(a, b, distance) && units_clear(b, a, period - distance);
}

Status check_overlap(const Problem& problem, const Span& a, const Span& b) {
  if (!a.written && !b.written) return {};
  if (a.end <= b.begin || b.end <= a.begin) return {};
  const OperandSpec spec_a = operand_spec(problem, a.id);
  const OperandSpec spec_b = operand_spec(problem, b.id);
  if (a.begin == b.begin && spec_a.layout == spec_b.layout && may_alias(a.id, b.id)) return {};
  if (a.begin <= b.begin ? interleave(spec_a, spec_b, b.begin - a.begin)
                         : interleave(spec_b, spec_a, a.begin - b.begin)) {
    return {};
  }
  return make_error(kBad, "%s: the output overlaps %s (%lld bytes apart)",
                    (a.written ? spec_a : spec_b).name, (a.written ? spec_b : spec_a).name,
                    static_cast<ll>(b.begin) - static_cast<ll>(a.begin));
}

Status check_workspace_bytes(const Workspace& workspace, std::size_t wanted) {
  const std::size_t got = workspace.data == nullptr ? 0 : workspace.bytes;
  if (got >= wanted) return {};
  return make_error(kBad, "workspace: got %zu bytes, wanted at least %zu", got, wanted);
}

Status check_workspace_pointer(const char* name, const void* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % kWorkspaceAlignment == 0) return {};
  return make_error(kBad, "%s: got pointer %p, wanted a multiple of %zu", name, pointer,
                    kWorkspaceAlignment);
}

// Where the operands of a run lie, those that were given.
struct Spans {
  std::array<Span, kOperandCount> of;
  std::size_t count = 0;
};

// Everything that a workspace's bytes overlap is overwritten, inputs too.
Status check_workspace_apart(const Plan& plan, const Spans& spans, const char* name,
                             const void* pointer, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  for (std::size_t k = 0; k < spans.count; ++k) {
    const Span& span = spans.of[k];
    if (begin >= span.end || span.begin >= begin + bytes) continue;
    return make_error(kBad, "%s: overlaps %s (%lld bytes apart)", name,
                      operand_spec(plan.problem, span.id).name,
                      static_cast<ll>(begin) - static_cast<ll>(span.begin));
  }
  return {};
}

Status check_workspace(const Plan& plan, const Workspace& workspace, const Spans& spans) {
  if (plan.workspace_bytes == 0) return {};
  const std::size_t apart = workspace.header == nullptr ? 0 : kWorkspaceHeaderBytes;
  const std::size_t bytes = plan.workspace_bytes - apart;
  SLUICE_TRY(check_workspace_bytes(workspace, bytes));
  SLUICE_TRY(check_workspace_pointer("workspace", workspace.data));
  SLUICE_TRY(check_workspace_pointer("workspace.header", workspace.header));
  SLUICE_TRY(check_workspace_apart(plan, spans, "workspace", workspace.data, bytes));
  if (apart == 0) return {};
  return check_workspace_apart(plan, spans, "workspace.header", workspace.header, apart);
}

Status check_operands(const Plan& plan, const Operands& operands, Spans& spans) {
  for (int i = 0; i < kOperandCount; ++i) {
    const auto id = static_cast<Operand>(i);
    if (!is_used(plan.problem, id)) continue;
    const OperandSpec spec = operand_spec(plan.problem, id);
    const void* pointer = address(operands, id);
    SLUICE_TRY(check_pointer(spec, pointer, plan.problem.alignment_bytes));
    if (pointer == nullptr) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const Span span{begin, begin + static_cast<std::uintptr_t>(extent_bytes(spec)), id,
                    spec.access != Access::kRead};
    for (std::size_t k = 0; k < spans.count; ++k) {
      SLUICE_TRY(check_overlap(plan.problem, spans.of[k], span));
    }
    spans.of[spans.count++] = span;
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
  Spans spans;
  SLUICE_TRY(check_operands(plan, operands, spans));
  SLUICE_TRY(check_workspace(plan, workspace, spans));
  if (plan.workspace_bytes == 0) {
    return plan.variant->launch(plan, operands, nullptr, nullptr, stream);
  }
  char* const data = static_cast<char*>(workspace.data);
  const bool apart = workspace.header != nullptr;
  return plan.variant->launch(plan, operands, apart ? data : data + kWorkspaceHeaderBytes,
                              apart ? workspace.header : data, stream);
}

Status workspace_init(Workspace workspace, const Device& device, Stream stream) noexcept {
  void* header = workspace.header;
  if (header == nullptr) {
    SLUICE_TRY(check_workspace_bytes(workspace, kWorkspaceHeaderBytes));
    header = workspace.data;
  }
  SLUICE_TRY(check_workspace_pointer("workspace", header));
  if (device.backend == Backend::kCpu) {
    std::memset(header, 0, kWorkspaceHeaderBytes);
    return {};
  }
#if defined(SLUICE_WITH_CUDA)
  return cuda::zero_header(header, device, stream);
#else
  static_cast<void>(stream);
  return make_error(ErrorCode::kUnsupported, "device: this Sluice was built without CUDA");
#endif
}

}  // namespace sluice
