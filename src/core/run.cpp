// SPDX-License-Identifier: Apache-2.0
// run(): hop 1, checks pointers against the plan and binds them to its steps. A kernel's launch is
// hop 2.
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "core/lower.hpp"
#include "core/overlap.hpp"
#include "sluice/plan.hpp"

#if defined(SLUICE_WITH_CUDA)
#include "cuda/host/device.hpp"
#endif

namespace sluice {
namespace {

using ll = long long;
constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

// Where an operand lies, or memory that has to lie apart from all else. Specs are asked for again
// where two operands meet, which is rare, and not kept for every run.
struct Span {
  const char* name = nullptr;
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  Operand id{};
  bool written = false;

  // Differences wrap: no end, which a caller's count of bytes may put beyond all memory.
  [[nodiscard]] bool meets(const Span& other) const {
    return other.begin - begin < bytes || begin - other.begin < other.bytes;
  }
};

// What lies where in a run, of what was given.
struct Spans {
  std::array<Span, kOperandCount + kMaxRanks + 2> of;  // two: the workspace and its header
  std::size_t count = 0;
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

Status check_overlap(const Problem& problem, const Span& a, const Span& b) {
  if (!a.written && !b.written) return {};
  if (!a.meets(b)) return {};
  const OperandSpec spec_a = operand_spec(problem, a.id);
  const OperandSpec spec_b = operand_spec(problem, b.id);
  if (a.begin == b.begin && spec_a.layout == spec_b.layout && may_alias(a.id, b.id)) return {};
  const auto distance = static_cast<std::int64_t>(b.begin - a.begin);
  if (distance >= 0 ? detail::share_no_byte(spec_a, spec_b, distance)
                    : detail::share_no_byte(spec_b, spec_a, -distance)) {
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

// Adds memory that has to lie apart: what it overlaps would be overwritten, inputs too.
Status add_apart(Spans& spans, const char* name, const void* pointer, std::size_t bytes) {
  const Span added{name, reinterpret_cast<std::uintptr_t>(pointer), bytes};
  for (std::size_t k = spans.count; k-- > 0;) {
    const Span& span = spans.of[k];
    if (!added.meets(span)) continue;
    return make_error(kBad, "%s: overlaps %s (%lld bytes apart)", name, span.name,
                      static_cast<ll>(added.begin) - static_cast<ll>(span.begin));
  }
  spans.of[spans.count++] = added;
  return {};
}

Status check_workspace(const Plan& plan, const Workspace& workspace, Spans& spans) {
  if (plan.workspace_bytes == 0) return {};
  const std::size_t apart = workspace.header == nullptr ? 0 : kWorkspaceHeaderBytes;
  const std::size_t bytes = plan.workspace_bytes - apart;
  SLUICE_TRY(check_workspace_bytes(workspace, bytes));
  SLUICE_TRY(check_workspace_pointer("workspace", workspace.data));
  SLUICE_TRY(check_workspace_pointer("workspace.header", workspace.header));
  SLUICE_TRY(add_apart(spans, "workspace", workspace.data, bytes));
  if (apart == 0) return {};
  return add_apart(spans, "workspace.header", workspace.header, apart);
}

Status check_peers(const Plan& plan, const Peers* peers, Spans& spans) {
  static constexpr const char* kNames[kMaxRanks] = {
      "peers.buffers[0]", "peers.buffers[1]", "peers.buffers[2]", "peers.buffers[3]",
      "peers.buffers[4]", "peers.buffers[5]", "peers.buffers[6]", "peers.buffers[7]"};
  if (plan.peer_bytes == 0) return {};
  const Reduce& reduce = plan.problem.reduce;
  if (peers == nullptr) {
    return make_error(kBad, "peers: got null, wanted the buffers of %d ranks", reduce.world);
  }
  if (peers->bytes < plan.peer_bytes || peers->bytes % (2 * kPeerAlignment) != 0) {
    return make_error(kBad, "peers.bytes: got %zu, wanted at least %zu, a multiple of %zu",
                      peers->bytes, plan.peer_bytes, 2 * kPeerAlignment);
  }
  constexpr std::int64_t kMostMicroseconds = std::numeric_limits<std::int64_t>::max() / 1000;
  if (peers->time_limit_us < 0 || peers->time_limit_us > kMostMicroseconds) {
    return make_error(kBad, "peers.time_limit_us: got %lld, wanted 0 to %lld",
                      ll{peers->time_limit_us}, ll{kMostMicroseconds});
  }
  for (int r = 0; r < reduce.world; ++r) {
    const void* const buffer = peers->buffers[r];
    if (buffer == nullptr || reinterpret_cast<std::uintptr_t>(buffer) % kPeerAlignment != 0) {
      return make_error(kBad, "%s: got %p, wanted a multiple of %zu, not null", kNames[r], buffer,
                        kPeerAlignment);
    }
    SLUICE_TRY(add_apart(spans, kNames[r], buffer, peers->bytes));
  }
  return {};
}

Status check_operands(const Plan& plan, const Operands& operands, Spans& spans) {
  for (int i = 0; i < kOperandCount; ++i) {
    const auto id = static_cast<Operand>(i);
    if (!is_used(plan.problem, id)) continue;
    const OperandSpec spec = operand_spec(plan.problem, id);
    const void* pointer = address(operands, id);
    SLUICE_TRY(check_pointer(spec, pointer, plan.problem.alignment_bytes));
    if (pointer == nullptr) continue;
    const Span span{spec.name, reinterpret_cast<std::uintptr_t>(pointer),
                    static_cast<std::size_t>(extent_bytes(spec)), id, spec.access != Access::kRead};
    for (std::size_t k = 0; k < spans.count; ++k) {
      SLUICE_TRY(check_overlap(plan.problem, spans.of[k], span));
    }
    spans.of[spans.count++] = span;
  }
  return {};
}

// du and dw_up come together.
Status check_pair(const Plan& plan, const Operands& operands) {
  if (plan.problem.op != Op::kWeightGrad ||
      (operands.du == nullptr) == (operands.dw_up == nullptr)) {
    return {};
  }
  return make_error(kBad, "%s: got null beside %s, wanted both or none",
                    operands.du == nullptr ? "du" : "dw_up",
                    operands.du == nullptr ? "dw_up" : "du");
}

Status check(const Plan& plan, const Operands& operands, const Workspace& workspace,
             const Peers* peers) {
  if (plan.recipe == nullptr) {
    return make_error(kBad, "plan: got an empty plan, wanted one that plan() returned");
  }
  if (plan.problem.m == 0) return {};
  Spans spans;
  SLUICE_TRY(check_operands(plan, operands, spans));
  SLUICE_TRY(check_pair(plan, operands));
  SLUICE_TRY(check_peers(plan, peers, spans));
  return check_workspace(plan, workspace, spans);
}

// A call of run(): where its steps find what.
class Call {
 public:
  Call(const Plan& plan, const Operands& operands, const Workspace& workspace, Stream stream,
       const Peers* peers)
      : plan_(plan),
        operands_(operands),
        stream_(stream),
        peers_(peers),
        norm_step_(detail::has_norm_step(std::span(plan.steps.data(), std::size_t{1}))) {
    if (plan.workspace_bytes == 0) return;
    char* const data = static_cast<char*>(workspace.data);
    const bool apart = workspace.header != nullptr;
    char* const base = apart ? data : data + kWorkspaceHeaderBytes;
    header_ = apart ? workspace.header : data;
    scratch_ = {base + plan.scratch.n, base + plan.scratch.r, base + plan.scratch.h,
                base + plan.scratch.dg_du, base + plan.scratch.kernel};
  }

  [[nodiscard]] const PlannedStep& at(int i) const {
    return plan_.steps[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] detail::Lowered lower(int i) const {
    return detail::lower(plan_.problem, at(i).role, norm_step_, &operands_, scratch_);
  }
  [[nodiscard]] detail::Step step(int i, const detail::Lowered& lowered) const {
    return {.kernel = at(i).kernel,
            .problem = lowered.problem,
            .operands = lowered.operands,
            .device = plan_.device,
            .config = at(i).config,
            .threads = plan_.threads,
            .executor = plan_.executor,
            .scratch = scratch_.kernel,
            .header = header_,
            .stream = stream_,
            .peers = peers_};
  }

 private:
  const Plan& plan_;
  const Operands& operands_;
  Stream stream_;
  const Peers* peers_;
  bool norm_step_ = false;
  void* header_ = nullptr;
  ScratchParts<void*> scratch_{};
};

// Whether nobody asks for what the step makes.
bool is_skipped(const detail::Lowered& step) {
  const Operands& o = step.operands;
  switch (step.problem.op) {
    case Op::kInputGrad:
      return o.dx == nullptr;
    case Op::kWeightGrad:
      return o.dw_gate == nullptr && o.dw_up == nullptr;
    case Op::kColumnSum:
      return o.db_gate == nullptr;
    default:
      return false;
  }
}

// Launches the steps from `first` to in front of `end`.
Status launch(const Plan& plan, const Operands& operands, const Workspace& workspace, Stream stream,
              const Peers* peers, int first, int end) {
  if (plan.problem.m == 0) return {};
#if defined(SLUICE_WITH_CUDA)
  std::optional<cuda::DeviceGuard> guard;
  if (plan.device.backend == Backend::kCuda) {
    guard.emplace(plan.device.ordinal);
    SLUICE_TRY(guard->status());
  }
#endif
  const Call call(plan, operands, workspace, stream, peers);
  detail::Lowered lowered = call.lower(first);
  for (int i = first; i < end; ++i) {
    const bool last = i + 1 == end;
    const detail::Lowered following = last ? detail::Lowered{} : call.lower(i + 1);
    if (!is_skipped(lowered)) {
      const detail::Step step = call.step(i, lowered);
      if (last || is_skipped(following)) {
        SLUICE_TRY(step.kernel->launch(step, nullptr));
      } else {
        const detail::Step next = call.step(i + 1, following);
        SLUICE_TRY(step.kernel->launch(step, &next));
      }
    }
    lowered = following;
  }
  return {};
}

Status check_index(const Plan& plan, int index) {
  if (index >= 0 && index < plan.step_count) return {};
  return make_error(kBad, "step: got %d, wanted 0 to %d", index, plan.step_count - 1);
}

}  // namespace

Status run(const Plan& plan, const Operands& operands, Workspace workspace, Stream stream,
           const Peers* peers) noexcept {
  SLUICE_TRY(check(plan, operands, workspace, peers));
  return launch(plan, operands, workspace, stream, peers, 0, plan.step_count);
}

Expected<StepCall> step_call(const Plan& plan, int index, const Operands& operands,
                             Workspace workspace, const Peers* peers) noexcept {
  SLUICE_TRY(check(plan, operands, workspace, peers));
  SLUICE_TRY(check_index(plan, index));
  const Call call(plan, operands, workspace, nullptr, peers);
  const detail::Lowered lowered = call.lower(index);
  return StepCall{detail::name_of(call.at(index).role, plan.problem.op),
                  call.at(index).kernel->name, lowered.problem, lowered.operands,
                  is_skipped(lowered)};
}

Status run_step(const Plan& plan, int index, const Operands& operands, Workspace workspace,
                Stream stream, const Peers* peers) noexcept {
  SLUICE_TRY(check(plan, operands, workspace, peers));
  SLUICE_TRY(check_index(plan, index));
  return launch(plan, operands, workspace, stream, peers, index, index + 1);
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
