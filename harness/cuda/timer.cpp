// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/timer.hpp"

#include <vector>

#include "harness/cuda/check.hpp"
#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(Rig& rig) : stream_(static_cast<cudaStream_t>(rig.stream())) {}
  ~CudaStopwatch() override {
    for (cudaGraphExec_t graph : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
    if (start_ != nullptr) static_cast<void>(cudaEventDestroy(start_));
    if (stop_ != nullptr) static_cast<void>(cudaEventDestroy(stop_));
  }

  Status open() {
    HARNESS_CUDA_TRY(cudaEventCreate(&start_));
    HARNESS_CUDA_TRY(cudaEventCreate(&stop_));
    return {};
  }

  Expected<std::size_t> prepare(std::vector<Run> runs) override {
    if (runs.empty()) return make_error(ErrorCode::kInvalidArgument, "timer: got an empty list");
    // Once outside the capture: modules load and attributes are set lazily, and an error has a
    // better message here.
    SLUICE_TRY(runs.front()(stream_));
    HARNESS_CUDA_TRY(cudaStreamSynchronize(stream_));
    HARNESS_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Status failed;
    for (const Run& run : runs) {
      failed = run(stream_);
      if (!failed) break;
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (!failed) {
      if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
      static_cast<void>(cudaGetLastError());
      return failed.error();
    }
    if (ended != cudaSuccess) return cuda_error(ended, "cudaStreamEndCapture");
    cudaGraphExec_t exec = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    if (made != cudaSuccess) return cuda_error(made, "cudaGraphInstantiate");
    HARNESS_CUDA_TRY(cudaGraphUpload(exec, stream_));
    graphs_.push_back(exec);
    return graphs_.size() - 1;
  }

  Expected<double> time_us(std::size_t handle) override {
    HARNESS_CUDA_TRY(cudaEventRecord(start_, stream_));
    HARNESS_CUDA_TRY(cudaGraphLaunch(graphs_[handle], stream_));
    HARNESS_CUDA_TRY(cudaEventRecord(stop_, stream_));
    HARNESS_CUDA_TRY(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    HARNESS_CUDA_TRY(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace

Expected<std::unique_ptr<Stopwatch>> make_cuda_stopwatch(Rig& rig) {
  HARNESS_CUDA_TRY(cudaSetDevice(rig.device().ordinal));
  auto stopwatch = std::make_unique<CudaStopwatch>(rig);
  SLUICE_TRY(stopwatch->open());
  return std::unique_ptr<Stopwatch>(std::move(stopwatch));
}

}  // namespace sluice::harness
