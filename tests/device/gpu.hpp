// SPDX-License-Identifier: Apache-2.0
// What the GPU tests share: one rig, and assertions on Status and Expected.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "harness/case.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"
#include "harness/verify.hpp"

namespace sluice::gpu {

/// The rig of device 0, opened once. Throws where that fails: main() made sure of a device.
inline harness::Rig& rig() {
  static const std::unique_ptr<harness::Rig> opened = std::move(harness::open_rig("cuda").value());
  return *opened;
}

/// "ok" or the error's message.
template <class Result>
std::string message(const Result& result) {
  return result ? "ok" : result.error().message;
}

}  // namespace sluice::gpu

#define EXPECT_OK(expr) EXPECT_EQ(::sluice::gpu::message(expr), "ok")
#define ASSERT_OK(expr) ASSERT_EQ(::sluice::gpu::message(expr), "ok")
#define EXPECT_CUDA(expr) EXPECT_EQ((expr), cudaSuccess)
#define ASSERT_CUDA(expr) ASSERT_EQ((expr), cudaSuccess)
