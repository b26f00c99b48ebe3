// SPDX-License-Identifier: Apache-2.0
#include "cuda/host/arena.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cuda/host/status.hpp"
#include "cuda/host/stopwatch.hpp"

namespace sluice::cuda {
namespace {

// cudaMalloc promises 256 bytes and gives no more to small blocks.
constexpr std::size_t kAlignment = 4096;

class CudaArena final : public timing::Arena {
 public:
  CudaArena(int ordinal, int before) : ordinal_(ordinal), before_(before) {}
  ~CudaArena() override {
    CudaArena::free_all();
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaSetDevice(before_));
  }

  Status open() {
    SLUICE_CUDA_TRY(cudaSetDevice(ordinal_));
    SLUICE_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    return {};
  }

  [[nodiscard]] Stream stream() const noexcept override { return stream_; }

  [[nodiscard]] std::int64_t free_bytes() const noexcept override {
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaSetDevice(ordinal_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return 0;
    }
    return static_cast<std::int64_t>(free);
  }

  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    SLUICE_CUDA_TRY(cudaSetDevice(ordinal_));
    void* block = nullptr;
    SLUICE_CUDA_TRY(cudaMalloc(&block, bytes + kAlignment));
    blocks_.push_back(block);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    return static_cast<void*>(static_cast<char*>(block) +
                              (kAlignment - address % kAlignment) % kAlignment);
  }
  void free_all() noexcept override {
    static_cast<void>(cudaSetDevice(ordinal_));
    for (void* const block : blocks_) static_cast<void>(cudaFree(block));
    blocks_.clear();
  }

  Status upload(void* to, const void* host, std::size_t bytes) override {
    return copy(to, host, bytes, cudaMemcpyHostToDevice);
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  Status clear(void* to, std::size_t bytes) override {
    SLUICE_CUDA_TRY(cudaSetDevice(ordinal_));
    SLUICE_CUDA_TRY(cudaMemsetAsync(to, 0, bytes, stream_));
    SLUICE_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  [[nodiscard]] Expected<std::unique_ptr<timing::Stopwatch>> make_stopwatch() override {
    return cuda::make_stopwatch(ordinal_, stream_);
  }

 private:
  Status copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    SLUICE_CUDA_TRY(cudaSetDevice(ordinal_));
    SLUICE_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    SLUICE_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  int ordinal_;
  int before_;  // the caller's current device
  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
};

}  // namespace

Expected<std::unique_ptr<timing::Arena>> make_arena(int ordinal) {
  int before = 0;
  SLUICE_CUDA_TRY(cudaGetDevice(&before));
  auto arena = std::make_unique<CudaArena>(ordinal, before);
  SLUICE_TRY(arena->open());
  return std::unique_ptr<timing::Arena>(std::move(arena));
}

}  // namespace sluice::cuda
