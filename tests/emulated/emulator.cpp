// SPDX-License-Identifier: Apache-2.0
#include "emulator.hpp"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

constexpr std::size_t kSmemBytes = 232448;

namespace {
char zero() { return 0; }
}  // namespace

// What kernels of these namespaces declare as `extern __shared__`. Initialised by a call: g++ has
// other files call the initialiser of an `extern thread_local`, and makes none for a constant.
namespace cuda::sm80 {
alignas(1024) thread_local char smem[kSmemBytes] = {zero()};
}  // namespace cuda::sm80
namespace cuda::sm80::decode {
alignas(1024) thread_local char smem[kSmemBytes] = {zero()};
}  // namespace cuda::sm80::decode

namespace emulator {
namespace {

constexpr unsigned kWarpSize = 32;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
// Shared memory does not begin at 0 on a GPU either.
constexpr std::uint32_t kSharedBase = 1024;
constexpr int kPoison = 0xFF;              // NaN in every type
constexpr char kMbarrier = 0x5A;           // in place of the state of one
constexpr std::size_t kGuardBytes = 4096;  // after a CTA's shared memory

struct Copy {
  std::uint32_t to;
  const void* from;
  bool valid;
};

// A thread's copies, and the mbarrier that they arrive at.
struct Landing {
  std::vector<Copy> copies;
  std::uint32_t barrier;
};

struct Mbarrier {
  unsigned arrivals = 0;
  unsigned missing = 0;  // of the phase
  unsigned phases = 0;
};

// Threads that wait for each other.
struct Barrier {
  unsigned arrived = 0;
  unsigned passed = 0;
};

struct Fiber {
  ucontext_t start{};
  std::jmp_buf place;  // where it goes on
  bool started = false;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  uint3 index{};
  unsigned lane = 0;
  bool ended = false;
  std::deque<std::vector<Copy>> groups;  // of copies, the last one open
  std::deque<Landing> landings;          // in the order in which they land
};

struct Warp {
  std::vector<Fiber*> lanes;
  Barrier barrier;
  std::vector<char> in, out;
};

constexpr int kNamedBarriers = 16;

struct Cta {
  const std::function<void()>* kernel = nullptr;
  dim3 grid, block;
  uint3 index{};
  std::size_t smem_bytes = 0;
  char* smem = cuda::sm80::smem;  // that whose addresses were asked for last
  std::size_t running_threads = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  Barrier named[kNamedBarriers];
  std::map<std::uint32_t, Mbarrier> mbarriers;
  unsigned phases = 0;  // of all mbarriers
  std::jmp_buf scheduler;
  Fiber* running = nullptr;
  bool moved = false;  // a fiber has passed a barrier, or ended, in this round
  std::string failure;
  int conflicts = 0;
};

Cta cta;
// This thread's arrays of dynamic shared memory.
char* const kArrays[] = {cuda::sm80::smem, cuda::sm80::decode::smem};

std::size_t most_smem = kSmemBytes;
// Sizes of what may be read, by its begin.
std::map<const char*, std::size_t> memory;

Warp& own_warp() { return cta.warps[(cta.running->index.x) / kWarpSize]; }

// To the scheduler and back. Not by swapcontext(), which asks the system for the signal mask.
void yield() {
  if (_setjmp(cta.running->place) == 0) std::longjmp(cta.scheduler, 1);
}

void resume(Fiber& fiber) {
  cta.running = &fiber;
  if (_setjmp(cta.scheduler) != 0) return;
  if (fiber.started) std::longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

// Ends the run of a fiber for good.
[[noreturn]] void fail(const std::string& text) {
  if (cta.failure.empty()) cta.failure = text;
  for (;;) yield();
}

void open(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.passed;
  cta.moved = true;
}

void wait(Barrier& barrier, std::size_t threads, const std::function<void()>& last) {
  const unsigned turn = barrier.passed;
  if (++barrier.arrived == threads) {
    last();
    return open(barrier);
  }
  while (barrier.passed == turn) yield();
}

void enter() {
  (*cta.kernel)();
  Fiber& self = *cta.running;
  for (const auto& group : self.groups) {
    if (!group.empty()) fail("a thread ends with copies that it has not waited for");
  }
  self.ended = true;
  cta.moved = true;
  --cta.running_threads;
  if (cta.barrier.arrived > 0 && cta.barrier.arrived == cta.running_threads) open(cta.barrier);
  for (;;) yield();
}

void prepare(unsigned threads) {
  while (cta.fibers.size() < threads) cta.fibers.push_back(std::make_unique<Fiber>());
  cta.warps.assign((threads + kWarpSize - 1) / kWarpSize, {});
  cta.barrier = {};
  std::fill(std::begin(cta.named), std::end(cta.named), Barrier{});
  cta.mbarriers.clear();
  cta.running_threads = threads;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = *cta.fibers[i];
    fiber.index = {i, 0, 0};
    fiber.lane = i % kWarpSize;
    fiber.ended = false;
    fiber.started = false;
    fiber.groups.assign(1, {});
    fiber.landings.clear();
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
    cta.warps[i / kWarpSize].lanes.push_back(&fiber);
  }
}

// Lets the warp's threads run in turn until none gets further by itself.
void run_warp(Warp& warp) {
  do {
    cta.moved = false;
    for (Fiber* const fiber : warp.lanes) {
      if (fiber->ended) continue;
      resume(*fiber);
    }
  } while (cta.moved && cta.failure.empty());
}

void land(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    char* const to = shared_at(copy.to, 16);
    if (copy.valid) {
      std::memcpy(to, copy.from, 16);
    } else {
      std::memset(to, 0, 16);
    }
  }
}

void count_arrival(Mbarrier& barrier) {
  if (--barrier.missing > 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phases;
  ++cta.phases;
  cta.moved = true;
}

// Of each thread's copies that arrive at an mbarrier as many as chance has it, but one at least in
// all. Returns whether there was one.
bool land_some(std::mt19937& random) {
  Fiber* waiting = nullptr;
  bool landed = false;
  const auto land_first = [](Fiber& fiber) {
    land(fiber.landings.front().copies);
    count_arrival(cta.mbarriers.at(fiber.landings.front().barrier));
    fiber.landings.pop_front();
  };
  for (const auto& fiber : cta.fibers) {
    for (; !fiber->landings.empty() && random() % 2 == 0; landed = true) land_first(*fiber);
    if (!fiber->landings.empty()) waiting = fiber.get();
  }
  if (!landed && waiting != nullptr) land_first(*waiting);
  return landed || waiting != nullptr;
}

bool are_copies_under_way() {
  return std::any_of(cta.fibers.begin(), cta.fibers.end(),
                     [](const auto& fiber) { return !fiber->landings.empty(); });
}

unsigned barriers_passed() {
  return std::accumulate(std::begin(cta.named), std::end(cta.named),
                         cta.barrier.passed + cta.phases,
                         [](unsigned sum, const Barrier& b) { return sum + b.passed; });
}

bool wrote_after_its_end(const char* smem) {
  const char* const end = smem + cta.smem_bytes;
  const char* const guard = end + std::min(kGuardBytes, kSmemBytes - cta.smem_bytes);
  return std::any_of(end, guard, [](char c) { return c != static_cast<char>(kPoison); });
}

void run_cta(std::mt19937& random) {
  std::vector<std::size_t> order(cta.warps.size());
  std::iota(order.begin(), order.end(), 0);
  while (cta.failure.empty() && cta.running_threads > 0) {
    std::shuffle(order.begin(), order.end(), random);
    const unsigned passed = barriers_passed();
    for (const std::size_t i : order) run_warp(cta.warps[i]);
    if (cta.running_threads == 0 || !cta.failure.empty() || land_some(random)) continue;
    if (barriers_passed() == passed) cta.failure = "threads wait for each other for ever";
  }
}

}  // namespace

Status run(dim3 grid, dim3 block, std::size_t smem_bytes, const std::function<void()>& kernel) {
  if (smem_bytes > most_smem || block.y != 1 || block.z != 1 || grid.z != 1) {
    return make_error(ErrorCode::kInternal, "emulator: no such launch");
  }
  std::mt19937 random(grid.x + block.x);
  cta.kernel = &kernel;
  cta.grid = grid;
  cta.block = block;
  cta.smem_bytes = smem_bytes;
  cta.failure.clear();
  for (unsigned i = 0; i < grid.x * grid.y && cta.failure.empty(); ++i) {
    cta.index = {i % grid.x, i / grid.x, 0};
    const std::size_t poisoned = std::min(smem_bytes + kGuardBytes, kSmemBytes);
    for (char* const smem : kArrays) std::memset(smem, kPoison, poisoned);
    prepare(block.x);
    run_cta(random);
    if (cta.failure.empty() && are_copies_under_way()) {
      cta.failure = "the CTA ends with copies that nobody has waited for";
    }
    for (const char* const smem : kArrays) {
      if (cta.failure.empty() && wrote_after_its_end(smem)) {
        cta.failure = "shared memory after the CTA's is written";
      }
    }
  }
  if (cta.failure.empty()) return {};
  return make_error(ErrorCode::kInternal, "emulator: CTA %u: %s", cta.index.x, cta.failure.c_str());
}

uint3 thread_index() { return cta.running->index; }
uint3 block_index() { return cta.index; }
dim3 grid_size() { return cta.grid; }
dim3 block_size() { return cta.block; }

void wait_for_cta() {
  wait(cta.barrier, cta.running_threads, [] {});
}

void wait_at_barrier(int id, int threads) {
  wait(cta.named[id], static_cast<std::size_t>(threads), [] {});
}

void wait_for_warp() {
  Warp& warp = own_warp();
  wait(warp.barrier, warp.lanes.size(), [] {});
}

void together(const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes,
              const std::function<void(const char* in, char* out)>& compute) {
  Warp& warp = own_warp();
  const unsigned lane = cta.running->lane;
  warp.in.resize(std::max(warp.in.size(), kWarpSize * in_bytes));
  warp.out.resize(std::max(warp.out.size(), kWarpSize * out_bytes));
  std::memcpy(warp.in.data() + lane * in_bytes, in, in_bytes);
  wait(warp.barrier, kWarpSize, [&] { compute(warp.in.data(), warp.out.data()); });
  std::memcpy(out, warp.out.data() + lane * out_bytes, out_bytes);
}

std::uint32_t shared_address(const void* pointer) {
  for (char* const smem : kArrays) {
    const auto offset = static_cast<const char*>(pointer) - smem;
    if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(kSmemBytes)) continue;
    cta.smem = smem;
    return kSharedBase + static_cast<std::uint32_t>(offset);
  }
  fail("an address of no dynamic shared memory");
}

char* shared_at(std::uint32_t address, std::size_t bytes) {
  if (address < kSharedBase || address - kSharedBase + bytes > cta.smem_bytes) {
    fail("shared address " + std::to_string(address) + " is not the CTA's");
  }
  if (address % bytes != 0) fail("shared address " + std::to_string(address) + " is not aligned");
  return cta.smem + (address - kSharedBase);
}

void count_conflicts(const std::uint32_t (&addresses)[8]) {
  std::uint32_t reader[8]{};  // of each 16 of the 128 bytes that all banks are
  for (const std::uint32_t address : addresses) {
    std::uint32_t& first = reader[address / 16 % 8];
    if (first != 0 && first != address) ++cta.conflicts;
    first = address;
  }
}

int take_conflicts() { return std::exchange(cta.conflicts, 0); }

void limit_shared_memory(std::size_t bytes) { most_smem = std::min(bytes, kSmemBytes); }

void add_memory(const void* begin, std::size_t bytes) {
  memory[static_cast<const char*>(begin)] = bytes;
}

void remove_memory(const void* begin) { memory.erase(static_cast<const char*>(begin)); }

void check_read(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) fail("a read that is not aligned");
  if (memory.empty()) return;
  const auto* const at = static_cast<const char*>(address);
  auto after = memory.upper_bound(at);
  if (after == memory.begin()) fail("a read in front of all memory");
  const auto& [begin, size] = *--after;
  if (at + bytes > begin + size) fail("a read outside of all memory");
}

void copy_later(std::uint32_t to, const void* from, bool valid) {
  if (valid) check_read(from, 16);
  std::memset(shared_at(to, 16), kPoison, 16);
  cta.running->groups.back().push_back({to, from, valid});
}

void commit_copies() { cta.running->groups.emplace_back(); }

void wait_for_copies(int pending) {
  auto& groups = cta.running->groups;
  while (groups.size() > static_cast<std::size_t>(pending) + 1) {
    land(groups.front());
    groups.pop_front();
  }
}

void init_mbarrier(std::uint32_t barrier, unsigned arrivals) {
  std::memset(shared_at(barrier, 8), kMbarrier, 8);
  cta.mbarriers[barrier] = {arrivals, arrivals, 0};
}

// Ends the run where there is none, or something else was written there since.
Mbarrier& mbarrier_at(std::uint32_t barrier) {
  const auto found = cta.mbarriers.find(barrier);
  if (found == cta.mbarriers.end()) fail("no mbarrier is there");
  const char* const bytes = shared_at(barrier, 8);
  if (!std::all_of(bytes, bytes + 8, [](char c) { return c == kMbarrier; })) {
    fail("an mbarrier is overwritten");
  }
  return found->second;
}

void arrive(std::uint32_t barrier) { count_arrival(mbarrier_at(barrier)); }

void wait_for_phase(std::uint32_t barrier, unsigned parity) {
  while (mbarrier_at(barrier).phases % 2 == parity) yield();
}

void arrive_after_copies(std::uint32_t barrier) {
  static_cast<void>(mbarrier_at(barrier));
  Landing landing{{}, barrier};
  for (const auto& group : cta.running->groups) {
    landing.copies.insert(landing.copies.end(), group.begin(), group.end());
  }
  cta.running->groups.assign(1, {});
  cta.running->landings.push_back(std::move(landing));
}

}  // namespace emulator
}  // namespace sluice
