// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM beside others, in one launch and from launch to launch: who takes shared memory
// or reads what another still writes too early changes bits.
#include <algorithm>
#include <string>
#include <utility>

#include "early_start.hpp"
#include "job.hpp"
#include "sm90_schedule.hpp"

namespace sluice {
namespace {

void expect_exact(const std::string& text) {
  const Problem problem = harness::parse_case(text).value().problem;
  gpu::expect_exact(text, config_names("cuda.sm90", problem, gpu::rig().device()));
}

// Memory, not the product, sets the pace: k is one block, outputs are tens of megabytes, and shared
// memory that a store still reads is wanted for the next tile.
TEST(GpuGemm, NobodyOverwritesWhatAStoreStillReads) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  for (const std::string text :
       {"4096x8x14336:gate_up", "4096x14336x8:down", "4096x8x14336:gate_up_grad"}) {
    ASSERT_NO_FATAL_FAILURE(expect_exact(text));
  }
}

// At most 64 rows in the last row tile: their tiles take half the time and go to clusters by turns
// of their own. One turn, many; pairs with rows in one CTA; more row tiles than the order minds.
TEST(GpuGemm, HalfTilesAreWholeToTheCaller) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  for (const std::string text :
       {"300x136x20008:gate_up:save", "530x264x9480:gate_up:interleaved8", "192x72x12296:gate_up",
        "1088x72x2056:gate_up:bias", "2100x72x2056:gate_up", "300x20008x136:down",
        "530x9480x264:down:bias_down:residual", "2072x2056x72:down"}) {
    ASSERT_NO_FATAL_FAILURE(expect_exact(text));
  }
}

// Each launch reads what the one before it writes, and writes what that one reads: against the same
// launches with a wait after each. Those that fill the SMs begin while the one before them ends.
TEST(GpuGemm, ChainedLaunchesEqualLaunchesOneByOne) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  constexpr int kLaunches = 12;
  for (const std::string text : {"300x1032x1032:gate_up:sigmoid", "300x520x2056:mlp:sigmoid",
                                 "1700x1032x1032:gate_up:sigmoid", "1700x2056x1032:mlp:sigmoid"}) {
    const Problem problem = harness::parse_case(text).value().problem;
    for (const std::string& config : config_names("cuda.sm90", problem, gpu::rig().device())) {
      const Options options{.variant = "cuda.sm90", .config = config.c_str()};
      gpu::Job jobs[2] = {gpu::make_job(text, options), gpu::make_job(text, options)};
      const bool own = config.find("gate_up=lt") == std::string::npos;
      if (problem.m == 1700 && own) gpu::expect_starts_early(jobs[0].plan);
      gpu::StreamGuard guard;
      std::string bits[2];
      for (const bool wait : {true, false}) {
        for (int i = 0; i < kLaunches; ++i) {
          Operands operands = jobs[i % 2].set->operands();
          const Operands& before = jobs[(i + 1) % 2].set->operands();
          if (i > 0) operands.x = problem.op == Op::kMlp ? before.y : before.h;
          ASSERT_OK(sluice::run(jobs[0].plan, operands, jobs[0].workspace.workspace, guard.stream));
          if (wait) {
            ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
          }
        }
        ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
        bits[wait ? 0 : 1] = gpu::bits_of(*jobs[(kLaunches - 1) % 2].set);
      }
      EXPECT_TRUE(bits[0] == bits[1]) << text << " " << config;
    }
  }
}

// Rows of x or h that split lines of L2, of a shape that has time for a copy of them.
TEST(GpuGemm, ReadsACopyOfRowsThatSplitLines) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  constexpr std::size_t kCopyBytes = std::size_t{1024} * 832 * 2;
  for (const auto& [text, config] :
       {std::pair{"1024x776x24592:gate_up:save:bias", "gate_up=pp128x192c2g8"},
        std::pair{"1024x24592x776:down:residual", "down=pp128x192c2g8"}}) {
    SCOPED_TRACE(text);
    gpu::Job job = gpu::make_job(text, {.variant = "cuda.sm90", .config = config});
    EXPECT_GE(job.plan.workspace_bytes, kCopyBytes);
    gpu::expect_replays_right(job);
  }
}

// Rows of a residual at any distance: words, halves of them, one row for all.
TEST(GpuGemm, ReadsAResidualWhateverItsRows) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  for (const std::string config :
       {"down=pp128x128c1g16", "down=pp128x192c2g8", "down=co128x256c2g8", "down=sp128x128k2"}) {
    for (const std::int64_t stride : {400, 402, 404, 416, 0}) {
      harness::Case c = harness::parse_case("190x200x392:down:residual:bias_down").value();
      c.problem.layout.residual.row_stride_bytes = stride;
      const auto report =
          harness::verify_case(c, gpu::rig(), {.variant = "cuda.sm90", .config = config.c_str()});
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << stride << " " << report->text();
    }
  }
}

// Input, residual and output with `more` bytes behind each row; -1: the input is one row, repeated.
harness::Case with_rows_apart(const char* text, std::int64_t more) {
  harness::Case c = harness::parse_case(text).value();
  const auto move = [&](Layout& layout, std::int64_t cols, DType dtype) {
    layout.row_stride_bytes = bytes_of(dtype, cols) + more;
  };
  Problem& p = c.problem;
  Layout& input = p.op == Op::kDown ? p.layout.h : p.layout.x;
  if (more < 0) {
    input.row_stride_bytes = 0;
    return c;
  }
  move(input, p.op == Op::kDown ? p.h : p.d, p.x_dtype);
  p.op == Op::kGateUp ? move(p.layout.h, p.h, p.x_dtype) : move(p.layout.y, p.d, p.y_dtype);
  if (p.residual == Residual::kOperand) move(p.layout.residual, p.d, p.y_dtype);
  return c;
}

// Rows of an input, residual and output at any distance: whole units, less, one row for all.
TEST(GpuGemm, TakesRowsWhereverTheyBegin) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  struct Asked {
    const char* text;
    const char* variant;
    const char* config;
  };
  const Asked all[] = {{"190x200x392:gate_up:bias", "cuda.sm90", "gate_up=pp128x128c1g16"},
                       {"190x200x392:gate_up:save", "cuda.sm90", "gate_up=pp128x192c2g8"},
                       {"190x712x392:gate_up", "cuda.sm90", "gate_up=sk192x224c1g16"},
                       {"190x200x392:down:residual:bias_down", "cuda.sm90", "down=co128x256c2g8"},
                       {"190x200x392:down:residual", "cuda.sm90", "down=sp128x128k2"},
                       {"190x200x392:down:fp16", "cuda.sm90", "down=pp128x128c1g16"},
                       {"130x200x392:mlp:residual", "cuda.sm90_decode", ""},
                       {"70x200x392:mlp", "cuda.sm90_decode", ""},
                       {"40x200x392:gate_up", "cuda.sm90_decode", ""},
                       {"7x200x392:gate_up:interleaved3", "cuda.sm90_decode", ""},
                       {"7x200x392:mlp:bias", "cuda.sm90_decode", ""},
                       {"70x200x392:down:residual", "cuda.sm90_decode", ""}};
  for (const auto& [text, variant, config] : all) {
    for (const std::int64_t more : {0, 2, 8, 16, 32, -1}) {
      const harness::Case c = with_rows_apart(text, more);
      const auto report = harness::verify_case(
          c, gpu::rig(), {.variant = variant, .config = *config == 0 ? nullptr : config});
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << text << " " << more << " " << report->text();
    }
  }
}

// The copies of such rows, few enough for a sanitizer.
TEST(GpuGemm, CopiesAFewRows) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  for (const char* variant : {"cuda.sm90", "cuda.sm90_decode"}) {
    for (const std::int64_t more : {2, 8}) {
      const auto report = harness::verify_case(with_rows_apart("33x64x96:down:residual", more),
                                               gpu::rig(), {.variant = variant});
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << variant << " " << more << " " << report->text();
    }
  }
}

// Widths, rows and types that no GEMM of this library takes.
TEST(GpuAnyWidth, IsRight) {
  if (gpu::rig().device().cublaslt_version == 0) GTEST_SKIP() << "needs cuBLASLt";
  for (const char* text :
       {"190x1024x2730:mlp:bias:bias_down:save", "7x1023x2731:mlp:norm:fp16",
        "190x400x393:gate_up:interleaved3", "33x392x400:gate_up:pad=1",
        "190x201x393:down:residual:bias_down", "70x200x392:mlp:fp32:residual",
        "130x1024x2730:mlp_grad:bias:bias_down", "130x201x393:mlp_grad:recompute:accumulate",
        "130x200x392:mlp_grad:fp32", "520x264x273:mlp_grad:recompute:bias:bias_down",
        "515x201x392:mlp_grad:bf16/bf16/bf16/fp32:accumulate:pad=1"}) {
    const auto report = harness::verify_case(harness::parse_case(text).value(), gpu::rig(),
                                             {.variant = "cuda.cublaslt"});
    ASSERT_OK(report) << text;
    EXPECT_TRUE(report->passed()) << text << " " << report->text();
  }
}

}  // namespace
}  // namespace sluice
