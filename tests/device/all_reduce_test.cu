// SPDX-License-Identifier: Apache-2.0
// Sums over ranks: virtual ranks on one GPU, a stream each, and two GPUs where there are two. y is
// to the bit what the ranks' own partial sums add up to, on every rank; each of those is checked
// against fp64. SLUICE_REPLAYS says how many runs a replayed graph makes, 600 by default.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/all_reduce/protocol.hpp"
#include "gpu.hpp"
#include "math/float_types.hpp"

namespace sluice {
namespace {

using math::store;
using Bytes = std::vector<unsigned char>;
constexpr std::size_t kPeerBytes = std::size_t{64} << 20;
constexpr std::int64_t kLimitUs = 20'000'000;

double element(const Bytes& bytes, DType dtype, std::int64_t index) {
  return math::load(bytes.data() + 2 * index, dtype);
}

__global__ void spin(std::uint64_t ns) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

__global__ void count_different(const unsigned* got, const unsigned* wanted, std::size_t words,
                                unsigned* count) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += gridDim.x * blockDim.x) {
    if (got[i] != wanted[i]) atomicAdd(count, 1U);
  }
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    EXPECT_CUDA(cudaMalloc(&data_, std::max(bytes, std::size_t{256})));
  }
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    EXPECT_CUDA(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  ~Memory() { EXPECT_CUDA(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] void* get() const { return data_; }
  [[nodiscard]] Bytes read(std::size_t bytes) const {
    Bytes out(bytes);
    EXPECT_CUDA(cudaMemcpy(out.data(), data_, bytes, cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  void* data_ = nullptr;
};

// The ranks: where each is, its stream and its peer buffer.
class Group {
 public:
  Group(int world, bool own_devices) : world_(world), own_devices_(own_devices) {
    for (int r = 0; r < world; ++r) {
      use(r);
      cudaStream_t stream = nullptr;
      EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      streams_.push_back(stream);
      buffers_.push_back(std::make_unique<Memory>(kPeerBytes));
      EXPECT_CUDA(cudaMemset(buffers_.back()->get(), 0, kPeerHeaderBytes));
      // Loaded now: not while a kernel of another rank waits.
      spin<<<1, 1, 0, stream>>>(0);
      count_different<<<1, 32, 0, stream>>>(nullptr, nullptr, 0, nullptr);
      for (int s = 0; own_devices && s < world; ++s) {
        if (s == r) continue;
        const cudaError_t peer = cudaDeviceEnablePeerAccess(s, 0);
        EXPECT_TRUE(peer == cudaSuccess || peer == cudaErrorPeerAccessAlreadyEnabled);
        static_cast<void>(cudaGetLastError());
      }
    }
    synchronize();
  }
  ~Group() {
    for (int r = 0; r < world_; ++r) {
      use(r);
      EXPECT_CUDA(cudaStreamDestroy(streams_[static_cast<std::size_t>(r)]));
    }
    EXPECT_CUDA(cudaSetDevice(0));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] int device(int rank) const { return own_devices_ ? rank : 0; }
  void use(int rank) const { EXPECT_CUDA(cudaSetDevice(device(rank))); }
  [[nodiscard]] cudaStream_t stream(int rank) const {
    return streams_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] Peers peers() const {
    Peers peers;
    for (int r = 0; r < world_; ++r) {
      peers.buffers[r] = buffers_[static_cast<std::size_t>(r)]->get();
    }
    peers.bytes = kPeerBytes;
    peers.time_limit_us = kLimitUs;
    peers.share_device = !own_devices_;
    return peers;
  }
  [[nodiscard]] std::uint32_t failed(int rank) const {
    std::uint32_t word = 0;
    const auto* const header =
        static_cast<const char*>(buffers_[static_cast<std::size_t>(rank)]->get());
    EXPECT_CUDA(cudaMemcpy(&word, header + 12, sizeof(word), cudaMemcpyDeviceToHost));
    return word;
  }
  void synchronize() const {
    for (int r = 0; r < world_; ++r) {
      use(r);
      EXPECT_CUDA(cudaDeviceSynchronize());
    }
  }
  // As if so many runs of one_shot_ll had been made.
  void set_ll_epoch(std::uint32_t epoch) const {
    for (const auto& buffer : buffers_) {
      EXPECT_CUDA(cudaMemcpy(
          static_cast<char*>(buffer->get()) + offsetof(cuda::all_reduce::PeerHeader, ll_epoch),
          &epoch, sizeof(epoch), cudaMemcpyHostToDevice));
    }
  }

 private:
  int world_;
  bool own_devices_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::unique_ptr<Memory>> buffers_;
};

struct Spec {
  Op op = Op::kDown;
  std::int64_t m = 1;
  std::int64_t d = 1024;
  std::int64_t h = 256;
  DType dtype = DType::kBF16;
  bool bias = false;
  bool residual = false;
  bool norm = false;
  const char* form = nullptr;  // of all_reduce; null for the choice
};

std::string to_text(const Spec& s, int world) {
  return std::string(to_string(s.op)) + " " + std::to_string(s.m) + "x" + std::to_string(s.d) +
         "x" + std::to_string(s.h) + " " + to_string(s.dtype) + (s.bias ? " bias" : "") +
         (s.residual ? " residual" : "") + (s.norm ? " norm" : "") + " " +
         (s.form == nullptr ? "" : s.form) + " world " + std::to_string(world);
}

Bytes normal(std::int64_t count, DType dtype, double scale, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> draw(0, scale);
  Bytes out(static_cast<std::size_t>(count) * 2);
  for (std::int64_t i = 0; i < count; ++i) store(out.data() + 2 * i, dtype, draw(engine));
  return out;
}

// A rank's operands and plans.
struct Rank {
  Plan plan;
  Plan part_plan;  // the same without the sum
  Operands operands;
  std::unique_ptr<Memory> workspace;
  std::vector<std::unique_ptr<Memory>> memory;
  Memory* y = nullptr;
  Memory* y_norm = nullptr;
  Bytes part;
  Bytes h;       // of kDown
  Bytes w_down;  // of kDown
};

// A problem on all ranks.
class Sum {
 public:
  Sum(const Group& group, const Spec& spec, unsigned seed = 1) : group_(group), spec_(spec) {
    SCOPED_TRACE(to_text(spec, group.world()));
    bias_ = normal(spec.d, spec.dtype, 1, seed + 1);
    residual_ = normal(spec.m * spec.d, spec.dtype, 1, seed + 2);
    weight_ = normal(spec.d, spec.dtype, 1, seed + 3);
    for (int r = 0; r < group.world(); ++r) add_rank(r, seed);
    group.synchronize();
    for (int r = 0; r < group.world(); ++r) run_part(r);
    expect();
  }

  void poison() const {
    for (int r = 0; r < group_.world(); ++r) {
      group_.use(r);
      const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      EXPECT_CUDA(cudaMemset(rank.y->get(), 0xFF, y_bytes()));
      if (rank.y_norm != nullptr) EXPECT_CUDA(cudaMemset(rank.y_norm->get(), 0xFF, y_bytes()));
    }
    group_.synchronize();
  }
  void run(int r, const Peers& peers) const {
    const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    EXPECT_OK(sluice::run(rank.plan, rank.operands,
                          {rank.workspace->get(), rank.plan.workspace_bytes, nullptr},
                          group_.stream(r), &peers));
  }
  void run() const {
    for (int r = 0; r < group_.world(); ++r) run(r, group_.peers());
  }

  void expect_right() const {
    for (int r = 0; r < group_.world(); ++r) {
      SCOPED_TRACE(to_text(spec_, group_.world()) + ", rank " + std::to_string(r));
      group_.use(r);
      EXPECT_EQ(group_.failed(r), 0U);
      const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      EXPECT_TRUE(rank.y->read(y_bytes()) == y_) << first_difference(rank.y->read(y_bytes()));
      if (rank.y_norm == nullptr) continue;
      const Bytes norm = rank.y_norm->read(y_bytes());
      if (r == 0) {
        expect_norm(norm);
        norm_ = norm;
      }
      EXPECT_TRUE(norm == norm_) << "y_norm differs from rank 0's";
    }
  }

  // Behind the run in its stream: elements that are not what they should be are counted.
  void count(int r, unsigned* counter) const {
    const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    count_different<<<8, 256, 0, group_.stream(r)>>>(
        static_cast<const unsigned*>(rank.y->get()),
        static_cast<const unsigned*>(expected_[static_cast<std::size_t>(r)]->get()), y_bytes() / 4,
        counter);
  }
  [[nodiscard]] std::size_t y_bytes() const {
    return static_cast<std::size_t>(spec_.m * spec_.d) * 2;
  }
  [[nodiscard]] const Rank& rank(int r) const { return *ranks_[static_cast<std::size_t>(r)]; }

 private:
  void* keep(Rank& rank, const Bytes& bytes) {
    rank.memory.push_back(std::make_unique<Memory>(bytes));
    return rank.memory.back()->get();
  }
  Memory* room(Rank& rank) {
    rank.memory.push_back(std::make_unique<Memory>(y_bytes()));
    return rank.memory.back().get();
  }

  void add_rank(int r, unsigned seed) {
    group_.use(r);
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    Problem p;
    p.op = spec_.op, p.m = spec_.m, p.d = spec_.d, p.h = spec_.h;
    p.x_dtype = p.w_dtype = p.y_dtype = spec_.dtype;
    p.reduce = {ReduceKind::kAllReduce, r, group_.world(), {}};
    p.bias_down = spec_.bias;
    p.residual = spec_.residual ? Residual::kOperand : Residual::kNone;
    p.reduce.norm = {.enabled = spec_.norm, .add = false, .eps = 1e-5F, .weight_offset = 0.5F};
    const Device device = cuda_device(group_.device(r)).value();
    const std::string form = spec_.form == nullptr ? "" : std::string("all_reduce=") + spec_.form;
    Options options;
    if (!form.empty()) options.config = form.c_str();
    rank.plan = plan(p, device, options).value();
    EXPECT_LE(rank.plan.peer_bytes, kPeerBytes);
    const std::string all = rank.plan.config_name();
    const std::string before = all.substr(0, all.find("all_reduce=") - 1);
    p.reduce = {}, p.bias_down = false, p.residual = Residual::kNone;
    options.variant = rank.plan.variant_name();
    options.config = before.c_str();
    rank.part_plan = plan(p, device, options).value();

    const unsigned own = seed + 100U * static_cast<unsigned>(r + 1);
    const double scale = 1 / std::sqrt(static_cast<double>(spec_.h));
    Operands& o = rank.operands;
    rank.w_down = normal(spec_.d * spec_.h, spec_.dtype, scale, own);
    o.w_down = keep(rank, rank.w_down);
    if (spec_.op == Op::kDown) {
      rank.h = normal(spec_.m * spec_.h, spec_.dtype, 1, own + 1);
      o.h = keep(rank, rank.h);
    } else {
      const double in = 1 / std::sqrt(static_cast<double>(spec_.d));
      o.x = keep(rank, normal(spec_.m * spec_.d, spec_.dtype, 1, seed + 4));
      o.w_gate = keep(rank, normal(spec_.d * spec_.h, spec_.dtype, in, own + 2));
      o.w_up = keep(rank, normal(spec_.d * spec_.h, spec_.dtype, in, own + 3));
    }
    o.b_down = keep(rank, bias_);
    o.residual = keep(rank, residual_);
    o.next_norm_weight = keep(rank, weight_);
    rank.y = room(rank);
    o.y = rank.y->get();
    if (spec_.norm) rank.y_norm = room(rank);
    if (spec_.norm) o.y_norm = rank.y_norm->get();
    const std::size_t bytes =
        std::max(rank.plan.workspace_bytes, rank.part_plan.workspace_bytes) + kWorkspaceHeaderBytes;
    rank.workspace = std::make_unique<Memory>(bytes);
    EXPECT_OK(workspace_init({rank.workspace->get(), bytes, nullptr}, device, group_.stream(r)));
  }

  void run_part(int r) {
    group_.use(r);
    Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    EXPECT_OK(sluice::run(rank.part_plan, rank.operands,
                          {rank.workspace->get(), rank.part_plan.workspace_bytes, nullptr},
                          group_.stream(r)));
    EXPECT_CUDA(cudaDeviceSynchronize());
    rank.part = rank.y->read(y_bytes());
    if (spec_.op == Op::kDown) expect_part(rank);
  }

  // Rows of a partial sum against fp64: fp32 sums of h terms, and one rounding.
  void expect_part(const Rank& rank) const {
    for (const std::int64_t row : {std::int64_t{0}, spec_.m / 2, spec_.m - 1}) {
      for (std::int64_t col = 0; col < spec_.d; ++col) {
        double sum = 0;
        double size = 0;
        for (std::int64_t k = 0; k < spec_.h; ++k) {
          const double term = element(rank.h, spec_.dtype, row * spec_.h + k) *
                              element(rank.w_down, spec_.dtype, col * spec_.h + k);
          sum += term, size += std::abs(term);
        }
        const double bound = static_cast<double>(spec_.h + 1) * 0x1p-23 * size +
                             epsilon(spec_.dtype) * std::abs(sum) + 0x1p-24;
        ASSERT_NEAR(element(rank.part, spec_.dtype, row * spec_.d + col), sum, bound)
            << row << ", " << col;
      }
    }
  }

  void expect() {
    y_.resize(y_bytes());
    for (std::int64_t i = 0; i < spec_.m * spec_.d; ++i) {
      const auto of = [&](const Bytes& bytes, std::int64_t at) {
        return static_cast<float>(element(bytes, spec_.dtype, at));
      };
      float sum = of(ranks_[0]->part, i);
      for (int r = 1; r < group_.world(); ++r)
        sum += of(ranks_[static_cast<std::size_t>(r)]->part, i);
      if (spec_.bias) sum += of(bias_, i % spec_.d);
      if (spec_.residual) sum += of(residual_, i);
      store(y_.data() + 2 * i, spec_.dtype, static_cast<double>(sum));
    }
    for (int r = 0; r < group_.world(); ++r) {
      group_.use(r);
      expected_.push_back(std::make_unique<Memory>(y_));
    }
  }

  // The norm of y's own bits; fp32 sums of d squares, a root, two products, one rounding.
  void expect_norm(const Bytes& got) const {
    const double relative = epsilon(spec_.dtype) + static_cast<double>(spec_.d + 16) * 0x1p-23;
    for (std::int64_t row = 0; row < spec_.m; ++row) {
      double squares = 0;
      for (std::int64_t c = 0; c < spec_.d; ++c) {
        squares += std::pow(element(y_, spec_.dtype, row * spec_.d + c), 2);
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(spec_.d) + 1e-5);
      for (std::int64_t c = 0; c < spec_.d; ++c) {
        const double wanted = element(y_, spec_.dtype, row * spec_.d + c) * scale *
                              (element(weight_, spec_.dtype, c) + 0.5);
        ASSERT_NEAR(element(got, spec_.dtype, row * spec_.d + c), wanted,
                    relative * std::abs(wanted) + 0x1p-24)
            << row << ", " << c;
      }
    }
  }

  [[nodiscard]] std::string first_difference(const Bytes& got) const {
    for (std::int64_t i = 0; i < spec_.m * spec_.d; ++i) {
      if (std::memcmp(got.data() + 2 * i, y_.data() + 2 * i, 2) == 0) continue;
      return "row " + std::to_string(i / spec_.d) + ", column " + std::to_string(i % spec_.d) +
             ": " + std::to_string(element(got, spec_.dtype, i)) + ", wanted " +
             std::to_string(element(y_, spec_.dtype, i));
    }
    return "none";
  }

  const Group& group_;
  Spec spec_;
  Bytes bias_, residual_, weight_, y_;
  mutable Bytes norm_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<Memory>> expected_;
};

// Shapes that a form does not take are left out.
void expect_right(const Group& group, const Spec& spec) {
  using namespace cuda::all_reduce;
  const Geometry geometry{Form::kOneShotLl, group.world(), spec.m, 2 * spec.d};
  if (std::string(spec.form) == "one_shot_ll" && !geometry.fits_ll()) return;
  const Sum sum(group, spec);
  if (::testing::Test::HasFatalFailure()) return;
  sum.poison();
  sum.run();
  sum.run();
  group.synchronize();
  sum.expect_right();
}

#if defined(SLUICE_CUDA_DEBUG)
#define SKIP_IF_LAUNCHES_WAIT() GTEST_SKIP() << "a debug build waits for each launch"
#else
#define SKIP_IF_LAUNCHES_WAIT()
#endif

// Of 1 to 200 rows, widths of odd multiples of 8 and beyond what registers hold.
void expect_shapes(const Group& group) {
  for (const char* const form : {"one_shot", "two_shot", "one_shot_ll"}) {
    for (const std::int64_t m : {1, 3, 16, 64, 200}) {
      expect_right(group, {.m = m, .form = form});
      expect_right(group, {.m = m, .d = 1032, .bias = true, .residual = true, .form = form});
      expect_right(
          group,
          {.m = m, .d = 1000, .dtype = DType::kF16, .residual = true, .norm = true, .form = form});
    }
    expect_right(group, {.m = 1, .d = 8192, .h = 64, .residual = true, .form = form});
    expect_right(group, {.m = 1, .d = 8192, .h = 64, .bias = true, .norm = true, .form = form});
    expect_right(group, {.m = 2, .d = 9224, .h = 64, .norm = true, .form = form});
    expect_right(group, {.m = 3, .d = 24, .form = form});  // fewer vectors than four ranks
    expect_right(group, {.m = 300, .d = 136, .h = 64, .norm = true, .form = form});
    expect_right(group, {.op = Op::kMlp,
                         .m = 5,
                         .d = 1024,
                         .h = 512,
                         .bias = true,
                         .residual = true,
                         .norm = true,
                         .form = form});
    expect_right(group,
                 {.op = Op::kMlp, .m = 130, .d = 1024, .h = 512, .norm = true, .form = form});
  }
}

TEST(GpuAllReduce, TwoVirtualRanks) {
  SKIP_IF_LAUNCHES_WAIT();
  expect_shapes(Group(2, false));
}

TEST(GpuAllReduce, FourVirtualRanks) {
  SKIP_IF_LAUNCHES_WAIT();
  expect_shapes(Group(4, false));
}

TEST(GpuAllReduce, TwoGpus) {
  int can = 0;
  if (cuda_device_count() < 2 || cudaDeviceCanAccessPeer(&can, 0, 1) != cudaSuccess || can == 0) {
    GTEST_SKIP() << "no two GPUs that see each other's memory";
  }
  expect_shapes(Group(2, true));
}

long replays() {
  const char* const given = std::getenv("SLUICE_REPLAYS");
  return given == nullptr ? 600 : std::atol(given);
}

// Runs of several shapes and forms and inputs after each other on the same buffers, in a graph a
// rank, with ranks held up at random: a sum of another run's rows shows, since inputs differ. The
// number of a run of one_shot_ll goes round.
void expect_replays(const Group& group) {
  group.set_ll_epoch(0U - 200U);
  std::vector<std::unique_ptr<Sum>> sums;
  for (const Spec& spec :
       {Spec{.m = 16, .form = "one_shot"}, Spec{.m = 16, .form = "one_shot_ll"},
        Spec{.m = 16, .form = "two_shot"}, Spec{.m = 1, .norm = true, .form = "one_shot_ll"},
        Spec{.m = 1, .norm = true, .form = "one_shot"},
        Spec{.m = 64, .residual = true, .form = "two_shot"}, Spec{.m = 48, .form = "one_shot_ll"},
        Spec{.m = 1, .form = "one_shot_ll"}, Spec{.m = 16, .form = "one_shot"}}) {
    sums.push_back(std::make_unique<Sum>(group, spec, static_cast<unsigned>(1000 * sums.size())));
  }
  std::vector<std::unique_ptr<Memory>> wrong;
  std::vector<cudaGraphExec_t> graphs;
  for (int r = 0; r < group.world(); ++r) {
    group.use(r);
    wrong.push_back(std::make_unique<Memory>(Bytes(256, 0)));
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t graph = nullptr;
    ASSERT_CUDA(cudaStreamBeginCapture(group.stream(r), cudaStreamCaptureModeThreadLocal));
    for (const auto& sum : sums) {
      sum->run(r, group.peers());
      sum->count(r, static_cast<unsigned*>(wrong.back()->get()));
    }
    ASSERT_CUDA(cudaStreamEndCapture(group.stream(r), &captured));
    ASSERT_CUDA(cudaGraphInstantiate(&graph, captured, 0));
    ASSERT_CUDA(cudaGraphDestroy(captured));
    ASSERT_CUDA(cudaGraphUpload(graph, group.stream(r)));
    graphs.push_back(graph);
  }
  group.synchronize();
  std::mt19937 engine(7);
  const long rounds = replays() / static_cast<long>(sums.size());
  for (long i = 0; i < rounds; ++i) {
    for (int r = 0; r < group.world(); ++r) {
      group.use(r);
      if (engine() % 3 == 0) spin<<<1, 1, 0, group.stream(r)>>>(engine() % 30000);
      ASSERT_CUDA(cudaGraphLaunch(graphs[static_cast<std::size_t>(r)], group.stream(r)));
    }
    if (i % 64 == 63) group.synchronize();  // what is queued stays little
  }
  group.synchronize();
  for (int r = 0; r < group.world(); ++r) {
    group.use(r);
    unsigned count = 0;
    std::memcpy(&count, wrong[static_cast<std::size_t>(r)]->read(4).data(), 4);
    EXPECT_EQ(count, 0U) << "rank " << r;
    EXPECT_CUDA(cudaGraphExecDestroy(graphs[static_cast<std::size_t>(r)]));
  }
  for (const auto& sum : sums) sum->expect_right();
}

TEST(GpuAllReduce, ReplaysOfTwoVirtualRanks) {
  SKIP_IF_LAUNCHES_WAIT();
  expect_replays(Group(2, false));
}

TEST(GpuAllReduce, ReplaysOfFourVirtualRanks) {
  SKIP_IF_LAUNCHES_WAIT();
  expect_replays(Group(4, false));
}

TEST(GpuAllReduce, ReplaysOfTwoGpus) {
  int can = 0;
  if (cuda_device_count() < 2 || cudaDeviceCanAccessPeer(&can, 0, 1) != cudaSuccess || can == 0) {
    GTEST_SKIP() << "no two GPUs that see each other's memory";
  }
  expect_replays(Group(2, true));
}

// The peer never comes: NaN, the rank and the tile in the header, and no wait the next time.
void expect_report(const char* form) {
  SCOPED_TRACE(form);
  const Group group(2, false);
  const Sum sum(group, {.m = 3, .form = form});
  Peers peers = group.peers();
  peers.time_limit_us = 2000;
  for (int i = 0; i < 2; ++i) {
    sum.poison();
    sum.run(0, peers);
    group.synchronize();
    EXPECT_EQ(group.failed(0) % 256, 2U);
    EXPECT_LT(group.failed(0) / 256, 3U);
    EXPECT_EQ(group.failed(1), 0U);
    const Bytes y = sum.rank(0).y->read(sum.y_bytes());
    for (std::int64_t k = 0; k < 3 * 1024; ++k) {
      ASSERT_TRUE(std::isnan(element(y, DType::kBF16, k))) << k;
    }
  }
}

TEST(GpuAllReduce, APeerThatDoesNotComeIsReported) {
  for (const char* const form : {"one_shot", "two_shot", "one_shot_ll"}) expect_report(form);
}

}  // namespace
}  // namespace sluice
