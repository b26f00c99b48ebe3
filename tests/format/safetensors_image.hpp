// SPDX-License-Identifier: Apache-2.0
// Makes safetensors images for tests and fuzzing, right ones and wrong ones; has nothing in common
// with the reader under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::harness::format_test {

/// Length, header, data: a safetensors image, whatever the header says.
inline std::string image(std::string_view header, std::string_view data) {
  const auto size = static_cast<std::uint64_t>(header.size());
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((size >> (8 * i)) & 0xFF);
  return bytes.append(header).append(data);
}

/// Spaces up to a multiple of 16 with the length before it, as writers pad.
inline std::string padded(std::string header) {
  while ((header.size() + 8) % 16 != 0) header += ' ';
  return header;
}

/// One header entry: "name":{"dtype":...}.
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, std::uint64_t begin, std::uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// fp32 tensors by name; element i of the t-th tensor in order of names holds 1000 t + i. Bytes
/// hold 16 t + i.
class TensorSet {
 public:
  TensorSet& add(const std::string& name, std::vector<std::int64_t> shape) {
    shapes_[name] = std::move(shape);
    return *this;
  }
  TensorSet& add_bytes(const std::string& name, std::vector<std::int64_t> shape) {
    raw_.insert(name);
    return add(name, std::move(shape));
  }
  TensorSet& remove(const std::string& name) {
    shapes_.erase(name);
    raw_.erase(name);
    return *this;
  }
  [[nodiscard]] const auto& shapes() const { return shapes_; }

  [[nodiscard]] std::string bytes(const std::string& metadata = "") const {
    std::string header = "{" + metadata;
    std::string data;
    float base = 0;
    for (const auto& [name, shape] : shapes_) {
      const std::uint64_t begin = data.size();
      std::int64_t elements = 1;
      std::string dims;
      for (const std::int64_t dim : shape) {
        elements *= dim;
        dims += (dims.empty() ? "" : ",") + std::to_string(dim);
      }
      const bool raw_bytes = raw_.count(name) != 0;
      for (std::int64_t i = 0; raw_bytes && i < elements; ++i) {
        data.push_back(static_cast<char>(static_cast<std::int64_t>(base) / 1000 * 16 + i));
      }
      for (std::int64_t i = 0; !raw_bytes && i < elements; ++i) {
        const float value = base + static_cast<float>(i);
        char raw[4];
        std::memcpy(raw, &value, 4);
        data.append(raw, 4);
      }
      base += 1000;
      header += (header.size() > 1 ? "," : "") +
                entry(name, raw_bytes ? "U8" : "F32", "[" + dims + "]", begin, data.size());
    }
    return image(padded(header + "}"), data);
  }

 private:
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::set<std::string> raw_;
};

}  // namespace sluice::harness::format_test
