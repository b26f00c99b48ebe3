// SPDX-License-Identifier: Apache-2.0
// Shapes of the tests of stream-K on a GPU, M x D x H. That they cut tiles in every way is a matter
// of the schedule: tests/host_cuda/gemm_config_test.cpp asks for it on any machine.
#pragma once

namespace sluice::gpu {

inline constexpr const char* kStreamKTails[] = {
    "3x8x8",        "3x136x7704",    "17x72x104",     "33x1672x264",  "64x264x4400",
    "65x4424x136",  "100x8456x1544", "129x520x2056",  "137x1672x456", "144x72x104",
    "144x136x7704", "145x2056x136",  "160x2056x1288", "193x1544x392", "257x2056x1032",
    "300x136x3080", "40x29568x72"};

inline constexpr const char* kStreamKRepeated[] = {"64x1672x1224:mlp", "20x8200x264:gate_up",
                                                   "300x1672x1224:mlp", "137x1672x1224:gate_up",
                                                   "144x136x7704:gate_up"};

/// The second fills the SMs with pairs: smaller grids of them do not start early.
inline constexpr const char* kStreamKChained[] = {"40x1672x1224:mlp:sigmoid",
                                                  "20x8200x264:mlp:sigmoid"};

}  // namespace sluice::gpu
