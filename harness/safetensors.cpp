// SPDX-License-Identifier: Apache-2.0
#include "harness/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "harness/strict_json.hpp"

namespace sluice::harness {

namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data are little-endian and used in place");

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Bit counts stay below this, so that sums and byte offsets cannot overflow 64 bits.
constexpr std::uint64_t kMaxBits = std::uint64_t{1} << 62;

struct DTypeInfo {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};

// Every dtype of the format (safetensors 0.8); those without a DType can be read as raw bytes.
constexpr std::array<DTypeInfo, 22> kDTypes{{
    {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16},
    {"F32", 32, DType::kF32},
    {"F64", 64, DType::kF64},
    {"BOOL", 8, {}},
    {"U8", 8, {}},
    {"I8", 8, {}},
    {"U16", 16, {}},
    {"I16", 16, {}},
    {"U32", 32, {}},
    {"I32", 32, {}},
    {"U64", 64, {}},
    {"I64", 64, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
}};

// A failure of one tensor: "FILE: tensor NAME: WHAT".
Error tensor_error(const std::string& file, const std::string& tensor, const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "%s: tensor %s: %s", file.c_str(),
                    printable(tensor).c_str(), what.c_str());
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The product of the shape in elements; an explanation where it is no shape.
Expected<std::uint64_t> read_shape(const json& shape, std::vector<std::int64_t>& out) {
  const auto refuse = [](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, "%s", what);
  };
  if (!shape.is_array()) return refuse("shape is not a list");
  bool empty = false;
  for (const json& dim : shape) {
    if (!dim.is_number_integer()) return refuse("shape holds something that is no integer");
    if (!dim.is_number_unsigned()) return refuse("shape holds a negative number");
    const auto value = dim.get<std::uint64_t>();
    if (value > kMaxBits) return refuse("shape overflows 62 bits");
    empty = empty || value == 0;
    out.push_back(static_cast<std::int64_t>(value));
  }
  if (empty) return std::uint64_t{0};
  std::uint64_t elements = 1;
  for (const std::int64_t dim : out) {
    if (elements > kMaxBits / static_cast<std::uint64_t>(dim)) {
      return refuse("shape overflows 62 bits");
    }
    elements *= static_cast<std::uint64_t>(dim);
  }
  return elements;
}

Expected<Range> read_offsets(const json& offsets) {
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "data_offsets is not a list of two non-negative integers");
  }
  const Range range{offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  if (range.begin > range.end) {
    return make_error(ErrorCode::kInvalidArgument, "data_offsets end before they begin");
  }
  return range;
}

struct Entry {
  TensorView view;
  Range range;
};

// One entry of the header. `data` is what follows the header.
Expected<Entry> read_entry(const std::string& file, const std::string& name, const json& fields,
                           std::span<const std::byte> data) {
  if (!fields.is_object()) return tensor_error(file, name, "is not described by an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!fields.contains(key)) return tensor_error(file, name, std::string("lacks ") + key);
  }
  if (fields.size() != 3) return tensor_error(file, name, "has a field that is not of the format");
  Entry entry;
  entry.view.name = name;
  const json& dtype = fields["dtype"];
  if (!dtype.is_string()) return tensor_error(file, name, "dtype is not text");
  entry.view.dtype_name = dtype.get<std::string>();
  const auto* const info =
      std::find_if(kDTypes.begin(), kDTypes.end(),
                   [&](const DTypeInfo& known) { return known.name == entry.view.dtype_name; });
  if (info == kDTypes.end()) {
    return tensor_error(file, name,
                        "unknown dtype \"" + printable(entry.view.dtype_name, 24) + "\"");
  }
  entry.view.dtype = info->dtype;

  const Expected<std::uint64_t> elements = read_shape(fields["shape"], entry.view.shape);
  if (!elements) return tensor_error(file, name, std::string(elements.error().text()));
  if (*elements > kMaxBits / info->bits) return tensor_error(file, name, "shape overflows 62 bits");
  const std::uint64_t bits = *elements * info->bits;
  if (bits % 8 != 0) return tensor_error(file, name, "shape ends within a byte");

  const Expected<Range> range = read_offsets(fields["data_offsets"]);
  if (!range) return tensor_error(file, name, std::string(range.error().text()));
  if (range->end > data.size()) {
    return tensor_error(file, name,
                        "data end at byte " + std::to_string(range->end) + ", but only " +
                            std::to_string(data.size()) + " follow the header (truncated file?)");
  }
  if (range->end - range->begin != bits / 8) {
    return tensor_error(file, name,
                        "shape and dtype need " + std::to_string(bits / 8) +
                            " bytes, data_offsets hold " +
                            std::to_string(range->end - range->begin));
  }
  entry.range = *range;
  entry.view.bytes = static_cast<std::int64_t>(bits / 8);
  if (bits != 0) {
    entry.view.data = data.data() + range->begin;
    const std::uint64_t unit = std::max<std::uint64_t>(info->bits / 8, 1);
    if (reinterpret_cast<std::uintptr_t>(entry.view.data) % unit != 0) {
      return tensor_error(file, name,
                          "data are not aligned to the element size of " + std::to_string(unit));
    }
  }
  return entry;
}

// Every byte after the header belongs to exactly one tensor. `entries` are sorted by offset.
Status check_coverage(const std::string& file, const std::vector<Entry>& entries,
                      std::size_t data_bytes) {
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.range.begin < end) {
      return tensor_error(file, entry.view.name, "data overlap those of another tensor");
    }
    if (entry.range.begin > end) {
      return tensor_error(
          file, entry.view.name,
          "a hole of " + std::to_string(entry.range.begin - end) + " bytes before its data");
    }
    end = entry.range.end;
  }
  if (end != data_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: %zu bytes after the last tensor belong to none", file.c_str(),
                      data_bytes - static_cast<std::size_t>(end));
  }
  return {};
}

Status read_metadata(const std::string& file, const json& fields, SafeTensorsIndex& index) {
  if (!fields.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "%s: __metadata__ is not an object",
                      file.c_str());
  }
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_string()) {
      return make_error(ErrorCode::kInvalidArgument, "%s: __metadata__ of %s is not text",
                        file.c_str(), printable(key).c_str());
    }
    index.metadata.emplace(key, value.get<std::string>());
  }
  return {};
}

// As far as the length that it begins with says; parse_safetensors() judges that length.
Status read_header(FileImage& file) {
  const std::size_t size = file.bytes().size();
  SLUICE_TRY(file.read(0, std::min(size, kLengthBytes)));
  if (size <= kLengthBytes) return {};
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.bytes().data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) return {};
  const std::size_t rest = size - kLengthBytes;
  return file.read(kLengthBytes, std::min(rest, static_cast<std::size_t>(header_bytes)));
}

}  // namespace

Expected<SafeTensorsIndex> parse_safetensors(std::span<const std::byte> file,
                                             std::string_view name) {
  const std::string shown = printable(name);
  if (file.size() < kLengthBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: %zu bytes are too few for a safetensors file", shown.c_str(),
                      file.size());
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes == 0 || header_bytes > kMaxHeaderBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: header length %llu is outside 1..%llu (not a safetensors file?)",
                      shown.c_str(), static_cast<unsigned long long>(header_bytes),
                      static_cast<unsigned long long>(kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: a header of %llu bytes, but only %zu follow its length (truncated "
                      "file?)",
                      shown.c_str(), static_cast<unsigned long long>(header_bytes),
                      file.size() - kLengthBytes);
  }
  const auto header = file.subspan(kLengthBytes, static_cast<std::size_t>(header_bytes));
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  if (text.front() != '{') {
    return make_error(ErrorCode::kInvalidArgument, "%s: the header does not begin with '{'",
                      shown.c_str());
  }
  const Expected<json> document = parse_json(text, shown + ": header");
  if (!document) return document.error();

  const auto data = file.subspan(kLengthBytes + header.size());
  SafeTensorsIndex index;
  std::vector<Entry> entries;
  entries.reserve(document->size());
  for (const auto& [key, fields] : document->items()) {
    if (key == "__metadata__") {
      SLUICE_TRY(read_metadata(shown, fields, index));
      continue;
    }
    Expected<Entry> entry = read_entry(shown, key, fields, data);
    if (!entry) return entry.error();
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.range.begin, a.range.end, a.view.name) <
           std::tie(b.range.begin, b.range.end, b.view.name);
  });
  SLUICE_TRY(check_coverage(shown, entries, data.size()));
  index.tensors.reserve(entries.size());
  for (Entry& entry : entries) index.tensors.push_back(std::move(entry.view));
  return index;
}

bool SafeTensors::holds(const TensorView& view) const noexcept {
  const std::span<const std::byte> image = file_.bytes();
  return view.data != nullptr && std::greater_equal<>()(view.data, image.data()) &&
         std::less<>()(view.data, image.data() + image.size());
}

Status SafeTensors::load(const TensorView& view) {
  if (!holds(view)) return {};
  return file_.read(static_cast<std::size_t>(view.data - file_.bytes().data()),
                    static_cast<std::size_t>(view.bytes));
}

void SafeTensors::unload(const TensorView& view) noexcept {
  if (!holds(view)) return;
  file_.forget(static_cast<std::size_t>(view.data - file_.bytes().data()),
               static_cast<std::size_t>(view.bytes));
}

Expected<SafeTensors> SafeTensors::open(const std::string& path) {
  Expected<FileImage> file = FileImage::open(path);
  if (!file) return file.error();
  SLUICE_TRY(read_header(*file));
  Expected<SafeTensorsIndex> index = parse_safetensors(file->bytes(), path);
  if (!index) return index.error();
  SafeTensors result;
  result.path_ = path;
  result.file_ = *std::move(file);
  result.index_ = *std::move(index);
  for (std::size_t i = 0; i < result.index_.tensors.size(); ++i) {
    result.by_name_.emplace(result.index_.tensors[i].name, i);
  }
  return result;
}

const TensorView* SafeTensors::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &index_.tensors[found->second];
}

}  // namespace sluice::harness
