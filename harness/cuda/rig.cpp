// SPDX-License-Identifier: Apache-2.0
// The CUDA rig: plain device memory, one stream of its own.
#include "harness/rig.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "harness/cuda/check.hpp"
#include "harness/cuda/fill.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kAlignment = 4096;

class CudaRig final : public Rig {
 public:
  CudaRig(const Device& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaRig() override {
    free(flush_);
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] Stream stream() const noexcept override { return stream_; }

  // cudaMalloc promises 256 bytes and gives no more to small blocks (seen on an H200), so a page is
  // added and the block that the driver knows is remembered.
  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    HARNESS_CUDA_TRY(cudaSetDevice(device_.ordinal));
    void* block = nullptr;
    HARNESS_CUDA_TRY(cudaMalloc(&block, bytes + kAlignment));
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    void* pointer = static_cast<char*>(block) + (kAlignment - address % kAlignment) % kAlignment;
    blocks_.emplace(pointer, block);
    return pointer;
  }
  void free(void* pointer) noexcept override {
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return;  // null, too
    static_cast<void>(cudaFree(found->second));
    blocks_.erase(found);
  }

  [[nodiscard]] std::int64_t free_bytes() const noexcept override {
    std::size_t free = 0;
    std::size_t total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
  }
  Status upload(void* destination, const void* host, std::size_t bytes) override {
    return copy(destination, host, bytes, cudaMemcpyHostToDevice);
  }
  Status download(void* host, const void* source, std::size_t bytes) override {
    return copy(host, source, bytes, cudaMemcpyDeviceToHost);
  }
  Status fill_bytes(void* pointer, unsigned char value, std::size_t bytes) override {
    if (bytes == 0) return {};
    HARNESS_CUDA_TRY(cudaMemsetAsync(pointer, value, bytes, stream_));
    return synchronize();
  }
  Status fill_matrix(const OperandSpec& spec, const FillParams& params, void* base) override {
    HARNESS_CUDA_TRY(cudaSetDevice(device_.ordinal));
    SLUICE_TRY(fill_matrix_on_gpu(spec, params, base, stream_));
    return synchronize();
  }
  Status synchronize() override {
    HARNESS_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  // Writing four times the L2 leaves none of the old lines there.
  Status flush_caches() override {
    const std::size_t bytes =
        std::max<std::size_t>(4 * static_cast<std::size_t>(device_.l2_bytes), std::size_t{1} << 26);
    if (flush_ == nullptr) {
      auto memory = allocate(bytes);
      if (!memory) return memory.error();
      flush_ = *memory;
    }
    return fill_bytes(flush_, 0x5A, bytes);
  }

 private:
  Status copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return {};
    HARNESS_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    return synchronize();
  }

  Device device_;
  cudaStream_t stream_;
  void* flush_ = nullptr;
  std::unordered_map<void*, void*> blocks_;  // aligned pointer to what cudaMalloc returned
};

}  // namespace

Expected<std::unique_ptr<Rig>> make_cuda_rig(int ordinal, int max_capability) {
  auto device = cuda_device(ordinal);
  if (!device) return device.error();
  limit_capability(*device, max_capability);
  HARNESS_CUDA_TRY(cudaSetDevice(ordinal));
  cudaStream_t stream = nullptr;
  HARNESS_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::unique_ptr<Rig>(std::make_unique<CudaRig>(*device, stream));
}

}  // namespace sluice::harness
