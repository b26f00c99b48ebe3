// SPDX-License-Identifier: Apache-2.0
#include "cuda/stopwatch.hpp"

#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/status.hpp"

namespace sluice::cuda {
namespace {

class CudaStopwatch final : public timing::Stopwatch {
 public:
  explicit CudaStopwatch(cudaStream_t stream) : stream_(stream) {}
  ~CudaStopwatch() override {
    for (cudaGraphExec_t graph : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
    if (start_ != nullptr) static_cast<void>(cudaEventDestroy(start_));
    if (stop_ != nullptr) static_cast<void>(cudaEventDestroy(stop_));
  }

  Status open() {
    SLUICE_CUDA_TRY(cudaEventCreate(&start_));
    SLUICE_CUDA_TRY(cudaEventCreate(&stop_));
    return {};
  }

  Expected<std::size_t> prepare(std::vector<timing::Run> runs) override {
    if (runs.empty()) return make_error(ErrorCode::kInvalidArgument, "timer: got an empty list");
    // Once outside the capture: modules load and attributes are set lazily, and an error has a
    // better message here.
    SLUICE_TRY(runs.front()(stream_));
    SLUICE_CUDA_TRY(cudaStreamSynchronize(stream_));
    SLUICE_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Status failed;
    for (const timing::Run& run : runs) {
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
    graphs_.push_back(exec);
    SLUICE_CUDA_TRY(cudaGraphUpload(exec, stream_));
    return graphs_.size() - 1;
  }

  Expected<double> time_us(std::size_t handle) override {
    SLUICE_CUDA_TRY(cudaEventRecord(start_, stream_));
    SLUICE_CUDA_TRY(cudaGraphLaunch(graphs_[handle], stream_));
    SLUICE_CUDA_TRY(cudaEventRecord(stop_, stream_));
    SLUICE_CUDA_TRY(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    SLUICE_CUDA_TRY(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace

Expected<std::unique_ptr<timing::Stopwatch>> make_stopwatch(int ordinal, Stream stream) {
  SLUICE_CUDA_TRY(cudaSetDevice(ordinal));
  auto stopwatch = std::make_unique<CudaStopwatch>(static_cast<cudaStream_t>(stream));
  SLUICE_TRY(stopwatch->open());
  return std::unique_ptr<timing::Stopwatch>(std::move(stopwatch));
}

}  // namespace sluice::cuda
