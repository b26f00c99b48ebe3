// SPDX-License-Identifier: Apache-2.0
// open_checkpoint() on one file of any content: weights of the promised extent, or an error.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "harness/checkpoint.hpp"
#include "tests/fuzz/fuzz_image.hpp"

namespace {

// Reads every byte, which ASan and the mapping's end check.
unsigned touch(const void* pointer, std::int64_t bytes) {
  unsigned sum = 0;
  const auto* const data = static_cast<const std::byte*>(pointer);
  for (std::int64_t i = 0; data != nullptr && i < bytes; ++i) {
    sum += std::to_integer<unsigned>(data[i]);
  }
  return sum;
}

// The sum goes out, so that no read of it can be left out.
unsigned use(const sluice::harness::Checkpoint& checkpoint) {
  const std::int64_t element = sluice::size_bytes(bias_dtype(checkpoint));
  const std::int64_t blocks = sluice::block_elems(checkpoint.dtype);
  if (checkpoint.d % blocks != 0 || checkpoint.h % blocks != 0) std::abort();
  const std::int64_t matrix = checkpoint.d * sluice::bytes_of(checkpoint.dtype, checkpoint.h);
  if (checkpoint.layers.empty() || matrix <= 0 || !(checkpoint.eps > 0.0F)) std::abort();
  if (checkpoint.alignment_bytes % sluice::alignment_of(checkpoint.dtype) != 0) std::abort();
  unsigned sum = 0;
  for (const auto& layer : checkpoint.layers) {
    if (layer.w_gate == nullptr || layer.w_up == nullptr || layer.w_down == nullptr) std::abort();
    for (const void* weight : {layer.w_gate, layer.w_up, layer.w_down}) {
      sum += touch(weight, matrix);
    }
    for (const void* bias : {layer.b_gate, layer.b_up}) sum += touch(bias, checkpoint.h * element);
    sum += touch(layer.b_down, checkpoint.d * element);
    sum += touch(layer.norm_weight, checkpoint.d * sluice::size_bytes(layer.norm_dtype));
  }
  const auto rows =
      sluice::harness::embedding_rows(checkpoint, 3, sluice::DType::kF32, &checkpoint.layers[0]);
  if (rows && rows->size() != static_cast<std::size_t>(12 * checkpoint.d)) std::abort();
  return sum;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t bytes = 0;
  const auto words = sluice::harness::fuzz::aligned_image(data, size, bytes);
  const int file = ::memfd_create("checkpoint", MFD_CLOEXEC);
  if (file < 0 || ::write(file, words.data(), bytes) != static_cast<ssize_t>(bytes)) std::abort();
  const auto checkpoint = sluice::harness::open_checkpoint("/proc/self/fd/" + std::to_string(file));
  if (checkpoint) {
    volatile unsigned sum = use(*checkpoint);
    static_cast<void>(sum);
  } else if (checkpoint.error().text().empty()) {
    std::abort();
  }
  ::close(file);
  return 0;
}
