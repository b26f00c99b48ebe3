// SPDX-License-Identifier: Apache-2.0
#include "harness/safetensors_writer.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "files/replace_file.hpp"

namespace sluice::harness {

namespace {

using nlohmann::json;

constexpr std::size_t kDataAlignment = 64;  // a cache line, and more than any vector load wants

// Bytes of an element; 0 of types with less than a byte and where there is none.
std::int64_t element_bytes(const TensorToWrite& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : tensor.shape) elements *= dim;
  return elements == 0 ? 0 : tensor.bytes / elements;
}

// Length and JSON, as the file begins.
std::string header_of(const std::vector<TensorToWrite>& tensors,
                      const std::map<std::string, std::string, std::less<>>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t begin = end;
    end += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype_name}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text(sizeof(std::uint64_t), '\0');
  text += header.dump();
  text.append((kDataAlignment - text.size() % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t length = text.size() - sizeof(std::uint64_t);
  std::memcpy(text.data(), &length, sizeof(length));  // the host is little-endian: safetensors.hpp
  return text;
}

}  // namespace

Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                         const std::map<std::string, std::string, std::less<>>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return std::pair(-element_bytes(a), std::string_view(a.name)) <
           std::pair(-element_bytes(b), std::string_view(b.name));
  });
  return files::replace_file(path, [&](const files::Append& append) -> Status {
    SLUICE_TRY(append(header_of(tensors, metadata)));
    for (const TensorToWrite& tensor : tensors) {
      const Expected<std::span<const std::byte>> data = tensor.data();
      if (!data) return data.error();
      if (static_cast<std::int64_t>(data->size()) != tensor.bytes) {
        return make_error(ErrorCode::kInternal, "tensor %s: got %zu bytes, wanted %lld",
                          tensor.name.c_str(), data->size(), static_cast<long long>(tensor.bytes));
      }
      SLUICE_TRY(append({reinterpret_cast<const char*>(data->data()), data->size()}));
    }
    return {};
  });
}

}  // namespace sluice::harness
