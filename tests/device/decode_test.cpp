// SPDX-License-Identifier: Apache-2.0
// The decode recipe on a GPU: every token count, every tiling, tails in every direction, many
// runs on one workspace, graphs, streams, and layers chained by programmatic launches. Small shapes
// first, so that a broken kernel shows in a line.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::expect_right;
using gpu::Job;
using gpu::make_job;
using gpu::run_once;
using gpu::StreamGuard;

// Of mlp, whose launches are those of gate_up and down: these test how two are put together.
constexpr std::size_t kMlpConfigs = 4;

constexpr const char* kDecode = "cuda.sm90_decode";

class GpuDecode : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

// The configs of each form of the norm that a problem has, or the first ones.
std::vector<std::vector<std::string>> tested_configs(const Problem& problem) {
  gpu::NormForms forms = gpu::decode_configs(problem);
  std::vector<std::vector<std::string>> out;
  for (std::vector<std::string>* names : {&forms.deferred, &forms.launched}) {
    if (names->empty()) continue;
    if (problem.op == Op::kMlp) names->resize(std::min(names->size(), kMlpConfigs));
    out.push_back(std::move(*names));
  }
  return out;
}

// Verifies a case under every config of the decode recipe, or the first of each form of the norm.
// Returns how many were run.
int verify_decode(const std::string& text, bool all_configs) {
  const auto c = harness::parse_case(text).value();
  harness::Verification verification(c, gpu::rig(), {.max_operations = 1e7});
  int runs = 0;
  for (const auto& form : tested_configs(c.problem)) {
    for (const std::string& config : form) {
      const auto report = verification.run({.variant = kDecode, .config = config.c_str()});
      if (!report) {
        ADD_FAILURE() << text << " " << config << ": " << report.error().message;
        return runs;
      }
      EXPECT_EQ(report->config, config);
      EXPECT_TRUE(report->passed()) << report->text();
      ++runs;
      if (!all_configs) break;
    }
  }
  return runs;
}

// Small integers through the identity gate have one right answer: every config of the decode
// recipe must give the bits of cuda.simt in every element, which costs no oracle.
int expect_exact(const std::string& text) {
  const auto c = harness::parse_case(text + ":identity:fill=integers").value();
  auto set = std::move(harness::OperandSet::make(c, gpu::rig()).value());
  const std::string expected = run_once(*set, "cuda.simt", nullptr);
  int runs = 0;
  for (const auto& form : tested_configs(c.problem)) {
    for (const std::string& config : form) {
      const std::string got = run_once(*set, kDecode, config.c_str());
      const auto [at, other] = std::mismatch(expected.begin(), expected.end(), got.begin());
      EXPECT_EQ(at - expected.begin(), static_cast<std::ptrdiff_t>(expected.size()))
          << text << " " << config << ": first wrong byte";
      EXPECT_OK(set->check_canaries());
      ++runs;
      if (testing::Test::HasFailure()) return runs;
    }
  }
  return runs;
}

TEST_F(GpuDecode, OneTileOfEachOperator) {
  for (const std::string op : {"down", "gate_up", "mlp"}) {
    for (const std::string shape : {"1x64x64:", "8x512x512:"}) {
      EXPECT_GT(verify_decode(shape + op + ":identity:fill=integers", true), 0);
      ASSERT_FALSE(HasFailure()) << shape << op;
    }
  }
  // A deferred norm, and one that is a launch.
  for (const std::string op : {"gate_up:add_norm", "mlp:add_norm:residual_norm_input"}) {
    EXPECT_EQ(verify_decode("5x264x72:" + op, false), 2);
  }
}

// Chunks of 128, 256 and 512 columns with tails of 8 and more; CTAs with no, one and several
// blocks.
TEST_F(GpuDecode, TailsInEveryDirection) {
  for (const std::string shape :
       {"3x8x8", "5x72x104", "7x1032x264", "13x264x4400", "2x4424x136", "1x8456x1544",
        "21x520x2056", "40x1544x392", "64x2056x1032", "11x2056x136", "35x2056x72", "96x2056x1032",
        "128x2056x1032", "160x2056x1032", "65x1544x392", "81x72x4232", "160x64x8456"}) {
    for (const std::string op : {"gate_up", "down", "mlp"}) {
      EXPECT_GT(expect_exact(shape + ":" + op + ":fp16"), 0);
      EXPECT_GT(expect_exact(shape + ":" + op + ":interleaved1"), 0);
      EXPECT_GT(verify_decode(shape + ":" + op, false), 0);
    }
  }
}

// Boxes of 16 for 8 tokens and less, in models that are not small: ragged boxes and columns, K of
// down divided, where one CTA of two has no token to finish, pairs of rows and boxes.
TEST_F(GpuDecode, FewTokensByBoxes) {
  for (const std::string text :
       {"3x2056x8648:gate_up:fp16", "8x8648x2056:down:residual", "1x4424x4104:mlp:interleaved1",
        "7x2056x8648:mlp:bias:bias_down:residual"}) {
    const auto c = harness::parse_case(text).value();
    const std::vector<std::string> names = tested_configs(c.problem).at(0);
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.find("=b16") != name.npos;
    })) << text;
    EXPECT_GT(expect_exact(text), 1);
    ASSERT_FALSE(HasFailure()) << text;
  }
}

TEST_F(GpuDecode, EveryTilingAgainstTheOracle) {
  for (const std::string text :
       {"8x264x136:gate_up", "16x136x264:down", "30x72x104:mlp:fp16",
        "64x136x72:mlp:bias:bias_down:residual", "90x136x264:mlp:bias:bias_down:residual",
        "96x264x136:down:fp16", "97x264x136:mlp", "128x264x136:down:fp16",
        "129x264x136:down:residual:bias_down", "144x264x136:gate_up:bias",
        "160x264x136:mlp:bias"}) {
    EXPECT_GT(verify_decode(text, true), 0);
  }
}

TEST_F(GpuDecode, EveryTokenCount) {
  for (int m = 1; m <= 160; ++m) {
    EXPECT_GT(expect_exact(std::to_string(m) + "x200x328:mlp:" + (m % 2 == 0 ? "bf16" : "fp16")),
              0);
    EXPECT_EQ(verify_decode(std::to_string(m) + "x72x136:mlp", false), 1);
  }
}

TEST_F(GpuDecode, GatesLayoutsAndFlags) {
  const std::string gates[] = {
      "silu",    "gelu_tanh", "gelu_erf",       "relu",
      "sigmoid", "identity",  "clamped_swiglu", "silu(alpha=1.7,limit=2,up_offset=1)"};
  const std::string layouts[] = {"separate",     "concat",       "concat+up_first",
                                 "interleaved1", "interleaved3", "interleaved8+up_first",
                                 "interleaved16"};
  const std::string flags[] = {"",
                               ":bias:bias_down:residual",
                               ":residual:in_place:pad=8",
                               ":norm",
                               ":norm:residual_norm_input",
                               ":add_norm:residual_norm_input:bias_down",
                               ":add_norm(eps=1e-3,weight_offset=1):residual"};
  std::size_t i = 0;
  for (const std::string& layout : layouts) {
    for (const std::string& flag : flags) {
      // Blocks of three rows have no boxes, which more tokens need.
      const std::string m = std::to_string(1 + i * 5 % (layout == "interleaved3" ? 16 : 160));
      EXPECT_GT(verify_decode(m + "x136x400:mlp:" + gates[i % 8] + ":" + layout + flag, false), 0);
      ++i;
    }
  }
  for (const std::string flag : {":bias", ":norm", ":add_norm:bias", ":pad=8"}) {
    EXPECT_GT(verify_decode("9x136x392:gate_up:interleaved4" + flag, true), 0);
  }
  for (const std::string flag : {":bias_down:residual", ":residual:in_place", ":pad=8"}) {
    EXPECT_GT(verify_decode("9x136x392:down" + flag, true), 0);
  }
}

// gate_up with a deferred norm reads x, residual and weight as they are and stores their sum: every
// token count that is taken, offsets, gates, tails of all sizes.
TEST_F(GpuDecode, DeferredNorms) {
  const auto verify = [](const std::string& text) {
    const auto c = harness::parse_case(text).value();
    harness::Verification verification(c, gpu::rig(), {.max_operations = 1e7});
    int runs = 0;
    for (const std::string& config : gpu::decode_configs(c.problem).deferred) {
      EXPECT_EQ(config.rfind("gate_up=bn16r64k256s5", 0), 0U) << config;
      const auto report = verification.run({.variant = kDecode, .config = config.c_str()});
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << report->text();
      ++runs;
    }
    EXPECT_GT(runs, 0) << text;
  };
  verify("1x64x64:mlp:norm:identity");
  verify("5x512x512:mlp:add_norm:identity");
  ASSERT_FALSE(HasFailure());
  for (const std::string shape :
       {"x8x8", "x72x104", "x520x2056", "x1032x4408", "x1544x264", "x2056x8"}) {
    for (int m = 1; m <= 8; ++m) {
      verify(std::to_string(m) + shape + ":mlp:add_norm:residual_norm_input");
      verify(std::to_string(m) + shape + ":gate_up:add_norm");
    }
    for (const char* m : {"3", "7", "8"}) verify(m + shape + ":mlp:norm");
  }
  verify("5x264x136:mlp:add_norm(weight_offset=1):bias:bias_down:residual:gelu_tanh");
  verify("4x264x136:mlp:add_norm(eps=1,weight_offset=1):clamped_swiglu:interleaved8+up_first");
  verify("8x264x136:mlp:norm(weight_offset=1):residual_norm_input:concat:pad=8");
  verify("5x264x136:mlp:add_norm:residual:in_place:pad=8");
  verify("3x24x40:mlp:add_norm:fill=special");
  verify("8x24x40:mlp:norm:relu:fill=special");
  verify("7x264x136:gate_up:norm:bias:interleaved1");
  // Each warpgroup has several blocks, of which it sums squares in the first alone.
  for (const std::string m : {"1", "4", "8"}) {
    verify(m + "x264x17000:mlp:add_norm:bias:residual_norm_input");
  }
}

// x_sum may be null: deferred or in a launch of its own the norm gives y the same bits and writes
// nowhere else.
TEST_F(GpuDecode, ASumThatNobodyKeeps) {
  for (const char* config : {"gate_up=bn16r64k256s5", "norm=row"}) {
    for (const std::string text : {"5x264x520:mlp:add_norm:residual_norm_input",
                                   "5x264x520:mlp:add_norm", "5x264x520:mlp:add_norm:residual"}) {
      SCOPED_TRACE(text + " " + config);
      std::string y[2];
      for (const bool kept : {false, true}) {
        Job job = make_job(kept ? text : text + ":minimal", {.variant = kDecode, .config = config});
        ASSERT_EQ(job.set->operands().x_sum != nullptr, kept);
        ASSERT_OK(job.run(gpu::rig().stream()));
        ASSERT_OK(gpu::rig().synchronize());
        expect_right(job);
        const auto now = job.set->host_matrix(Operand::kY);
        ASSERT_OK(now);
        y[kept ? 1 : 0].assign(static_cast<const char*>(now->data),
                               static_cast<std::size_t>(extent_bytes(now->spec)));
      }
      EXPECT_TRUE(y[0] == y[1]);
    }
  }
}

TEST_F(GpuDecode, SpecialValues) {
  for (const std::string gate : {"silu", "gelu_erf", "clamped_swiglu", "relu"}) {
    EXPECT_GT(verify_decode("9x24x40:mlp:" + gate + ":fill=special", false), 0);
    EXPECT_GT(verify_decode("9x24x40:gate_up:fp16:" + gate + ":fill=special", false), 0);
  }
}

// One launch and several, also with K divided among two and four CTAs, of which some have no token
// to finish (3 and 13 tokens).
enum class NormForm : std::uint8_t { kDeferred, kLaunched };  // where there is a norm
struct Repeated {
  const char* text;
  NormForm form;
  const char* divided;  // how the config ends: "x2", "x4", or "" for none
};
constexpr Repeated kRepeated[] = {
    {"1x1032x2056:down", NormForm::kDeferred, ""},
    {"7x1032x2056:gate_up:add_norm", NormForm::kDeferred, ""},
    {"13x1032x2056:gate_up:add_norm", NormForm::kLaunched, ""},
    {"64x1032x2056:down:residual", NormForm::kDeferred, "x2"},
    {"64x1032x2056:gate_up:bias", NormForm::kDeferred, "x2"},
    {"13x1032x2056:down", NormForm::kDeferred, "x4"},
    {"8x1032x2056:mlp", NormForm::kDeferred, ""},
    {"5x1032x2056:mlp:add_norm:residual_norm_input", NormForm::kDeferred, ""},
    {"5x1032x2056:mlp:add_norm:residual_norm_input", NormForm::kLaunched, ""},
    {"8x1032x2056:mlp:add_norm:residual", NormForm::kDeferred, "x2"},
    {"4x1032x2056:mlp:add_norm:residual_norm_input", NormForm::kDeferred, ""},
    {"3x1032x2056:mlp:residual", NormForm::kDeferred, "x2"},
    {"40x1032x2056:mlp:bias_down:residual", NormForm::kDeferred, "x4"},
    {"96x1032x2056:down:residual", NormForm::kDeferred, "x2"},
    {"70x1032x2056:gate_up:bias", NormForm::kDeferred, "x2"},
    {"90x1032x2056:mlp:residual", NormForm::kDeferred, "x4"},
    {"81x1032x8200:gate_up", NormForm::kDeferred, ""},
    {"128x1032x2056:mlp:residual", NormForm::kDeferred, "x4"},
    {"120x1032x8200:gate_up", NormForm::kDeferred, ""},
    {"160x1032x2056:down:residual", NormForm::kDeferred, "x2"},
    {"150x1032x8200:mlp:bias", NormForm::kDeferred, ""},
    {"8x264x6600:mlp:residual", NormForm::kDeferred, ""},
    {"64x264x9000:mlp", NormForm::kDeferred, "x4"}};

Job make_repeated(const Repeated& repeated) {
  const gpu::NormForms forms =
      gpu::decode_configs(harness::parse_case(repeated.text).value().problem);
  const auto& names = repeated.form == NormForm::kLaunched ? forms.launched : forms.deferred;
  const auto name = std::find_if(names.begin(), names.end(), [&](const std::string& n) {
    const auto x = n.find('x', n.rfind('s'));
    return (x == std::string::npos ? "" : n.substr(x)) == repeated.divided;
  });
  if (name == names.end())
    throw std::runtime_error(std::string("no such config: ") + repeated.text);
  return make_job(repeated.text, {.variant = kDecode, .config = name->c_str()});
}

cudaGraphExec_t capture(const std::vector<const Job*>& chain, cudaStream_t stream) {
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (const Job* job : chain) EXPECT_OK(job->run(stream));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  return exec;
}

// 10,000 replays of a graph in a row, so that a lost or doubled arrival, or a stage read too early,
// would show; the words of the header go on from launch to launch.
TEST_F(GpuDecode, ManyReplaysOnOneWorkspaceGiveTheSameBits) {
  for (const Repeated& repeated : kRepeated) {
    Job job = make_repeated(repeated);
    StreamGuard guard;
    cudaGraphExec_t graph = capture({&job}, guard.stream);
    std::string first;
    for (int round = 0; round <= 20; ++round) {
      ASSERT_OK(job.set->reset_outputs());
      for (int i = 0; i < (round == 0 ? 1 : 500); ++i) {
        ASSERT_CUDA(cudaGraphLaunch(graph, guard.stream));
      }
      ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
      if (round == 0) {
        expect_right(job);
        first = bits_of(*job.set);
      }
      ASSERT_TRUE(bits_of(*job.set) == first) << job.plan.config_name() << " round " << round;
    }
    EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }
}

// Two streams replay graphs of eight launches at once, 1,000 times together, each with a workspace
// of its own.
TEST_F(GpuDecode, GraphsReplayOnTwoStreamsAtOnce) {
  for (const Repeated& repeated : kRepeated) {
    Job jobs[2] = {make_repeated(repeated), make_repeated(repeated)};
    StreamGuard streams[2];
    cudaGraphExec_t graphs[2] = {};
    std::string first[2];
    for (int i = 0; i < 2; ++i) {
      graphs[i] = capture(std::vector<const Job*>(8, &jobs[i]), streams[i].stream);
      ASSERT_CUDA(cudaGraphLaunch(graphs[i], streams[i].stream));
      ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
      expect_right(jobs[i]);
      first[i] = bits_of(*jobs[i].set);
      ASSERT_OK(jobs[i].set->reset_outputs());
    }
    cudaError_t launched[2] = {};
    const auto replay = [&](int i) {
      for (int r = 0; r < 500; ++r) {
        launched[i] = std::max(launched[i], cudaGraphLaunch(graphs[i], streams[i].stream));
      }
    };
    std::thread other(replay, 1);
    replay(0);
    other.join();
    for (int i = 0; i < 2; ++i) {
      EXPECT_CUDA(launched[i]);
      ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
      EXPECT_TRUE(bits_of(*jobs[i].set) == first[i]) << jobs[i].plan.config_name();
      EXPECT_CUDA(cudaGraphExecDestroy(graphs[i]));
    }
  }
}

// Layers of a model: x of each is y of the one before (with a norm, the residual its sum), one
// workspace, programmatic launches one
// behind the other. Against the same layers with a wait after each: who reads x or h before the
// launch ahead is done, or writes h while it is read, changes bits.
TEST_F(GpuDecode, ChainedLayersEqualLayersOneByOne) {
  constexpr int kLayers = 12;
  for (const char* text :
       {"1x1032x2056:mlp:sigmoid", "16x1032x2056:mlp:sigmoid", "40x264x520:mlp:sigmoid",
        "1x264x6600:mlp:sigmoid", "40x264x9000:mlp:sigmoid", "80x264x6600:mlp:sigmoid",
        "1x1032x2056:mlp:sigmoid:add_norm", "5x1032x2056:mlp:sigmoid:add_norm",
        "5x264x6600:mlp:sigmoid:add_norm", "5x264x6600:mlp:sigmoid:add_norm:residual_norm_input"}) {
    for (const auto& form : tested_configs(harness::parse_case(text).value().problem)) {
      const std::string& config = form.front();
      const Options options{.variant = kDecode, .config = config.c_str()};
      std::vector<Job> jobs;
      for (int i = 0; i < 2; ++i) jobs.push_back(make_job(text, options));
      const auto layer = [&](int i, cudaStream_t stream) {
        Operands operands = jobs[static_cast<std::size_t>(i % 2)].set->operands();
        if (i > 0) {
          const Operands before = jobs[static_cast<std::size_t>((i + 1) % 2)].set->operands();
          operands.x = before.y;
          if (operands.x_residual != nullptr) operands.x_residual = before.x_sum;
        }
        return sluice::run(jobs[0].plan, operands, jobs[0].workspace.workspace, stream);
      };
      StreamGuard guard;
      std::string bits[2];
      for (const bool chained : {false, true}) {
        for (Job& job : jobs) ASSERT_OK(job.set->reset_outputs());
        for (int round = 0; round < (chained ? 20 : 1); ++round) {
          for (int i = 0; i < kLayers; ++i) {
            ASSERT_OK(layer(i, guard.stream));
            if (chained) continue;
            ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
          }
        }
        ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
        bits[chained ? 1 : 0] = bits_of(*jobs[(kLayers - 1) % 2].set);
      }
      EXPECT_TRUE(bits[0] == bits[1]) << text << " " << config;
      // sigmoid is linear in u: twelve layers neither vanish nor overflow, so the bits say
      // something.
      const auto y = jobs[(kLayers - 1) % 2].set->host_matrix(Operand::kY);
      ASSERT_OK(y);
      EXPECT_TRUE(std::isnormal(y->at(0, 0))) << y->at(0, 0);
    }
  }
}

// A real layer, sampled: several blocks a CTA, every chunk full.
TEST_F(GpuDecode, ALayerOfLlama8B) {
  for (const std::string m : {"8", "64", "96", "128", "160"}) {
    EXPECT_GT(verify_decode(m + "x4096x14336:mlp", false), 0);
  }
}

}  // namespace
}  // namespace sluice
