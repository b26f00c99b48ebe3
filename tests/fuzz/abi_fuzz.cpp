// SPDX-License-Identifier: Apache-2.0
// The C ABI but for sluice_run(): structs of any content give a plan and an explanation, or an
// error with a message.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace {

// A struct with room behind it for what a later version may have added.
template <class T>
struct Struct {
  T value{};
  std::array<unsigned char, 64> later{};
};

// Reads numbers off the input; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] bool empty() const { return at_ >= size_; }
  template <class T>
  T take() {
    T value{};
    const std::size_t bytes = std::min(sizeof(T), size_ - at_);
    std::memcpy(&value, data_ + at_, bytes);
    at_ += bytes;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

// Overwrites one, four or eight bytes of a struct. Its size stays within its memory, as any
// caller's does.
template <class T>
void change(Struct<T>& target, Input& input) {
  constexpr std::size_t kWidths[] = {1, 4, 8, 8};
  const auto how = input.take<std::uint8_t>();
  const std::size_t width = kWidths[how % 4];
  const std::size_t at = input.take<std::uint16_t>() % (sizeof(target) / width) * width;
  auto value = input.take<std::int64_t>();
  // Small numbers and powers of two are what fields hold.
  if ((how & 4) != 0) value %= 4096;
  if ((how & 8) != 0) value = std::int64_t{1} << (value & 63);
  std::memcpy(reinterpret_cast<unsigned char*>(&target) + at, &value, width);
  if (target.value.struct_size > sizeof(target)) target.value.struct_size = sizeof(target);
}

void require(bool holds) {
  if (!holds) std::abort();
}

// A failed call has a message.
bool succeeded(sluice_status status, const sluice_error& error) {
  require(status == SLUICE_OK || error.message[0] != '\0');
  return status == SLUICE_OK;
}

void ask(const sluice_problem& problem, const sluice_device& device,
         const sluice_options& options) {
  sluice_error error{};
  succeeded(sluice_validate(&problem, &error), error);
  double flops = 0;
  double bytes = 0;
  if (succeeded(sluice_cost(&problem, &flops, &bytes, &error), error)) {
    require(flops >= 0 && bytes >= 0);
  }
  for (std::int32_t i = -1; i < 32; ++i) {
    sluice_operand_spec spec{};
    succeeded(sluice_operand_query(&problem, i, &spec, sizeof(spec), &error), error);
  }
  sluice_plan plan{};
  if (succeeded(sluice_plan_init(&plan, &problem, &device, &options, &error), error)) {
    require(sluice_plan_variant(&plan)[0] != '\0' && sluice_plan_config(&plan)[0] != '\0');
  }
  std::vector<char> text(4096);
  std::size_t needed = 0;
  if (succeeded(
          sluice_explain(&problem, &device, &options, text.data(), text.size(), &needed, &error),
          error)) {
    require(std::strlen(text.data()) < text.size() && needed > std::strlen(text.data()));
  }
}

// Packs and unpacks within arrays where the struct asks for no more; else the output is null, which
// is refused however large the rest is.
void pack(const sluice_packing& packing, std::size_t shift) {
  static std::array<unsigned char, 8192> gate;
  static std::array<unsigned char, 8192> up;
  static std::array<unsigned char, 16384> packed;
  const auto within = [](std::int64_t value, std::int64_t most) {
    return value >= SLUICE_CONTIGUOUS && value <= most;
  };
  // 16 rows of 512 bytes are 8192, the last shorter by what `shift` may be.
  const bool inside = within(packing.h, 16) && within(packing.d, 63) &&
                      within(packing.element_bytes, 8) && within(packing.gate_stride_bytes, 512) &&
                      within(packing.up_stride_bytes, 512) &&
                      within(packing.packed_stride_bytes, 512);
  unsigned char* const to = inside ? packed.data() + shift % 8 : nullptr;
  sluice_error error{};
  const bool done =
      succeeded(sluice_pack_gate_up(&packing, gate.data(), up.data(), to, &error), error);
  require(inside || !done);
  if (done) {
    require(sluice_unpack_gate_up(&packing, to, gate.data(), up.data(), &error) == SLUICE_OK);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Struct<sluice_problem> problem;
  Struct<sluice_device> device;
  Struct<sluice_options> options;
  Struct<sluice_packing> packing;
  sluice_error error{};
  require(sluice_problem_init(&problem.value, sizeof(problem.value), &error) == SLUICE_OK);
  require(sluice_cpu_device(&device.value, sizeof(device.value), &error) == SLUICE_OK);
  options.value.struct_size = sizeof(options.value);
  problem.value.m = input.take<std::uint8_t>();
  problem.value.d = 1 + input.take<std::uint16_t>();
  problem.value.h = 1 + input.take<std::uint16_t>();
  problem.value.op = input.take<std::uint8_t>() % 8;
  packing.value.struct_size = sizeof(packing.value);
  packing.value.h = problem.value.m;
  packing.value.d = problem.value.d % 64;
  packing.value.block_rows = packing.value.element_bytes = 1;
  packing.value.gate_stride_bytes = packing.value.up_stride_bytes =
      packing.value.packed_stride_bytes = SLUICE_CONTIGUOUS;
  while (!input.empty()) {
    switch (input.take<std::uint8_t>() % 5) {
      case 0:
      case 1:
        change(problem, input);
        break;
      case 2:
        change(device, input);
        break;
      case 3:
        change(packing, input);
        break;
      default:
        options.value.threads = input.take<std::int32_t>();
        options.value.variant =
            sluice_variant_name(device.value.backend, input.take<std::int8_t>());
    }
  }
  ask(problem.value, device.value, options.value);
  pack(packing.value, size);
  return 0;
}
