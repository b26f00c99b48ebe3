// SPDX-License-Identifier: Apache-2.0
// run() on a GPU: graphs, streams, threads, the current device, workspaces and wrong arguments.
#include <cuda_runtime_api.h>

#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::expect_right;
using gpu::Job;
using gpu::make_job;
using gpu::StreamGuard;
using harness::OperandSet;
using harness::RigBuffer;

const char* const kCases[] = {
    "7x40x72:mlp:add_norm:residual_norm_input:bias:bias_down",
    "130x64x96:gate_up:interleaved1:save",
    "33x48x80:mlp_grad:recompute:bias:bias_down",
    "64x32x48:gate_mul_grad",
};

TEST(GpuRun, CanBeCapturedAndReplayed) {
  auto* const stream = static_cast<cudaStream_t>(gpu::rig().stream());
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    Job job = make_job(text);
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const Status enqueued = job.run(stream);
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_OK(enqueued);
    cudaGraphExec_t exec = nullptr;
    ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_OK(job.set->reset_outputs());
      ASSERT_CUDA(cudaGraphLaunch(exec, stream));
      ASSERT_CUDA(cudaStreamSynchronize(stream));
      expect_right(job);
    }
    ASSERT_CUDA(cudaGraphExecDestroy(exec));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
}

// Global capture mode forbids calls that allocate or synchronise: run() must make none even the
// first time a process launches the kernel, which the test above shows for its first case.

TEST(GpuRun, FourThreadsOnTwoStreamsAtOnce) {
  gpu::expect_right_in_threads(std::vector<std::string>(std::begin(kCases), std::end(kCases)), 50);
}

// A thread has no context before its first call, and tensor maps are encoded in one.
TEST(GpuRun, MayBeTheFirstCallOfAThread) {
  Job job = make_job("16x64x96:mlp");
  StreamGuard guard;
  ASSERT_CUDA(cudaDeviceSynchronize());
  std::string message = "ok";
  std::thread([&] {
    const Status status =
        sluice::run(job.plan, job.set->operands(), job.workspace.workspace, guard.stream);
    if (!status) message = status.error().message;
  }).join();
  EXPECT_EQ(message, "ok");
  ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
  expect_right(job);
}

TEST(GpuRun, OnePlanOnTwoStreamsWithAWorkspaceEach) {
  Job jobs[2] = {make_job(kCases[0]), make_job(kCases[0])};
  StreamGuard streams[2];
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(sluice::run(jobs[0].plan, jobs[i].set->operands(), jobs[i].workspace.workspace,
                            streams[i].stream));
    }
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
    expect_right(jobs[i]);
  }
}

TEST(GpuRun, SameBitsForAnyConfig) {
  const auto c = harness::parse_case("70x72x104:mlp:bias:residual").value();
  harness::Rig& rig = gpu::rig();
  auto set = std::move(OperandSet::make(c, rig).value());
  std::string first;
  for (const std::string& config : config_names("cuda.simt", c.problem, rig.device())) {
    Options options;
    options.variant = "cuda.simt";
    options.config = config.c_str();
    const Plan p = plan(c.problem, rig.device(), options).value();
    const auto workspace = std::move(harness::make_workspace(p, rig).value());
    ASSERT_OK(set->reset_outputs());
    ASSERT_OK(sluice::run(p, set->operands(), workspace.workspace, rig.stream()));
    const auto y = set->host_matrix(Operand::kY);
    ASSERT_OK(y);
    std::string bits(static_cast<const char*>(y->data),
                     static_cast<std::size_t>(extent_bytes(y->spec)));
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << config;
  }
}

TEST(GpuRun, LeavesTheCurrentDeviceAsItWas) {
  Job job = make_job(kCases[1]);
  auto header = std::move(RigBuffer::make(gpu::rig(), kWorkspaceHeaderBytes).value());
  const int count = cuda_device_count();
  for (int current = 0; current < count; ++current) {
    ASSERT_CUDA(cudaSetDevice(current));
    EXPECT_OK(job.run(gpu::rig().stream()));
    EXPECT_OK(workspace_init({header.data(), kWorkspaceHeaderBytes}, job.plan.device,
                             gpu::rig().stream()));
    int after = -1;
    ASSERT_CUDA(cudaGetDevice(&after));
    EXPECT_EQ(after, current);
  }
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_OK(gpu::rig().synchronize());
}

TEST(GpuRun, MZeroReadsNoPointer) {
  Problem problem = harness::parse_case("1x64x96:mlp").value().problem;
  problem.m = 0;
  const auto p = plan(problem, gpu::rig().device());
  ASSERT_OK(p);
  EXPECT_EQ(p->workspace_bytes, 0U);
  EXPECT_OK(sluice::run(*p, Operands{}, Workspace{}, gpu::rig().stream()));
}

TEST(GpuRun, RefusesAMisalignedPointer) {
  Job job = make_job("4x64x96:gate_up");
  Operands operands = job.set->operands();
  operands.x = static_cast<const char*>(operands.x) + 2;
  const Status status =
      sluice::run(job.plan, operands, job.workspace.workspace, gpu::rig().stream());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().text().find("x: got pointer"), std::string_view::npos);
}

TEST(GpuRun, RefusesASmallWorkspace) {
  Job job = make_job("4x64x96:mlp");
  Workspace small = job.workspace.workspace;
  small.bytes = job.plan.workspace_bytes - 1;
  const Status status = sluice::run(job.plan, job.set->operands(), small, gpu::rig().stream());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
}

TEST(GpuRun, AnAbsentDeviceIsAnErrorAndChangesNothing) {
  Job job = make_job("4x64x96:gate_up");
  job.plan.device.ordinal = cuda_device_count();
  const Status status = job.run(gpu::rig().stream());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().cuda_code, 0);
  EXPECT_CUDA(cudaGetLastError());
  int current = -1;
  EXPECT_CUDA(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
  EXPECT_FALSE(cuda_device(cuda_device_count()));
  EXPECT_FALSE(cuda_device(-1));
}

TEST(GpuRun, WorkspaceInitZeroesTheHeaderAndNothingElse) {
  constexpr std::size_t kBytes = kWorkspaceHeaderBytes + 512;
  auto buffer = std::move(RigBuffer::make(gpu::rig(), kBytes).value());
  ASSERT_OK(gpu::rig().fill_bytes(buffer.data(), 0xA5, kBytes));
  ASSERT_OK(workspace_init({buffer.data(), kBytes}, gpu::rig().device(), gpu::rig().stream()));
  std::vector<unsigned char> host(kBytes);
  ASSERT_OK(gpu::rig().download(host.data(), buffer.data(), kBytes));
  for (std::size_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(host[i], i < kWorkspaceHeaderBytes ? 0 : 0xA5) << i;
  }
}

// Plans of different shapes take turns on one workspace and one stream.
TEST(GpuRun, PlansShareAWorkspaceOnOneStream) {
  Job small = make_job(kCases[0]);
  Job large = make_job(kCases[2]);
  const Workspace shared = small.plan.workspace_bytes > large.plan.workspace_bytes
                               ? small.workspace.workspace
                               : large.workspace.workspace;
  for (int i = 0; i < 20; ++i) {
    for (Job* job : {&small, &large}) {
      ASSERT_OK(sluice::run(job->plan, job->set->operands(), shared, gpu::rig().stream()));
    }
  }
  ASSERT_OK(gpu::rig().synchronize());
  expect_right(small);
  expect_right(large);
}

TEST(GpuDevice, DescribesItself) {
  const Device& device = gpu::rig().device();
  EXPECT_EQ(device.backend, Backend::kCuda);
  EXPECT_GE(device.compute_capability, 75);
  EXPECT_NE(device.arch, Arch::kNone);
  EXPECT_GT(device.sm_count, 0);
  EXPECT_GE(device.smem_per_block_bytes, 48 * 1024);
  EXPECT_GT(device.l2_bytes, 0);
  EXPECT_GT(device.memory_bytes, std::int64_t{1} << 30);
  EXPECT_GT(device.memory_bytes_per_second, std::int64_t{100} * 1'000'000'000);
  EXPECT_GE(device.driver_version, device.runtime_version / 1000 * 1000);
  EXPECT_NE(std::strlen(device.name), 0U);
}

}  // namespace
}  // namespace sluice
