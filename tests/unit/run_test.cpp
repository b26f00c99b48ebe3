// SPDX-License-Identifier: Apache-2.0
// run() and workspace_init(): what they refuse, with which message, and what they must accept.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/lower.hpp"
#include "expect_error.hpp"
#include "sluice/sluice.hpp"

namespace sluice {
namespace {

using test::refuses;
using test::succeeds;

Problem problem_of(Op op) {
  Problem p;
  p.op = op;
  p.m = 4;
  p.d = 14;
  p.h = 10;
  p.norm.enabled = op == Op::kNorm;
  return p;
}

// Zeroed memory for every operand of a problem, each in a block of its own, and a workspace.
class Fixture {
 public:
  explicit Fixture(const Problem& problem)
      : plan_(plan(problem, cpu_device(), {.variant = "cpu.reference"}).value()),
        blocks_(kOperandCount),
        scratch_(plan_.workspace_bytes + kWorkspaceAlignment) {
    for (const OperandSpec& spec : operand_specs(problem)) {
      if (spec.access == Access::kUnused) continue;
      auto& block = blocks_[static_cast<std::size_t>(spec.id)];
      block.resize(static_cast<std::size_t>(extent_bytes(spec)) + kSlack);
      set_address(operands, spec.id, aligned(block, kPointerAlignment));
    }
    workspace = {aligned(scratch_, kWorkspaceAlignment), plan_.workspace_bytes};
  }

  [[nodiscard]] Status run_now() const { return run(plan_, operands, workspace, nullptr); }
  [[nodiscard]] const Plan& plan_of() const { return plan_; }

  Operands operands{};
  Workspace workspace{};

 private:
  static constexpr std::size_t kPointerAlignment = 64;
  static constexpr std::size_t kSlack = 4096;  // an operand moved into another's block ends there
  using Bytes = std::vector<unsigned char>;

  static void* aligned(Bytes& block, std::size_t alignment) {
    void* pointer = block.data();
    std::size_t space = block.size();
    return std::align(alignment, 1, pointer, space);
  }

  Plan plan_;
  std::vector<Bytes> blocks_;
  Bytes scratch_;
};

void* behind(const void* pointer, std::int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(pointer)) + bytes;
}

Problem with_everything(Op op) {
  Problem p = problem_of(op);
  const bool prologue = op == Op::kGateUp || op == Op::kMlp;
  const bool epilogue = op == Op::kDown || op == Op::kMlp;
  if (prologue || op == Op::kNorm) p.norm = {.enabled = true, .add = true};
  p.save_g_u = prologue;
  if (epilogue) p.residual = Residual::kOperand;
  p.bias_gate_up = prologue || op == Op::kMlpGrad;
  p.bias_down = epilogue || op == Op::kMlpGrad;
  p.save_dg_du = op == Op::kMlpGrad;
  return p;
}

TEST(Run, AcceptsEveryOperator) {
  for (int op = 0; op < kOpCount; ++op) {
    const Fixture f(with_everything(static_cast<Op>(op)));
    EXPECT_TRUE(succeeds(f.run_now())) << to_string(static_cast<Op>(op));
  }
}

TEST(Run, RefusesEveryNullThatIsRequired) {
  for (int op = 0; op < kOpCount; ++op) {
    for (const bool recompute : {false, true}) {
      Problem p = with_everything(static_cast<Op>(op));
      if (recompute && p.op != Op::kMlpGrad) continue;
      p.recompute = recompute;
      for (const OperandSpec& spec : operand_specs(p)) {
        if (spec.access == Access::kUnused) continue;
        Fixture f(p);
        set_address(f.operands, spec.id, nullptr);
        const std::string wanted = std::string(spec.name) + ": got null, wanted a pointer to [" +
                                   std::to_string(spec.rows) + ", " + std::to_string(spec.cols) +
                                   "] " + to_string(spec.dtype);
        const bool paired =
            p.op == Op::kWeightGrad && (spec.id == Operand::kDu || spec.id == Operand::kDwUp);
        EXPECT_TRUE(paired          ? refuses(f.run_now(), "wanted both or none")
                    : spec.required ? refuses(f.run_now(), wanted)
                                    : succeeds(f.run_now()))
            << to_string(p.op) << " " << spec.name;
      }
    }
  }
}

TEST(Run, RefusesEveryPointerThatBreaksThePromisedAlignment) {
  for (int op = 0; op < kOpCount; ++op) {
    const Problem p = with_everything(static_cast<Op>(op));
    for (const OperandSpec& spec : operand_specs(p)) {
      if (spec.access == Access::kUnused) continue;
      Fixture f(p);
      set_address(f.operands, spec.id, behind(address(f.operands, spec.id), 8));
      EXPECT_TRUE(refuses(f.run_now(), std::string(spec.name) + ": got pointer 0x"));
      EXPECT_TRUE(refuses(f.run_now(), "wanted a multiple of alignment_bytes = 16"));
    }
  }
}

TEST(Run, TakesWhatASmallerPromiseAllows) {
  Problem p = problem_of(Op::kMlp);
  p.alignment_bytes = 2;
  Fixture f(p);
  f.operands.x = behind(f.operands.x, 2);
  EXPECT_TRUE(succeeds(f.run_now()));
  f.operands.x = behind(f.operands.x, 1);
  EXPECT_TRUE(refuses(f.run_now(), "x: got pointer"));
}

TEST(Run, PointersAreMultiplesOfTheirElementWhateverThePromise) {
  Problem p = problem_of(Op::kMlp);
  p.alignment_bytes = 1;
  p.w_dtype = DType::kF32;
  Fixture f(p);
  f.operands.x = behind(f.operands.x, 2);
  EXPECT_TRUE(succeeds(f.run_now()));
  f.operands.w_down = behind(f.operands.w_down, 2);
  EXPECT_TRUE(refuses(f.run_now(), "w_down: got pointer 0x"));
  EXPECT_TRUE(refuses(f.run_now(), "wanted a multiple of the element's 4 bytes"));
}

// A row of a file's blocks begins anywhere that is even: 34 bytes a block.
TEST(Run, BlocksAreMultiplesOfTheirScale) {
  Problem p = problem_of(Op::kMlp);
  p.alignment_bytes = 1;
  p.w_dtype = DType::kQ8_0;
  p.d = p.h = 32;
  Fixture f(p);
  f.operands.w_down = behind(f.operands.w_down, 34);
  EXPECT_TRUE(succeeds(f.run_now()));
  f.operands.w_down = behind(f.operands.w_down, 1);
  EXPECT_TRUE(refuses(f.run_now(), "w_down: got pointer 0x"));
  EXPECT_TRUE(refuses(f.run_now(), "wanted a multiple of the scale's 2 bytes"));
}

TEST(Run, UnusedPointersAreNotRead) {
  Fixture f(problem_of(Op::kDown));
  f.operands.x = f.operands.w_gate = f.operands.b_down = behind(nullptr, 1);
  EXPECT_TRUE(succeeds(f.run_now()));
}

TEST(Run, ZeroTokensReadNoPointerAndNoWorkspace) {
  for (int op = 0; op < kOpCount; ++op) {
    Problem p = with_everything(static_cast<Op>(op));
    p.m = 0;
    const auto empty = plan(p, cpu_device());
    ASSERT_TRUE(succeeds(empty));
    EXPECT_EQ(empty->workspace_bytes, 0U);
    EXPECT_TRUE(succeeds(run(*empty, {}, {}, nullptr))) << to_string(p.op);
  }
}

TEST(Run, RefusesAnEmptyPlan) {
  EXPECT_TRUE(refuses(run(Plan{}, {}, {}, nullptr), "plan: got an empty plan"));
}

TEST(Run, RefusesAWorkspaceThatIsNullSmallOrMisaligned) {
  Fixture f(problem_of(Op::kMlp));
  const std::size_t needed = f.plan_of().workspace_bytes;
  ASSERT_GT(needed, kWorkspaceHeaderBytes);
  const Workspace good = f.workspace;
  const std::string wanted = " bytes, wanted at least " + std::to_string(needed);
  f.workspace = {nullptr, needed};
  EXPECT_TRUE(refuses(f.run_now(), "workspace: got 0" + wanted));
  f.workspace = {good.data, needed - 1};
  EXPECT_TRUE(refuses(f.run_now(), "workspace: got " + std::to_string(needed - 1) + wanted));
  f.workspace = {behind(good.data, 128), needed};
  EXPECT_TRUE(refuses(f.run_now(), "workspace: got pointer 0x"));
  EXPECT_TRUE(refuses(f.run_now(), "wanted a multiple of 256"));
  f.workspace = good;
  EXPECT_TRUE(succeeds(f.run_now()));
}

TEST(Run, RefusesAWorkspaceThatOverlapsAnOperand) {
  Fixture f(problem_of(Op::kMlp));
  const Operands good = f.operands;
  f.operands.x = f.workspace.data;  // an input too: it would be overwritten
  EXPECT_TRUE(refuses(f.run_now(), "workspace: overlaps x (0 bytes apart)"));
  f.operands = good;
  const std::size_t needed = f.plan_of().workspace_bytes;
  f.operands.w_down = behind(f.workspace.data, static_cast<std::int64_t>(needed) - 16);
  EXPECT_TRUE(refuses(f.run_now(), "workspace: overlaps w_down"));
  f.operands = good;
  alignas(kWorkspaceAlignment) std::array<unsigned char, 2 * kWorkspaceHeaderBytes> header{};
  f.workspace = {f.workspace.data, needed - kWorkspaceHeaderBytes, header.data()};
  f.operands.x = header.data() + kWorkspaceHeaderBytes - 16;
  EXPECT_TRUE(refuses(f.run_now(), "workspace.header: overlaps x (-16368 bytes apart)"));
  f.operands.x = header.data() + kWorkspaceHeaderBytes;
  EXPECT_TRUE(succeeds(f.run_now()));
  f.workspace.header = f.workspace.data;
  EXPECT_TRUE(refuses(f.run_now(), "workspace.header: overlaps workspace (0 bytes apart)"));
  f.workspace.header = behind(f.workspace.data, -std::int64_t{kWorkspaceHeaderBytes} + 256);
  EXPECT_TRUE(refuses(f.run_now(), "workspace.header: overlaps workspace (-16128 bytes apart)"));
}

// A sum over ranks is of GPUs: the plan of a CPU, with peers to check.
constexpr std::size_t kPeerBytes = 2 * kPeerAlignment;

TEST(Run, RefusesPeerBuffersThatOverlapAnything) {
  const Fixture f(problem_of(Op::kMlp));
  Plan plan = f.plan_of();
  plan.problem.reduce = {.kind = ReduceKind::kAllReduce, .rank = 0, .world = 4};
  plan.peer_bytes = kPeerBytes;
  alignas(kWorkspaceAlignment) std::array<unsigned char, kWorkspaceHeaderBytes> header{};
  const Workspace workspace{f.workspace.data, f.workspace.bytes, header.data()};
  Peers good;
  for (std::uintptr_t r = 0; r < 4; ++r) {  // where no process has memory
    good.buffers[r] = reinterpret_cast<void*>((std::uintptr_t{1} << 55) + 4 * kPeerBytes * r);
  }
  const auto with = [&](int rank, const void* buffer, std::size_t bytes = kPeerBytes) {
    Peers peers = good;
    peers.buffers[rank] = const_cast<void*>(buffer);
    peers.bytes = bytes;
    return run(plan, f.operands, workspace, nullptr, &peers);
  };
  EXPECT_TRUE(succeeds(with(3, behind(good.buffers[2], kPeerBytes))));
  EXPECT_TRUE(refuses(with(3, behind(good.buffers[2], 256)),
                      "peers.buffers[3]: overlaps peers.buffers[2] (256 bytes apart)"));
  EXPECT_TRUE(refuses(with(3, behind(good.buffers[2], -256)),
                      "peers.buffers[3]: overlaps peers.buffers[2] (-256 bytes apart)"));
  EXPECT_TRUE(refuses(with(1, good.buffers[0]),
                      "peers.buffers[1]: overlaps peers.buffers[0] (0 bytes apart)"));
  // All memory, and round to its own begin.
  EXPECT_TRUE(
      refuses(with(0, good.buffers[0], std::size_t{0} - 512), "peers.buffers[0]: overlaps "));
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(pointer) &
                                   ~std::uintptr_t{255});
  };
  for (const int rank : {0, 3}) {
    const std::string name = "peers.buffers[" + std::to_string(rank) + "]";
    EXPECT_TRUE(refuses(with(rank, aligned(f.operands.w_down)), name + ": overlaps "));
    EXPECT_TRUE(refuses(with(rank, workspace.data), "workspace: overlaps " + name));
    EXPECT_TRUE(refuses(with(rank, header.data()), "workspace.header: overlaps " + name));
  }
}

// One row for all, in a block without an end.
TEST(Run, RefusesAnOutputOverARowThatIsRepeatedForEver) {
  Problem p = problem_of(Op::kMlp);
  p.layout.w_gate_up = {.row_stride_bytes = 0,
                        .block_rows = std::numeric_limits<std::int64_t>::max(),
                        .block_stride_bytes = 128};
  Fixture f(p);
  f.operands.w_up = f.operands.w_gate = f.operands.y;
  EXPECT_TRUE(refuses(f.run_now(), "y: the output overlaps w_gate"));
}

TEST(Run, TakesAHeaderApartFromItsScratch) {
  Fixture f(problem_of(Op::kMlp));
  alignas(kWorkspaceAlignment) std::array<unsigned char, kWorkspaceHeaderBytes> header;
  const std::size_t needed = f.plan_of().workspace_bytes - kWorkspaceHeaderBytes;
  void* const data = f.workspace.data;
  f.workspace = {data, needed, header.data()};
  EXPECT_TRUE(succeeds(f.run_now()));
  f.workspace = {data, needed - 1, header.data()};
  EXPECT_TRUE(refuses(f.run_now(), "wanted at least " + std::to_string(needed)));
  f.workspace = {data, needed, header.data() + 8};
  EXPECT_TRUE(refuses(f.run_now(), "workspace.header: got pointer 0x"));
}

TEST(WorkspaceInit, ZeroesAHeaderApart) {
  alignas(kWorkspaceAlignment) std::array<unsigned char, kWorkspaceHeaderBytes + 16> bytes;
  bytes.fill(0xAB);
  unsigned char scratch = 0xAB;
  EXPECT_TRUE(refuses(workspace_init({nullptr, 0, bytes.data() + 8}, cpu_device(), nullptr),
                      "wanted a multiple of 256"));
  EXPECT_TRUE(succeeds(workspace_init({&scratch, 1, bytes.data()}, cpu_device(), nullptr)));
  EXPECT_EQ(scratch, 0xAB);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], i < kWorkspaceHeaderBytes ? 0 : 0xAB) << i;
  }
}

TEST(WorkspaceInit, ZeroesTheHeaderAndNothingElse) {
  alignas(kWorkspaceAlignment) std::array<unsigned char, kWorkspaceHeaderBytes + 16> bytes;
  bytes.fill(0xAB);
  const Device cpu = cpu_device();
  EXPECT_TRUE(
      refuses(workspace_init({nullptr, 32768}, cpu, nullptr), "workspace: got 0 bytes, wanted at"));
  EXPECT_TRUE(refuses(workspace_init({bytes.data(), kWorkspaceHeaderBytes - 1}, cpu, nullptr),
                      "workspace: got 16383 bytes, wanted at least 16384"));
  EXPECT_TRUE(refuses(workspace_init({bytes.data() + 8, kWorkspaceHeaderBytes}, cpu, nullptr),
                      "wanted a multiple of 256"));
  for (const unsigned char byte : bytes) ASSERT_EQ(byte, 0xAB);
  EXPECT_TRUE(succeeds(workspace_init({bytes.data(), kWorkspaceHeaderBytes}, cpu, nullptr)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], i < kWorkspaceHeaderBytes ? 0 : 0xAB) << i;
  }
}

TEST(Run, RefusesAnOutputOverEveryOtherOperand) {
  for (int op = 0; op < kOpCount; ++op) {
    const Problem p = with_everything(static_cast<Op>(op));
    const auto specs = operand_specs(p);
    for (const OperandSpec& out : specs) {
      if (out.access != Access::kWrite && out.access != Access::kReadWrite) continue;
      for (const OperandSpec& other : specs) {
        if (other.access == Access::kUnused || other.id == out.id) continue;
        Fixture f(p);
        // Moved on by 16 bytes: the pairs that may share memory must match exactly.
        set_address(f.operands, out.id, behind(address(f.operands, other.id), 16));
        EXPECT_TRUE(refuses(f.run_now(), "the output overlaps ")) << out.name << " " << other.name;
        EXPECT_TRUE(refuses(f.run_now(), "16 bytes apart)")) << out.name << " " << other.name;
      }
    }
  }
}

TEST(Run, AcceptsTheInPlacePairs) {
  Fixture mlp(with_everything(Op::kMlp));
  mlp.operands.residual = mlp.operands.y;
  EXPECT_TRUE(succeeds(mlp.run_now()));
  for (const Op op : {Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad}) {
    Problem p = problem_of(op);
    p.save_dg_du = op == Op::kMlpGrad;
    Fixture f(p);
    f.operands.dg = f.operands.g;
    f.operands.du = f.operands.u;
    EXPECT_TRUE(succeeds(f.run_now()));
    f.operands.dg = f.operands.u;  // crosswise would read what was written
    f.operands.du = f.operands.g;
    EXPECT_TRUE(refuses(f.run_now(), "the output overlaps"));
  }
}

TEST(Run, InPlacePairsMustShareTheLayout) {
  Problem p = with_everything(Op::kMlp);
  p.layout.y.row_stride_bytes = 2 * p.d + 16;
  Fixture f(p);
  f.operands.residual = f.operands.y;
  EXPECT_TRUE(refuses(f.run_now(), "y: the output overlaps residual (0 bytes apart)"));
}

TEST(Run, AWeightGradientMayBeOfOneMatrix) {
  Fixture f(problem_of(Op::kWeightGrad));
  f.operands.du = nullptr;
  EXPECT_TRUE(refuses(f.run_now(), "du: got null beside dw_up"));
  f.operands.dw_up = nullptr;
  EXPECT_TRUE(succeeds(f.run_now()));
  f.operands.du = f.operands.dg;
  EXPECT_TRUE(refuses(f.run_now(), "dw_up: got null beside du"));
}

// A plan of the reference has one step, which is all of the operator.
TEST(RunStep, ChecksLikeRunAndKnowsItsSteps) {
  const Problem p = problem_of(Op::kMlp);
  Fixture f(p);
  const auto call = step_call(f.plan_of(), 0, f.operands, f.workspace);
  ASSERT_TRUE(succeeds(call));
  EXPECT_STREQ(call->name, "mlp");
  EXPECT_STREQ(call->kernel, "cpu.reference");
  EXPECT_EQ(call->problem.op, p.op);
  EXPECT_EQ(call->problem.m, p.m);
  EXPECT_EQ(call->operands.y, f.operands.y);
  EXPECT_FALSE(call->skipped);
  EXPECT_TRUE(succeeds(run_step(f.plan_of(), 0, f.operands, f.workspace, nullptr)));
  for (const int index : {-1, 1}) {
    const std::string wanted = "step: got " + std::to_string(index) + ", wanted 0 to 0";
    EXPECT_TRUE(refuses(step_call(f.plan_of(), index, f.operands, f.workspace), wanted));
    EXPECT_TRUE(refuses(run_step(f.plan_of(), index, f.operands, f.workspace, nullptr), wanted));
  }
  EXPECT_TRUE(refuses(run_step(f.plan_of(), 0, f.operands, {}, nullptr), "workspace: got 0"));
  f.operands.x = nullptr;
  EXPECT_TRUE(refuses(step_call(f.plan_of(), 0, f.operands, f.workspace), "x: got null"));
  EXPECT_TRUE(refuses(run_step(f.plan_of(), 0, f.operands, f.workspace, nullptr), "x: got null"));
}

TEST(Run, InputsMayOverlap) {
  Fixture f(problem_of(Op::kMlp));
  f.operands.w_up = f.operands.w_gate;
  EXPECT_TRUE(succeeds(f.run_now()));
}

// What a kernel was launched on: its step's operator, the next one's or "", and the step's outputs.
struct Launch {
  std::string op;
  std::string next;
  const void* dw_gate;
};
std::vector<Launch> launches;

Status record(const detail::Step& step, const detail::Step* next) noexcept {
  launches.push_back({to_string(step.problem.op),
                      next == nullptr ? "" : to_string(next->problem.op),
                      step.pointer(Operand::kDwGate)});
  return {};
}

constexpr detail::Kernel kRecorder = {.name = "recorder",
                                      .ops = detail::OpSet::all(),
                                      .supports = nullptr,
                                      .configs = nullptr,
                                      .name_config = nullptr,
                                      .launch = record,
                                      .describe = nullptr};

std::string launched() {
  std::string text;
  for (const Launch& one : launches) {
    text += (text.empty() ? "" : ", ") + one.op + (one.next.empty() ? "" : " > " + one.next);
  }
  launches.clear();
  return text;
}

TEST(Run, StepsComeInOrderEachWithTheNextAndWithoutThoseThatNobodyAsksFor) {
  using detail::Role;
  Fixture f(with_everything(Op::kMlpGrad));
  Plan plan = f.plan_of();
  plan.step_count = 0;
  for (const Role role : {Role::kGateUpGrad, Role::kInputGrad, Role::kWeightGrad,
                          Role::kWeightGradDown, Role::kColumnSumGate}) {
    plan.steps[static_cast<std::size_t>(plan.step_count++)] = {&kRecorder, {}, role};
  }
  const auto run_it = [&] { return run(plan, f.operands, f.workspace, nullptr); };

  launches.clear();
  EXPECT_TRUE(succeeds(run_it()));
  ASSERT_EQ(launches.size(), 5U);
  EXPECT_EQ(launches[2].dw_gate, f.operands.dw_gate);
  EXPECT_EQ(launches[3].dw_gate, f.operands.dw_down);  // the left side's gradient, as gate's is
  EXPECT_EQ(launched(),
            "gate_up_grad > input_grad, input_grad > weight_grad, weight_grad > weight_grad, "
            "weight_grad > column_sum, column_sum");

  EXPECT_TRUE(succeeds(run_step(plan, 1, f.operands, f.workspace, nullptr)));
  EXPECT_EQ(launched(), "input_grad");

  f.operands.dx = nullptr;
  f.operands.dw_down = nullptr;
  f.operands.db_gate = nullptr;
  EXPECT_TRUE(succeeds(run_it()));
  EXPECT_EQ(launched(), "gate_up_grad, weight_grad");
  EXPECT_TRUE(succeeds(run_step(plan, 1, f.operands, f.workspace, nullptr)));
  EXPECT_EQ(launched(), "");
}

// What the failing kernel answers; its launch is recorded too.
ErrorCode failure = ErrorCode::kDevice;

Status fail(const detail::Step& step, const detail::Step* next) noexcept {
  static_cast<void>(record(step, next));
  return make_error(failure, "broken: %s does not start", to_string(step.problem.op));
}

constexpr detail::Kernel kFailing = {.name = "failing",
                                     .ops = detail::OpSet::all(),
                                     .supports = nullptr,
                                     .configs = nullptr,
                                     .name_config = nullptr,
                                     .launch = fail,
                                     .describe = nullptr};

TEST(Run, AStepThatFailsEndsItBehindThoseInFrontOfIt) {
  using detail::Role;
  Fixture f(with_everything(Op::kMlpGrad));
  Plan plan = f.plan_of();
  plan.steps[0] = {&kRecorder, {}, Role::kGateUpGrad};
  plan.steps[1] = {&kFailing, {}, Role::kInputGrad};
  plan.steps[2] = {&kRecorder, {}, Role::kWeightGrad};
  plan.step_count = 3;
  for (const ErrorCode code :
       {ErrorCode::kDevice, ErrorCode::kUnsupported, ErrorCode::kOutOfMemory}) {
    failure = code;
    launches.clear();
    const Status status = run(plan, f.operands, f.workspace, nullptr);
    EXPECT_EQ(launched(), "gate_up_grad > input_grad, input_grad > weight_grad");
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, code);
    EXPECT_EQ(status.error().text(), "broken: input_grad does not start");
  }
  // A step that nobody asks for is not launched, so it does not fail either.
  f.operands.dx = nullptr;
  EXPECT_TRUE(succeeds(run(plan, f.operands, f.workspace, nullptr)));
  EXPECT_EQ(launched(), "gate_up_grad, weight_grad");
  // Any other error comes in front of all launches.
  f.operands.x = nullptr;
  EXPECT_TRUE(refuses(run(plan, f.operands, f.workspace, nullptr), "x: got null"));
  EXPECT_EQ(launched(), "");
}

}  // namespace
}  // namespace sluice
