// SPDX-License-Identifier: Apache-2.0
// How cublaslt_product() finds its algorithms, by a library that stands in for cuBLASLt: asked once
// for a shape whatever the threads do, and nobody whose shape is known waits for who asks.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cublaslt/cublaslt.hpp"
#include "cuda/cublaslt/ranking.hpp"
#include "fake_cublaslt.hpp"

namespace sluice::cuda {
namespace {

namespace fake = fake_cublaslt;
using namespace std::chrono_literals;  // NOLINT: the suffix of a number

constexpr int kThreads = 8;

// Handles and shapes stay known as long as the process runs: a test takes some that are not yet.
// Shapes are told apart by n.
int new_device() {
  static int next = 1;
  return next++;
}
std::int64_t new_shapes() {
  static std::int64_t next = 0;
  return next += 1000;
}

std::string run(std::int64_t n, int rank = 0, int ordinal = 0, int sm_count = 132) {
  Device device;
  device.ordinal = ordinal;
  device.sm_count = sm_count;
  LtProduct p;
  p.m = 400;
  p.n = n;
  p.k = 16;
  p.a.stride_elems = p.k;
  p.b.stride_elems = p.k;
  p.b.transposed = true;
  p.out_stride_elems = 10'000;
  const Status status = cublaslt_product(p, rank, device, nullptr, nullptr);
  return status ? "ok" : status.error().message;
}

// f(i) on as many threads at once.
template <class F>
void on_threads(const F& f) {
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      f(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool within_seconds(const auto& holds) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

class CublasLtChoice : public testing::Test {
 protected:
  void SetUp() override {
    fake::set_version(130100);
    ASSERT_EQ(cublaslt_version(99000), 130100) << "another library was found";
    fake::reset();
  }
  void TearDown() override {
    EXPECT_EQ(fake::counts().foreign_products, 0);
    fake::reset();
  }
};

TEST_F(CublasLtChoice, ThreadsWithOneShapeAskOnceAndMakeOneHandle) {
  const std::int64_t n = new_shapes();
  const int device = new_device();
  fake::take_ms(50);
  std::atomic<int> good{0};
  on_threads([&](int) { good += run(n, 0, device) == "ok" ? 1 : 0; });
  EXPECT_EQ(good, kThreads);
  const fake::Counts counts = fake::counts();
  EXPECT_EQ(counts.heuristics, 1);
  EXPECT_EQ(counts.handles, 1);
  EXPECT_EQ(counts.products, kThreads);
}

// A handle is used by one thread at a time where it is asked, and each device has one.
TEST_F(CublasLtChoice, ThreadsWithTheirOwnShapesAskInTurns) {
  const std::int64_t n = new_shapes();
  const int devices[] = {new_device(), new_device()};
  fake::take_ms(10);
  std::atomic<int> good{0};
  on_threads([&](int i) { good += run(n + i, 0, devices[i % 2]) == "ok" ? 1 : 0; });
  EXPECT_EQ(good, kThreads);
  const fake::Counts counts = fake::counts();
  EXPECT_EQ(counts.heuristics, kThreads);
  EXPECT_EQ(counts.most_heuristics, 1);
  EXPECT_EQ(counts.handles, 2);
}

TEST_F(CublasLtChoice, AKnownShapeWaitsForNobodyWhoAsks) {
  const std::int64_t n = new_shapes();
  ASSERT_EQ(run(n), "ok");
  fake::hold(n + 1);
  auto slow = std::async(std::launch::async, [n] { return run(n + 1); });
  EXPECT_TRUE(within_seconds([] { return fake::holds(); }));
  auto known = std::async(std::launch::async, [n] { return run(n); });
  EXPECT_EQ(known.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(slow.wait_for(0s), std::future_status::timeout);
  fake::hold(fake::kNone);
  EXPECT_EQ(slow.get(), "ok");
  EXPECT_EQ(known.get(), "ok");
  EXPECT_EQ(fake::counts().heuristics, 2);
}

// More shapes than the table holds, so that each is written over another while it is looked for. A
// lock that is left out spoils an algorithm now and then; ThreadSanitizer, with which this program
// is built, sees it each time.
TEST_F(CublasLtChoice, ThreadsReadNoAlgorithmThatIsBeingReplaced) {
  constexpr int kProducts = 5'000;
  const std::int64_t n = new_shapes();
  std::atomic<int> good{0};
  on_threads([&](int i) {
    for (int j = 0; j < kProducts; ++j) good += run(n + (i % 2 * 80 + j) % 160) == "ok" ? 1 : 0;
  });
  EXPECT_EQ(good, kThreads * kProducts);
}

TEST_F(CublasLtChoice, TheOldestShapeGoesAndIsAskedForAgain) {
  constexpr int kKept = 128;
  const std::int64_t n = new_shapes();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kKept; ++i) ASSERT_EQ(run(n + i), "ok");
    EXPECT_EQ(fake::counts().heuristics, kKept);
  }
  EXPECT_EQ(run(n + kKept), "ok");
  EXPECT_EQ(run(n + 1), "ok");
  EXPECT_EQ(fake::counts().heuristics, kKept + 1);
  EXPECT_EQ(run(n), "ok");
  EXPECT_EQ(fake::counts().heuristics, kKept + 2);
}

TEST_F(CublasLtChoice, RanksBeyondTheLastAreTheLast) {
  const std::int64_t n = new_shapes();
  fake::offer(3);
  for (const int rank : {0, 1, 2, 3, 7}) {
    ASSERT_EQ(run(n, rank), "ok");
    EXPECT_EQ(fake::last_rank(), rank < 3 ? rank : 2);
  }
  EXPECT_EQ(fake::counts().heuristics, 1);
}

// Of one tile and fewer parts of k from each to the next: k is too short to split.
std::vector<fake::Attributes> slowest_first() {
  std::vector<fake::Attributes> out(8, {.id = kLtNvjet,
                                        .tile = CUBLASLT_MATMUL_TILE_64x64,
                                        .split_k = 1,
                                        .custom = 0,
                                        .cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1});
  for (int split = 8; fake::Attributes & algorithm : out) algorithm.split_k = split--;
  return out;
}

TEST_F(CublasLtChoice, RanksAreOrderedByTheirEstimates) {
  const std::int64_t n = new_shapes();
  fake::describe(slowest_first());
  for (const int rank : {0, 1, 7}) {
    ASSERT_EQ(run(n, rank), "ok");
    EXPECT_EQ(fake::last_rank(), 7 - rank);
  }
  fake::offer(3);
  for (const int rank : {0, 2, 7}) {
    ASSERT_EQ(run(n + 1, rank), "ok");
    EXPECT_EQ(fake::last_rank(), std::max(2 - rank, 0));
  }
  // The estimate reads a GPU's size.
  fake::offer(8);
  EXPECT_EQ(run(n, 0, 0, 16), "ok");
  EXPECT_EQ(fake::counts().heuristics, 3);
}

TEST_F(CublasLtChoice, RanksAreTheHeuristicsOwnWhereAnAttributeIsMissing) {
  const std::int64_t n = new_shapes();
  fake::describe(slowest_first());
  int asked = 0;
  for (const auto attribute :
       {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
        CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID}) {
    fake::withhold(attribute, 5);
    ASSERT_EQ(run(n + asked++), "ok");
    EXPECT_EQ(fake::last_rank(), 0) << attribute;
  }
}

TEST_F(CublasLtChoice, ARefusalIsNotKept) {
  const std::int64_t n = new_shapes();
  fake::offer(0);
  EXPECT_NE(run(n).find("no algorithm for this product"), std::string::npos);
  fake::offer(8);
  EXPECT_EQ(run(n), "ok");
  EXPECT_EQ(fake::counts().heuristics, 2);
  EXPECT_EQ(fake::counts().products, 1);
}

TEST_F(CublasLtChoice, DevicesBeyondTheTableOfHandlesAreRefused) {
  const std::int64_t n = new_shapes();
  for (const int device : {-1, 64}) {
    EXPECT_NE(run(n, 0, device).find("wanted 0 to 63"), std::string::npos);
  }
  EXPECT_EQ(run(n, 0, 63), "ok");
}

// A driver serves libraries of its major version and older ones.
TEST_F(CublasLtChoice, TakesNoVersionThatTheDriverDoesNotServe) {
  EXPECT_EQ(cublaslt_version(13000), 130100);
  EXPECT_EQ(cublaslt_version(12090), 0);
  EXPECT_EQ(cublaslt_version(0), 0);
  fake::set_version(120805);
  EXPECT_EQ(cublaslt_version(13000), 120805);
  EXPECT_EQ(cublaslt_version(12000), 120805);
  EXPECT_EQ(cublaslt_version(11080), 0);
}

}  // namespace
}  // namespace sluice::cuda
