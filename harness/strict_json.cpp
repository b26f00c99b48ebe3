// SPDX-License-Identifier: Apache-2.0
#include "harness/strict_json.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "harness/file_image.hpp"

namespace sluice::harness {

namespace {

using nlohmann::json;

// A first pass that builds nothing: it stops at the first thing that the second pass, which builds
// the document, should not see.
class Gatekeeper final : public json::json_sax_t {
 public:
  explicit Gatekeeper(const JsonLimits& limits) : limits_(limits) {}

  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      complaint_ = "key \"" + printable(name) + "\" appears twice";
      return false;
    }
    return count();
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    complaint_ = "not valid JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool count() {
    if (values_ == 0 && keys_.empty()) {
      complaint_ = "the JSON root is not an object";
      return false;
    }
    if (++values_ <= limits_.values) return true;
    complaint_ = "more than " + std::to_string(limits_.values) + " JSON values";
    return false;
  }

  bool open() {
    keys_.emplace_back();
    if (keys_.size() > limits_.depth) {
      complaint_ = "JSON nested deeper than " + std::to_string(limits_.depth);
      return false;
    }
    return count();
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;  // of each open container; empty for arrays
  std::size_t values_ = 0;
  std::string complaint_;
};

}  // namespace

Expected<json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  const std::string shown = printable(what);
  if (text.size() > limits.bytes) {
    return make_error(ErrorCode::kInvalidArgument, "%s: %zu bytes of JSON, the limit is %zu",
                      shown.c_str(), text.size(), limits.bytes);
  }
  Gatekeeper gatekeeper(limits);
  if (!json::sax_parse(text.begin(), text.end(), &gatekeeper)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: %s", shown.c_str(),
                      gatekeeper.complaint().c_str());
  }
  json document = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "%s: the JSON root is not an object",
                      shown.c_str());
  }
  return document;
}

}  // namespace sluice::harness
