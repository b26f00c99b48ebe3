// SPDX-License-Identifier: Apache-2.0
#include "harness/data.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "math/block_types.hpp"
#include "timing/timing.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kGuardBytes = 4096;  // canaries before and behind every buffer
// Canaries of buffers that hold outputs, and of those that are only read: a NaN of every type, so
// that what is read behind a row shows even where it is multiplied by zero.
constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kInputCanary = 0xFF;
// Larger buffers have only their guards checked, and larger inputs no checksum.
constexpr std::size_t kMaxCheckedBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxRuns = std::size_t{1} << 22;

bool writes(const OperandSpec& spec) {
  return spec.access == Access::kWrite || spec.access == Access::kReadWrite;
}

std::size_t index(Operand id) { return static_cast<std::size_t>(id); }

// Operands that share one buffer. `offset` is from the buffer's first element.
struct Member {
  Operand id = Operand::kX;
  std::int64_t offset = 0;
};

struct Buffer {
  RigBuffer memory;
  std::vector<Member> members;
  std::size_t lead_bytes = 0;  // from the start of memory to the first element
  std::size_t data_bytes = 0;  // from the first element to the end of the last
  bool written = false;
  std::uint64_t checksum = 0;  // of an input buffer as filled; 0 where it is too large

  [[nodiscard]] char* first() const { return memory.data() + lead_bytes; }
  [[nodiscard]] unsigned char canary() const { return written ? kCanary : kInputCanary; }
};

std::uint64_t checksum_of(const char* data, std::size_t bytes) {
  std::uint64_t sum = 0x9E3779B97F4A7C15ULL;
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i, std::min(sizeof(word), bytes - i));
    sum = (sum ^ word) * 0xBF58476D1CE4E5B9ULL;
    sum ^= sum >> 29;
  }
  return sum;
}

// Bytes [begin, end) of a buffer that hold elements of one row.
struct RowBytes {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Operand id = Operand::kX;
  std::int64_t row = 0;
};

void add_row_bytes(const OperandSpec& spec, std::int64_t offset, std::vector<RowBytes>& runs) {
  const std::int64_t block = spec.layout.block_cols == 0 ? spec.cols : spec.layout.block_cols;
  for (std::int64_t row = 0; row < spec.rows; ++row) {
    for (std::int64_t col = 0; col < spec.cols; col += block) {
      const std::int64_t begin = offset + offset_bytes(spec.layout, spec.dtype, row, col);
      const std::int64_t end = begin + bytes_of(spec.dtype, std::min(block, spec.cols - col));
      runs.push_back({begin, end, spec.id, row});
    }
  }
}

std::optional<std::size_t> first_broken(const char* data, std::size_t begin, std::size_t end,
                                        unsigned char canary) {
  for (std::size_t i = begin; i < end; ++i) {
    if (static_cast<unsigned char>(data[i]) != canary) return i;
  }
  return std::nullopt;
}

// Host memory of undefined content for what is downloaded. Zeros first, or a fault for every 4 KiB,
// would take longer than the download.
class HostBlock {
 public:
  [[nodiscard]] char* resize(std::size_t bytes) {
    if (memory_ != nullptr && bytes <= bytes_) return memory_.get();
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const bool huge = bytes >= 2 * kHugePage;
    const std::size_t alignment = huge ? kHugePage : alignof(std::max_align_t);
    bytes_ = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    memory_.reset();
    memory_.reset(static_cast<char*>(std::aligned_alloc(alignment, bytes_)));
    if (memory_ == nullptr) throw std::bad_alloc();
    if (huge) static_cast<void>(madvise(memory_.get(), bytes_, MADV_HUGEPAGE));
    return memory_.get();
  }
  [[nodiscard]] char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<char, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace

double HostMatrix::at(std::int64_t row, std::int64_t col) const {
  return math::load(
      static_cast<const char*>(data) + offset_bytes(spec.layout, spec.dtype, row, col), spec.dtype,
      col);
}

struct OperandSet::State {
  Case test_case{};
  Rig* rig = nullptr;
  std::array<OperandSpec, kOperandCount> specs{};
  Operands operands{};
  std::vector<Buffer> buffers;
  std::array<HostBlock, kOperandCount> before;  // operands as they were before run()
  std::array<HostBlock, kOperandCount> now;

  [[nodiscard]] const OperandSpec& spec(Operand id) const { return specs[index(id)]; }
  [[nodiscard]] bool given(Operand id) const {
    const OperandSpec& s = spec(id);
    // weight_grad takes du beside dw_up, or neither.
    if (id == Operand::kDu && test_case.problem.op == Op::kWeightGrad && test_case.minimal) {
      return given(Operand::kDwUp);
    }
    return s.access != Access::kUnused &&
           !(test_case.minimal && !s.required && s.access == Access::kWrite);
  }
  // Where an in-place output lives; itself for all others.
  [[nodiscard]] Operand home(Operand id) const {
    if (!test_case.in_place) return id;
    if (id == Operand::kDg && given(Operand::kG)) return Operand::kG;
    if (id == Operand::kDu && given(Operand::kU)) return Operand::kU;
    if (id == Operand::kY && given(Operand::kResidual)) return Operand::kResidual;
    return id;
  }
  // An output whose content before run() matters: accumulated into, or also an input.
  [[nodiscard]] bool starts_filled(Operand id) const {
    return spec(id).access == Access::kReadWrite || home(id) != id;
  }

  void group();
  void share(const Operands& first);
  Status allocate(Buffer& buffer);
  Status fill(Operand id, Poison poison);
  Status fill_outputs(Poison poison);
  Status remember_inputs();
  Status check(const Buffer& buffer, HostBlock& scratch);
  Status check_runs(const Buffer& buffer, const char* data);
};

// Pairs share a buffer unless they are separate; an in-place output joins its input's buffer.
void OperandSet::State::group() {
  constexpr std::pair<Operand, Operand> kPairs[] = {{Operand::kWGate, Operand::kWUp},
                                                    {Operand::kG, Operand::kU},
                                                    {Operand::kDg, Operand::kDu},
                                                    {Operand::kDwGate, Operand::kDwUp}};
  std::array<bool, kOperandCount> placed{};
  for (const auto& [gate, up] : kPairs) {
    if (test_case.placement == Placement::kSeparate || !given(gate) || home(gate) != gate) continue;
    const std::int64_t distance = pair_offset_bytes(test_case, gate);
    Buffer buffer;
    buffer.members = {{gate, test_case.up_first ? distance : 0},
                      {up, test_case.up_first ? 0 : distance}};
    placed[index(gate)] = placed[index(up)] = true;
    buffers.push_back(std::move(buffer));
  }
  for (int i = 0; i < kOperandCount; ++i) {
    const auto id = static_cast<Operand>(i);
    if (!given(id) || placed[index(id)] || home(id) != id) continue;
    Buffer buffer;
    buffer.members = {{id, 0}};
    buffers.push_back(std::move(buffer));
  }
  for (Buffer& buffer : buffers) {
    for (int i = 0; i < kOperandCount; ++i) {
      const auto id = static_cast<Operand>(i);
      if (!given(id) || home(id) == id) continue;
      for (std::size_t k = 0; k < buffer.members.size(); ++k) {
        if (buffer.members[k].id == home(id)) {
          buffer.members.push_back({id, buffer.members[k].offset});
          break;
        }
      }
    }
    for (const Member& member : buffer.members) {
      buffer.written = buffer.written || writes(spec(member.id));
      const std::int64_t end = member.offset + extent_bytes(spec(member.id));
      buffer.data_bytes = std::max(buffer.data_bytes, static_cast<std::size_t>(end));
    }
  }
}

// What does not rotate is another set's; a buffer rotates as a whole.
void OperandSet::State::share(const Operands& first) {
  std::erase_if(buffers, [&](const Buffer& buffer) {
    const auto rotates = [&](const Member& member) {
      return timing::rotates(test_case.problem, member.id);
    };
    if (std::ranges::any_of(buffer.members, rotates)) return false;
    for (const Member& member : buffer.members) {
      set_address(operands, member.id, const_cast<void*>(address(first, member.id)));
    }
    return true;
  });
}

Status OperandSet::State::allocate(Buffer& buffer) {
  auto align = static_cast<std::size_t>(test_case.align);
  if (align != 0) {  // run() wants whole elements, whatever is promised
    for (const Member& member : buffer.members) {
      align = std::max(align, static_cast<std::size_t>(alignment_of(spec(member.id).dtype)));
    }
  }
  auto memory = RigBuffer::make(*rig, 2 * kGuardBytes + 4 * align + buffer.data_bytes);
  if (!memory) return memory.error();
  buffer.memory = std::move(*memory);
  // A multiple of `align` and not of twice it; without `align`, of the page that the rig gives.
  buffer.lead_bytes = kGuardBytes;
  if (align != 0) {
    const std::size_t address =
        reinterpret_cast<std::uintptr_t>(buffer.memory.data()) + kGuardBytes;
    const std::size_t wanted = (address + 2 * align - 1) / (2 * align) * (2 * align) + align;
    buffer.lead_bytes += wanted - address;
  }
  for (const Member& member : buffer.members) {
    set_address(operands, member.id, buffer.first() + member.offset);
  }
  return rig->fill_bytes(buffer.memory.data(), buffer.canary(), buffer.memory.bytes());
}

// An input's values, or the poison for an output that holds none.
Status OperandSet::State::fill(Operand id, Poison poison) {
  FillParams params = fill_params(test_case.problem, home(id), test_case.fill, test_case.seed);
  if (writes(spec(id)) && !starts_filled(id)) {
    params =
        FillParams{.scale = poison == Poison::kNaN ? std::numeric_limits<float>::quiet_NaN() : 0};
  }
  return rig->fill_matrix(spec(id), params, const_cast<void*>(address(operands, id)));
}

Status OperandSet::State::fill_outputs(Poison poison) {
  for (const Buffer& buffer : buffers) {
    if (!buffer.written) continue;
    for (const Member& member : buffer.members) SLUICE_TRY(fill(member.id, poison));
  }
  return {};
}

// The oracle reads overwritten inputs from copies made before run(), on the host.
Status OperandSet::State::remember_inputs() {
  for (const Buffer& buffer : buffers) {
    if (!buffer.written) continue;
    for (const Member& member : buffer.members) {
      const OperandSpec& s = spec(member.id);
      const bool input = s.access == Access::kRead || s.access == Access::kReadWrite;
      if (!input) continue;
      char* const copy = before[index(s.id)].resize(static_cast<std::size_t>(extent_bytes(s)));
      SLUICE_TRY(
          rig->download(copy, address(operands, s.id), static_cast<std::size_t>(extent_bytes(s))));
    }
  }
  return {};
}

Status OperandSet::State::check_runs(const Buffer& buffer, const char* data) {
  std::size_t count = 0;
  for (const Member& member : buffer.members) {
    const OperandSpec& s = spec(member.id);
    const std::int64_t block = s.layout.block_cols == 0 ? s.cols : s.layout.block_cols;
    count += static_cast<std::size_t>(s.rows *
                                      ((s.cols + block - 1) / std::max<std::int64_t>(block, 1)));
  }
  if (count > kMaxRuns) return {};
  std::vector<RowBytes> runs;
  runs.reserve(count + 1);
  for (const Member& member : buffer.members) add_row_bytes(spec(member.id), member.offset, runs);
  std::sort(runs.begin(), runs.end(),
            [](const RowBytes& a, const RowBytes& b) { return a.begin < b.begin; });
  std::int64_t covered = 0;
  const RowBytes* last = nullptr;
  for (const RowBytes& run : runs) {
    if (run.begin > covered) {
      const auto broken = first_broken(data, static_cast<std::size_t>(covered),
                                       static_cast<std::size_t>(run.begin), buffer.canary());
      if (broken) {
        const RowBytes& near = last == nullptr ? run : *last;
        return make_error(ErrorCode::kInternal, "%s: a write %lld bytes behind row %lld",
                          spec(near.id).name,
                          static_cast<long long>(static_cast<std::int64_t>(*broken) - near.end),
                          static_cast<long long>(near.row));
      }
    }
    if (run.end > covered) {
      covered = run.end;
      last = &run;
    }
  }
  return {};
}

Status OperandSet::State::check(const Buffer& buffer, HostBlock& scratch) {
  const char* const name = spec(buffer.members[0].id).name;
  const bool whole = buffer.memory.bytes() <= kMaxCheckedBytes;
  const std::size_t tail_at = buffer.lead_bytes + buffer.data_bytes;
  const std::size_t tail_bytes = buffer.memory.bytes() - tail_at;
  // Guards first, downloaded by themselves where the buffer is too large to copy.
  const char* head = buffer.memory.data();
  const char* tail = head + tail_at;
  const char* data = buffer.first();
  if (!rig->host_memory()) {
    const std::size_t middle = whole ? buffer.data_bytes : 0;
    char* const copy = scratch.resize(buffer.lead_bytes + middle + tail_bytes);
    SLUICE_TRY(rig->download(copy, head, buffer.lead_bytes + middle));
    SLUICE_TRY(rig->download(copy + buffer.lead_bytes + middle, tail, tail_bytes));
    head = copy;
    data = head + buffer.lead_bytes;
    tail = data + middle;
  }
  if (const auto broken = first_broken(head, 0, buffer.lead_bytes, buffer.canary())) {
    return make_error(ErrorCode::kInternal, "%s: a write %zu bytes before its first element", name,
                      buffer.lead_bytes - *broken);
  }
  if (const auto broken = first_broken(tail, 0, tail_bytes, buffer.canary())) {
    return make_error(ErrorCode::kInternal, "%s: a write %zu bytes behind its last element", name,
                      *broken + 1);
  }
  if (!whole) return {};
  if (buffer.written) return check_runs(buffer, data);
  if (buffer.checksum != checksum_of(data, buffer.data_bytes)) {
    return make_error(ErrorCode::kInternal, "%s: the input was written to", name);
  }
  return {};
}

OperandSet::OperandSet(std::unique_ptr<State> state) : state_(std::move(state)) {}
OperandSet::~OperandSet() = default;

Expected<std::unique_ptr<OperandSet>> OperandSet::make(const Case& c, Rig& rig, Checked checked,
                                                       const OperandSet* first) {
  if (checked == Checked::kYes && first != nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "operands: a set that is checked shares none with another");
  }
  auto state = std::make_unique<State>();
  state->test_case = c;
  state->rig = &rig;
  state->specs = operand_specs(c.problem);
  state->group();
  if (first != nullptr) state->share(first->operands());
  for (Buffer& buffer : state->buffers) {
    SLUICE_TRY(state->allocate(buffer));
    for (const Member& member : buffer.members) SLUICE_TRY(state->fill(member.id, Poison::kNaN));
    if (checked == Checked::kNo || buffer.written || buffer.memory.bytes() > kMaxCheckedBytes) {
      continue;
    }
    HostBlock copy;
    const char* data = buffer.first();
    if (!rig.host_memory()) {
      char* const downloaded = copy.resize(buffer.data_bytes);
      SLUICE_TRY(rig.download(downloaded, data, buffer.data_bytes));
      data = downloaded;
    }
    buffer.checksum = checksum_of(data, buffer.data_bytes);
  }
  if (checked == Checked::kYes) SLUICE_TRY(state->remember_inputs());
  return std::unique_ptr<OperandSet>(new OperandSet(std::move(state)));
}

const Operands& OperandSet::operands() const noexcept { return state_->operands; }
const Case& OperandSet::test_case() const noexcept { return state_->test_case; }
Rig& OperandSet::rig() const noexcept { return *state_->rig; }
const OperandSpec& OperandSet::spec(Operand id) const noexcept { return state_->spec(id); }

Status OperandSet::reset_outputs(Poison poison) { return state_->fill_outputs(poison); }

Status OperandSet::check_canaries() {
  HostBlock scratch;
  for (const Buffer& buffer : state_->buffers) SLUICE_TRY(state_->check(buffer, scratch));
  return {};
}

Expected<Operands> OperandSet::host_inputs() {
  Operands out;
  for (const OperandSpec& s : state_->specs) {
    const bool input = s.access == Access::kRead || s.access == Access::kReadWrite;
    if (!input) continue;
    if (char* const copy = state_->before[index(s.id)].data(); copy != nullptr) {
      set_address(out, s.id, copy);
      continue;
    }
    const auto now = host_matrix(s.id);
    if (!now) return now.error();
    set_address(out, s.id, const_cast<void*>(now->data));
  }
  return out;
}

Expected<HostMatrix> OperandSet::host_matrix(Operand id) {
  const OperandSpec& s = state_->spec(id);
  const void* data = address(state_->operands, id);
  if (!state_->rig->host_memory()) {
    char* const copy = state_->now[index(id)].resize(static_cast<std::size_t>(extent_bytes(s)));
    SLUICE_TRY(state_->rig->download(copy, data, static_cast<std::size_t>(extent_bytes(s))));
    data = copy;
  }
  return HostMatrix{s, data};
}

std::vector<Operand> OperandSet::outputs() const {
  std::vector<Operand> out;
  for (const OperandSpec& s : state_->specs) {
    if (writes(s) && state_->given(s.id)) out.push_back(s.id);
  }
  return out;
}

std::size_t OperandSet::bytes() const noexcept {
  std::size_t total = 0;
  for (const Buffer& buffer : state_->buffers) total += buffer.memory.bytes();
  return total;
}

}  // namespace sluice::harness
