// SPDX-License-Identifier: Apache-2.0
#include "tune/bench.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "math/float_types.hpp"
#include "sluice/operands.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/host/arena.hpp"
#endif

namespace sluice::tune {
namespace {

// Random numbers are drawn for about so many bytes and repeated: no power of two, so that tiles do
// not meet the same ones again, and enough that a chip's power is that of random data.
constexpr std::size_t kNoiseBytes = (std::size_t{1} << 20) + 4096;

// Sum of four uniform numbers, of deviation 1. Source of the generator: Steele, Lea, Flood,
// "Fast splittable pseudorandom number generators", 2014.
class Noise {
 public:
  double next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t v = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9ULL;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
    v ^= v >> 31;
    const auto sum =
        static_cast<double>((v & 0xFFFF) + (v >> 16 & 0xFFFF) + (v >> 32 & 0xFFFF) + (v >> 48));
    return (sum - 2 * 65535.0) * (std::sqrt(3.0) / 65536.0);
  }

 private:
  std::uint64_t state_ = 1;
};

bool is_weight(Operand id) {
  return id == Operand::kWGate || id == Operand::kWUp || id == Operand::kWDown;
}

bool is_up(Operand id) {
  return id == Operand::kWUp || id == Operand::kU || id == Operand::kDu || id == Operand::kDwUp;
}

// Bytes from a gate matrix to its up matrix where blocks of both take turns in one buffer; else 0.
std::int64_t pair_offset(const OperandSpec& spec) {
  const Layout& l = spec.layout;
  if (l.block_rows > 0) return l.block_rows * l.row_stride_bytes;
  if (l.block_cols > 0) return l.block_cols * size_bytes(spec.dtype);
  return 0;
}

// Writes one unit of `dtype`, an element or a block, of numbers with deviation `scale`.
void write_unit(unsigned char* to, DType dtype, double scale, Noise& noise) {
  if (!is_block_type(dtype)) return math::store(to, dtype, scale * noise.next());
  for (std::int64_t i = 0; i < size_bytes(dtype); ++i) {
    to[i] = static_cast<unsigned char>(static_cast<int>(noise.next() * 64) & 0xFF);
  }
  // The scale comes first: of int8 with deviation 64, or of nibbles with one of 4.6, and behind it
  // the minimum that centres the unsigned ones.
  const double unit = scale / (dtype == DType::kQ8_0 ? 64 : 4.6);
  math::store(to, DType::kF16, unit);
  if (dtype == DType::kQ4_1) math::store(to + 2, DType::kF16, -7.5 * unit);
}

// What an operand holds, whole units: so that g, u, h and y are of order one, as in a model.
std::vector<unsigned char> draw(const OperandSpec& spec) {
  Noise noise;
  const double scale = is_weight(spec.id) ? 1 / std::sqrt(static_cast<double>(spec.cols)) : 1.0;
  const auto size = static_cast<std::size_t>(size_bytes(spec.dtype));
  std::vector<unsigned char> bytes(kNoiseBytes / size * size);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    write_unit(bytes.data() + at, spec.dtype, scale, noise);
  }
  return bytes;
}

class DeviceBench final : public Bench {
 public:
  DeviceBench(const Device& device, std::unique_ptr<timing::Arena> arena, std::int64_t max_bytes)
      : device_(device), arena_(std::move(arena)), max_bytes_(max_bytes) {}

  Status set_up(const Problem& largest) override {
    stopwatch_.reset();
    sets_.clear();
    arena_->free_all();
    workspace_ = {};
    const auto specs = operand_specs(largest);
    const std::int64_t limit =
        max_bytes_ > 0 ? max_bytes_
                       : std::min(device_.memory_bytes / 4, arena_->free_bytes() / 4 * 3);
    std::int64_t bytes = 0;
    std::int64_t rotating = 0;
    for (const OperandSpec& spec : specs) {
      bytes += own_bytes(spec);
      if (timing::rotates(largest, spec.id)) rotating += own_bytes(spec);
      if (bytes <= limit) continue;  // legal sizes that add up to 2^63 end here
      return make_error(ErrorCode::kOutOfMemory,
                        "tune: the operands up to %s take %lld bytes a layer, %lld may be used",
                        spec.name, static_cast<long long>(bytes), static_cast<long long>(limit));
    }
    const std::size_t wanted = timing::chain_copies(rotating, device_);
    const std::int64_t shared = bytes - rotating;
    const auto fitting =
        static_cast<std::size_t>((limit - shared) / std::max<std::int64_t>(rotating, 1));
    sets_.resize(std::min(wanted, fitting));
    for (const OperandSpec& spec : specs) {
      SLUICE_TRY(place(spec, timing::rotates(largest, spec.id)));
    }
    return {};
  }

  Status prepare(std::span<const Plan> plans) override {
    std::size_t workspace_bytes = 0;
    for (const Plan& plan : plans)
      workspace_bytes = std::max(workspace_bytes, plan.workspace_bytes);
    if (workspace_bytes > workspace_.bytes) {
      const auto memory = arena_->allocate(workspace_bytes);
      if (!memory) return memory.error();
      workspace_ = {*memory, workspace_bytes};
      SLUICE_TRY(workspace_init(workspace_, device_, arena_->stream()));
    }
    plans_.assign(plans.begin(), plans.end());
    stopwatch_.reset();
    auto stopwatch = arena_->make_stopwatch();
    if (!stopwatch) return stopwatch.error();
    stopwatch_ = std::move(*stopwatch);
    handles_.clear();
    for (const Plan& plan : plans_) {
      std::vector<timing::Run> runs;
      runs.reserve(sets_.size());
      for (const Operands& operands : sets_) {
        runs.emplace_back([&plan, &operands, this](Stream stream) {
          return run(plan, operands, workspace_, stream);
        });
      }
      const auto handle = stopwatch_->prepare(std::move(runs));
      if (!handle) return handle.error();
      handles_.push_back(*handle);
    }
    return {};
  }

  Expected<double> pass_us(std::size_t index) override {
    return stopwatch_->time_us(handles_[index]);
  }

  [[nodiscard]] std::size_t copies() const override { return sets_.size(); }

  [[nodiscard]] double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  // Of the buffer that begins with this operand; an up matrix in its gate's buffer has none.
  static std::int64_t own_bytes(const OperandSpec& spec) {
    if (spec.access == Access::kUnused) return 0;
    const std::int64_t offset = pair_offset(spec);
    return is_up(spec.id) && offset > 0 ? 0 : extent_bytes(spec) + offset;
  }

  // Allocates and fills the operand, in every copy or once for all.
  Status place(const OperandSpec& spec, bool rotates) {
    if (spec.access == Access::kUnused) return {};
    const auto bytes = static_cast<std::size_t>(own_bytes(spec));
    if (bytes == 0) {  // the gate matrix comes before its up matrix in Operands
      const auto gate = static_cast<Operand>(static_cast<int>(spec.id) - 1);
      for (Operands& set : sets_) {
        const auto* base = static_cast<const char*>(address(set, gate));
        set_address(set, spec.id, const_cast<char*>(base) + pair_offset(spec));
      }
      return {};
    }
    const bool reads = spec.access != Access::kWrite;
    const std::vector<unsigned char> noise = reads ? draw(spec) : std::vector<unsigned char>();
    for (Operands& set : sets_) {
      if (!rotates && &set != &sets_.front()) {
        set_address(set, spec.id, const_cast<void*>(address(sets_.front(), spec.id)));
        continue;
      }
      const auto memory = arena_->allocate(bytes);
      if (!memory) return memory.error();
      set_address(set, spec.id, *memory);
      SLUICE_TRY(reads ? fill(*memory, bytes, noise) : arena_->clear(*memory, bytes));
    }
    return {};
  }

  // Repeats the noise by doubling what is there.
  Status fill(void* memory, std::size_t bytes, const std::vector<unsigned char>& noise) {
    std::size_t done = std::min(bytes, noise.size());
    SLUICE_TRY(arena_->upload(memory, noise.data(), done));
    while (done < bytes) {
      const std::size_t part = std::min(done, bytes - done);
      SLUICE_TRY(arena_->copy(static_cast<char*>(memory) + done, memory, part));
      done += part;
    }
    return {};
  }

  Device device_;
  std::unique_ptr<timing::Arena> arena_;
  std::int64_t max_bytes_;
  std::vector<Operands> sets_;
  Workspace workspace_{};
  std::vector<Plan> plans_;
  std::unique_ptr<timing::Stopwatch> stopwatch_;
  std::vector<std::size_t> handles_;
};

}  // namespace

std::unique_ptr<Bench> make_bench(const Device& device, std::unique_ptr<timing::Arena> arena,
                                  std::int64_t max_bytes) {
  return std::make_unique<DeviceBench>(device, std::move(arena), max_bytes);
}

Expected<std::unique_ptr<Bench>> open_bench(const Device& device, std::int64_t max_bytes) {
  if (device.backend == Backend::kCpu) {
    return make_bench(device, timing::make_cpu_arena(), max_bytes);
  }
#if defined(SLUICE_WITH_CUDA)
  auto arena = cuda::make_arena(device.ordinal);
  if (!arena) return arena.error();
  return make_bench(device, std::move(*arena), max_bytes);
#else
  return make_error(ErrorCode::kUnsupported, "device: this Sluice was built without CUDA");
#endif
}

}  // namespace sluice::tune
