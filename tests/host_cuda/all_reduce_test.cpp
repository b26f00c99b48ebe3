// SPDX-License-Identifier: Apache-2.0
// The sum over ranks on the host: steps, bytes and refusals, where rows lie, and a model check of
// the signals over all interleavings.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "choice.hpp"
#include "cuda/all_reduce/protocol.hpp"
#include "harness/device_file.hpp"

namespace sluice {
namespace {

using namespace cuda::all_reduce;

Device device_of(const std::string& name) {
  return harness::read_device(SLUICE_DEVICES "/" + name + ".json").value();
}

Problem reduced(const std::string& text, int world, int rank = 0) {
  Problem p = gpu::problem_of(text);
  p.reduce = {ReduceKind::kAllReduce, rank, world, {}};
  return p;
}

std::string steps_of(const Problem& p, const Device& device) {
  const Explanation why = explain(p, device);
  if (why.error) return why.error->message;
  std::string out;
  for (const ExplainedStep& step : why.steps) {
    out += (out.empty() ? "" : " ") + step.name + ":" + step.kernel + ":" + step.config;
  }
  return out;
}

TEST(AllReduce, IsAStepBehindDown) {
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  };
  for (const char* const device : {"h200", "a100"}) {
    for (const char* const text :
         {"1x8192x7168:mlp", "16x8192x7168:mlp:add_norm:residual_norm_input", "64x8192x7168:mlp",
          "16x8192x7168:down:residual"}) {
      SCOPED_TRACE(std::string(device) + " " + text);
      const std::string plain = steps_of(gpu::problem_of(text), device_of(device));
      const std::string two = steps_of(reduced(text, 2), device_of(device));
      const bool few = text[0] == '1';
      EXPECT_TRUE(
          ends_with(two, few ? ":cuda.all_reduce:one_shot_ll" : ":cuda.all_reduce:one_shot"))
          << two;
      EXPECT_EQ(two.rfind("norm:", 0), plain.rfind("norm:", 0)) << two;
    }
  }
  EXPECT_TRUE(ends_with(steps_of(reduced("256x8192x7168:mlp", 4), device_of("h200")),
                        "all_reduce:cuda.all_reduce:two_shot"));
  EXPECT_TRUE(ends_with(steps_of(reduced("1x8192x7168:mlp", 8), device_of("h200")),
                        "all_reduce:cuda.all_reduce:one_shot_ll"));
}

// 1 MiB of y at two ranks, 256 KiB at eight.
TEST(AllReduce, FlagsInTheDataAreForFewTokens) {
  const auto takes = [](const std::string& text, int world) {
    Options options;
    options.config = "all_reduce=one_shot_ll";
    const auto made = plan(reduced(text, world), device_of("h200"), options);
    EXPECT_TRUE(!made || made->peer_bytes == kPeerHeaderBytes);
    return static_cast<bool>(made);
  };
  EXPECT_TRUE(takes("64x8192x7168:down", 2));
  EXPECT_FALSE(takes("65x8192x7168:down", 2));
  EXPECT_TRUE(takes("16x8192x7168:down", 8));
  EXPECT_FALSE(takes("17x8192x7168:down", 8));
  const auto blocks = [](const std::string& text) {
    return explain(reduced(text, 2), device_of("h200")).steps.back().blocks;
  };
  const std::string one = blocks("1x8192x7168:down");
  EXPECT_EQ(one.find("rank 0 of 2; 1 tiles of 1 rows, 8 CTAs; sends 32768 bytes, 1 hop;"), 0U)
      << one;
  EXPECT_NE(blocks("16x8192x7168:down").find(", 128 CTAs; "), std::string::npos);
}

TEST(AllReduce, RanksChooseAlike) {
  for (const char* const text : {"1x8192x7168:mlp", "64x8192x7168:mlp", "1000x8192x7168:mlp"}) {
    for (int rank = 1; rank < 4; ++rank) {
      EXPECT_EQ(steps_of(reduced(text, 4, rank), device_of("h100")),
                steps_of(reduced(text, 4), device_of("h100")));
    }
  }
}

// Shards of H may be uneven, or of no whole units: what ranks exchange is the same.
TEST(AllReduce, ShardsOfAnyWidthChooseAlike) {
  for (const char* const device : {"h200", "a100"}) {
    for (const char* const m : {"1", "64", "1000"}) {
      const auto sum_of = [&](const char* h) {
        const Problem p = reduced(std::string(m) + "x8192x" + h + ":mlp", 4);
        const auto made = plan(p, device_of(device));
        EXPECT_TRUE(made) << made.error().message;
        const std::string steps = steps_of(p, device_of(device));
        return steps.substr(steps.rfind(' ')) + " " + std::to_string(made ? made->peer_bytes : 0);
      };
      for (const char* const h : {"7176", "7166", "6001"}) {
        EXPECT_EQ(sum_of(h), sum_of("7168")) << device << " " << m << " " << h;
      }
    }
  }
}

TEST(AllReduce, SaysWhatItSendsAndNeeds) {
  const Problem p = reduced("16x8192x7168:mlp", 4);
  Options options;
  options.config = "all_reduce=one_shot";
  const Explanation why = explain(p, device_of("h200"), options);
  ASSERT_EQ(why.steps.size(), 3U);
  EXPECT_EQ(
      why.steps[2].blocks.find("rank 0 of 4; 16 tiles of 1 rows, 16 CTAs; sends 786432 bytes"), 0U)
      << why.steps[2].blocks;
  const auto made = plan(p, device_of("h200"), options);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->peer_bytes, kPeerHeaderBytes + 2U * 4 * 16 * 8192 * 2);
  // Two-shot: a rank's segments of all ranks, and the sums.
  options.config = "all_reduce=two_shot";
  EXPECT_EQ(plan(p, device_of("h200"), options)->peer_bytes,
            kPeerHeaderBytes + 2U * (4 * 16 * 2048 + 16 * 8192) * 2);
  EXPECT_GE(made->workspace_bytes, kWorkspaceHeaderBytes + 16U * 8192 * 2);
  EXPECT_EQ(plan(gpu::problem_of("16x8192x7168:mlp"), device_of("h200"))->peer_bytes, 0U);
}

TEST(AllReduce, NoTokensNeedNothing) {
  const auto made = plan(reduced("0x8192x7168:mlp", 4), device_of("h200"));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->peer_bytes, 0U);
  EXPECT_TRUE(run(*made, {}, {}, nullptr));
}

TEST(AllReduce, IsRefusedWithAReason) {
  const auto message = [](const Problem& p, const Device& device) {
    const auto made = plan(p, device);
    return std::string(made ? "ok" : made.error().message);
  };
  EXPECT_NE(message(reduced("16x8192x7168:mlp", 2), cpu_device()).find("has no all_reduce"),
            std::string::npos);
  EXPECT_NE(
      message(reduced("16x8192x7168:mlp:fp32", 2), device_of("h200")).find("has no all_reduce"),
      std::string::npos);
  EXPECT_NE(gpu::reason_of("cuda.sm80", reduced("16x1028x512:mlp", 2), device_of("h200")).size(),
            0U);
}

TEST(AllReduce, RunChecksPeers) {
  const Problem p = reduced("1x1024x512:down", 2, 1);
  const auto made = plan(p, device_of("h200"));
  ASSERT_TRUE(made);
  alignas(256) static std::array<char, 8 << 20> memory;
  Operands o;
  o.h = memory.data(), o.w_down = memory.data() + 65536, o.y = memory.data() + (2 << 20);
  const Workspace workspace{memory.data() + (3 << 20), 1 << 20, nullptr};
  Peers peers;
  const auto refused = [&](const Peers* given) {
    const Status status = run(*made, o, workspace, nullptr, given);
    return std::string(status ? "ok" : status.error().message);
  };
  EXPECT_EQ(refused(nullptr), "peers: got null, wanted the buffers of 2 ranks");
  EXPECT_EQ(refused(&peers).find("peers.bytes: got 0, wanted at least "), 0U) << refused(&peers);
  peers.bytes = made->peer_bytes;
  EXPECT_EQ(refused(&peers).find("peers.buffers[0]: got "), 0U) << refused(&peers);
  peers.buffers[0] = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  peers.buffers[1] = peers.buffers[0];
  EXPECT_EQ(refused(&peers), "peers.buffers[1]: overlaps peers.buffers[0] (0 bytes apart)");
  peers.buffers[1] = memory.data() + (2 << 20);
  EXPECT_EQ(refused(&peers).find("peers.buffers[1]: overlaps y"), 0U) << refused(&peers);
  peers.time_limit_us = -1;
  EXPECT_EQ(refused(&peers), "peers.time_limit_us: got -1, wanted 0 to 9223372036854775");
  peers.time_limit_us = 9223372036854776;  // in nanoseconds beyond 64 bits
  EXPECT_EQ(refused(&peers).find("peers.time_limit_us: got 9223372036854776"), 0U);
}

// No two parts and sums of an inbox share a byte, all lie in its half, and the ranks' segments are
// the row.
TEST(AllReduce, RowsOfAnInboxAreApart) {
  for (const Form form : {Form::kOneShot, Form::kTwoShot}) {
    for (const int world : {2, 4, 8}) {
      for (const std::int64_t row_bytes : {16, 112, 2064}) {
        for (const std::int64_t m : {1, 3, 16, 200, 256, 257, 1000}) {
          const Geometry g{form, world, m, row_bytes};
          ASSERT_LE(g.tiles(), kMaxTiles);
          ASSERT_GE(g.tiles() * g.tile_rows(), m);
          std::map<std::int64_t, std::int64_t> pieces;  // begin, end
          for (std::int64_t row = 0; row < m; ++row) {
            for (int sender = 0; sender < world; ++sender) {
              const std::int64_t begin = g.part_offset(sender, row);
              EXPECT_TRUE(pieces.emplace(begin, begin + g.segment() * 16).second);
            }
            if (form == Form::kOneShot) continue;
            EXPECT_TRUE(pieces.emplace(g.sum_offset(row), g.sum_offset(row) + row_bytes).second);
          }
          std::int64_t last = 0;
          for (const auto& [begin, end] : pieces) {
            ASSERT_GE(begin, last);
            last = end;
          }
          EXPECT_LE(last, g.half_bytes());
          int next = 0;
          for (int rank = 0; rank < world && form == Form::kTwoShot; ++rank) {
            EXPECT_EQ(g.segment_begin(rank), next);
            next = g.segment_end(rank);
            EXPECT_LE(next - g.segment_begin(rank), g.segment());
          }
          EXPECT_EQ(next, form == Form::kTwoShot ? g.vectors() : 0);
        }
      }
    }
  }
}

// Nor do two packets share a slot.
TEST(AllReduce, PacketsAreApart) {
  for (const int world : {2, 4, 8}) {
    for (const std::int64_t vectors : {1, 31, 129, 1024}) {
      const Geometry g{Form::kOneShotLl, world, kLlPackets / world / 2 / vectors, 16 * vectors};
      ASSERT_TRUE(g.fits_ll());
      ASSERT_FALSE(Geometry(Form::kOneShotLl, world, g.rows() + 1, g.row_bytes()).fits_ll());
      std::set<int> slots;
      for (int sender = 0; sender < world; ++sender) {
        for (int row = 0; row < g.rows(); ++row) {
          for (int vector = 0; vector < g.vectors(); ++vector) {
            const int first = g.ll_packet(sender, row, vector);
            ASSERT_LT(first + kLlApart, kLlPackets);
            slots.insert({first, first + kLlApart});
          }
        }
      }
      EXPECT_EQ(static_cast<std::int64_t>(slots.size()),
                std::int64_t{2} * world * g.rows() * vectors);
    }
  }
}

// Numbers of runs go round; the flag of a slot is one of the last 2^30 runs', or 0.
TEST(AllReduce, NoFlagIsThatOfAnOldRun) {
  constexpr std::uint32_t kClear = std::uint32_t{1} << 30;
  for (const std::uint32_t epoch : {1U, 2U, kClear, 2 * kClear - 1, 2 * kClear, 0U - 1, 0U}) {
    EXPECT_NE(ll_flag(epoch), 0U);
    for (const std::uint32_t back : {1U, 2U, kClear, kClear + 1, 2 * kClear - 1}) {
      EXPECT_NE(ll_flag(epoch), ll_flag(epoch - back)) << epoch << ", " << back;
    }
    EXPECT_NE(half_of(epoch), half_of(epoch + 1));
  }
  for (const std::uint32_t first : {0U, kClear, 2 * kClear, 3 * kClear}) {
    EXPECT_TRUE(clears_ll(first) && clears_ll(first + 1));
    EXPECT_FALSE(clears_ll(first + 2) || clears_ll(first - 1));
  }
}

// The model: 2 ranks, each with a CTA a tile; kernels of a rank follow each other. A CTA's program
// is that of all_reduce.cu, an instruction a tile's stores, signal, wait or loads. Stores and loads
// of a tile are two instructions each, so that an overwrite between them shows. Memory holds the
// epoch whose sums lie there. A tile of one_shot_ll is what one load takes, its flag with it; it is
// loaded again where others of the same loop have not come.
constexpr int kRanks = 2;
constexpr int kTiles = 3;
constexpr int kEpochs = 3;

enum class Fault { kNone, kOneBuffer, kSignalFirst, kEqual, kNoWait, kAnyFlag };

enum class Do : std::uint8_t {
  kPushLl,
  kReceive,
  kReceiveAgain,
  kPush,
  kSignal,
  kWait,
  kLoad,
  kLoadAgain,
  kPushSum,
  kSignalSum,
  kWaitSum,
  kLoadSum,
  kLoadSumAgain,
  kEnd
};

std::vector<Do> program(Form form, Fault fault) {
  std::vector<Do> out;
  if (form == Form::kOneShotLl) {
    out = {Do::kPushLl, Do::kReceive, Do::kReceiveAgain, Do::kEnd};
  } else if (form == Form::kOneShot) {
    out = {Do::kPush, Do::kSignal, Do::kWait, Do::kLoad, Do::kLoadAgain, Do::kEnd};
  } else {
    out = {Do::kPush,      Do::kSignal,       Do::kWait,      Do::kLoad,
           Do::kLoadAgain, Do::kPushSum,      Do::kSignalSum, Do::kWaitSum,
           Do::kLoadSum,   Do::kLoadSumAgain, Do::kEnd};
  }
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    if (fault == Fault::kSignalFirst && (out[i] == Do::kPush || out[i] == Do::kPushSum)) {
      std::swap(out[i], out[i + 1]), ++i;
    }
  }
  if (fault == Fault::kNoWait) std::erase(out, Do::kWait);
  return out;
}

struct State {
  std::array<std::uint8_t, kRanks> run{};                     // the kernel that runs, from 1
  std::array<std::array<std::uint8_t, kTiles>, kRanks> at{};  // in the program
  // [reader][phase][half][tile]: whose epoch lies there; [reader][phase][tile]: the signal;
  // [reader][half][tile]: the packets.
  std::array<std::array<std::array<std::array<std::uint8_t, kTiles>, 2>, kPhases>, kRanks> inbox{};
  std::array<std::array<std::array<std::uint8_t, kTiles>, kPhases>, kRanks> signals{};
  std::array<std::array<std::array<std::uint8_t, kTiles>, 2>, kRanks> ll{};
  auto operator<=>(const State&) const = default;
};

// The number of a run among those that share its halves.
std::uint8_t epoch_of(const std::array<Form, kEpochs>& forms, std::uint8_t run) {
  const auto is_ll = [](Form form) { return form == Form::kOneShotLl; };
  const bool ll = is_ll(forms.at(run - 1U));
  return static_cast<std::uint8_t>(std::count_if(forms.begin(), forms.begin() + run,
                                                 [&](Form form) { return is_ll(form) == ll; }));
}

// "ok", or what goes wrong in some interleaving. `forms`: of each run.
std::string explore(const std::array<Form, kEpochs>& forms, Fault fault, std::size_t* states) {
  // Two-shot has twice as many instructions: two tiles show as much.
  const bool two = std::find(forms.begin(), forms.end(), Form::kTwoShot) != forms.end();
  const int tiles = two ? kTiles - 1 : kTiles;
  State first;
  first.run = {1, 1};
  std::set<State> seen = {first};
  std::deque<State> open = {first};
  while (!open.empty()) {
    const State now = open.front();
    open.pop_front();
    bool moved = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const std::size_t peer = 1 - r;
      if (now.run[r] > kEpochs) continue;
      const std::uint8_t epoch = epoch_of(forms, now.run[r]);
      const auto half = static_cast<std::size_t>(fault == Fault::kOneBuffer ? 0 : half_of(epoch));
      bool ended = true;
      for (int tile = 0; tile < tiles; ++tile) {
        const auto t = static_cast<std::size_t>(tile);
        const std::vector<Do> todo =
            program(forms[static_cast<std::size_t>(now.run[r] - 1)], fault);
        const Do step = todo[now.at[r][t]];
        if (step == Do::kEnd) continue;
        ended = false;
        State next = now;
        ++next.at[r][t];
        const auto phase = static_cast<std::size_t>(step >= Do::kPushSum ? kSum : kPart);
        const std::uint8_t packet = now.ll[r][half][t];
        switch (step) {
          case Do::kPushLl:
            next.ll[peer][half][t] = epoch;
            break;
          case Do::kReceive:
            if (fault == Fault::kAnyFlag ? packet == 0 : packet != epoch) continue;
            if (packet == epoch) break;
            [[fallthrough]];
          case Do::kReceiveAgain:
            if (packet == epoch) break;
            return "receives a packet of epoch " + std::to_string(packet) + " in " +
                   std::to_string(epoch);
          case Do::kPush:
          case Do::kPushSum:
            next.inbox[peer][phase][half][t] = epoch;
            break;
          case Do::kSignal:
          case Do::kSignalSum:
            next.signals[peer][phase][t] = epoch;
            break;
          case Do::kWait:
          case Do::kWaitSum: {
            const std::uint8_t signal = now.signals[r][phase][t];
            if (fault == Fault::kEqual ? signal != epoch : !has_arrived(signal, epoch)) continue;
            break;
          }
          default:
            if (now.inbox[r][phase][half][t] != epoch) {
              return "reads a tile of epoch " + std::to_string(now.inbox[r][phase][half][t]) +
                     " in " + std::to_string(epoch);
            }
        }
        moved = true;
        if (seen.insert(next).second) open.push_back(next);
      }
      if (!ended) continue;
      State next = now;
      ++next.run[r];
      next.at[r] = {};
      moved = true;
      if (seen.insert(next).second) open.push_back(next);
    }
    const bool done = now.run[0] > kEpochs && now.run[1] > kEpochs;
    if (!moved && !done) return "no rank can go on";
  }
  *states = seen.size();
  return "ok";
}

constexpr Form kOne = Form::kOneShot;
constexpr Form kTwo = Form::kTwoShot;
constexpr Form kLl = Form::kOneShotLl;
constexpr std::array<std::array<Form, kEpochs>, 9> kSequences = {{{kOne, kOne, kOne},
                                                                  {kTwo, kTwo, kTwo},
                                                                  {kOne, kTwo, kOne},
                                                                  {kTwo, kOne, kTwo},
                                                                  {kLl, kLl, kLl},
                                                                  {kLl, kOne, kLl},
                                                                  {kOne, kLl, kOne},
                                                                  {kTwo, kLl, kTwo},
                                                                  {kLl, kTwo, kLl}}};

TEST(AllReduceModel, NoInterleavingStopsOrReadsAnotherRunsTile) {
  for (const auto& forms : kSequences) {
    std::size_t states = 0;
    EXPECT_EQ(explore(forms, Fault::kNone, &states), "ok");
    EXPECT_GT(states, 1000U);
  }
}

TEST(AllReduceModel, FindsPlantedFaults) {
  std::size_t states = 0;
  for (const auto& forms : {kSequences[0], kSequences[1]}) {
    for (const Fault fault : {Fault::kSignalFirst, Fault::kNoWait}) {
      EXPECT_NE(explore(forms, fault, &states), "ok") << static_cast<int>(fault);
    }
  }
  // Two-shot alone would do with one buffer: a rank has read all parts before it sends their sum.
  for (const std::size_t i : {0U, 2U, 3U}) {
    EXPECT_NE(explore(kSequences.at(i), Fault::kOneBuffer, &states).find("reads a tile of epoch"),
              std::string::npos)
        << i;
  }
  EXPECT_EQ(explore(kSequences[0], Fault::kEqual, &states), "no rank can go on");
  EXPECT_NE(explore(kSequences[4], Fault::kOneBuffer, &states), "ok");
  EXPECT_NE(explore(kSequences[4], Fault::kAnyFlag, &states).find("receives a packet of epoch 1"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
