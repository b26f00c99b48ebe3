// SPDX-License-Identifier: Apache-2.0
// parse_safetensors(): any bytes give tensors that lie within them, or an error with a message.
#include <cstdlib>
#include <span>

#include "harness/safetensors.hpp"
#include "tests/fuzz/fuzz_image.hpp"

// Out of line: what the compiler cannot see through it cannot leave out.
__attribute__((noinline)) static void require(bool condition) {
  if (!condition) std::abort();
}

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice::harness;
  std::size_t bytes = 0;
  const auto words = fuzz::aligned_image(data, size, bytes);
  // A copy of exactly that size: a read one byte past it is an error that ASan sees.
  auto* const image = static_cast<std::byte*>(std::malloc(bytes == 0 ? 1 : bytes));
  require(image != nullptr);
  if (bytes != 0) std::memcpy(image, words.data(), bytes);
  const auto index = parse_safetensors({image, bytes}, "fuzz.safetensors");
  if (!index) {
    require(!index.error().text().empty());
  } else {
    std::size_t total = 0;
    unsigned sum = 0;
    for (const TensorView& tensor : index->tensors) {
      require(tensor.bytes >= 0);
      require((tensor.data == nullptr) == (tensor.bytes == 0));
      for (std::int64_t i = 0; i < tensor.bytes; ++i) {
        sum += std::to_integer<unsigned>(tensor.data[i]);
      }
      std::int64_t elements = 1;
      for (const std::int64_t dim : tensor.shape) {
        require(dim >= 0);
        elements = tensor.bytes == 0 ? 0 : elements * dim;
      }
      if (tensor.dtype) require(elements * sluice::size_bytes(*tensor.dtype) == tensor.bytes);
      total += static_cast<std::size_t>(tensor.bytes);
    }
    require(total < bytes && sum <= 255 * total);
  }
  std::free(image);
  return 0;
}
