// SPDX-License-Identifier: Apache-2.0
// cuda.column_sum: the gradient of a bias, summed over tokens.
#include "cuda/kernel_rows.hpp"
#include "cuda/simt/kernels.hpp"
#include "cuda/simt/views.hpp"

namespace sluice::cuda {
namespace {

using detail::Step;

std::size_t configs(const Problem&, const Device&, std::span<KernelConfig> out) noexcept {
  if (!out.empty()) out[0] = {};
  return 1;
}

void name_config(const KernelConfig&, std::span<char> out) noexcept { out[0] = '\0'; }

Status launch(const Step& step, const Step* /*next*/) noexcept {
  return simt::launch_column_sum(step.device, simt::column_sum(step), step.stream);
}

std::string describe(const detail::StepView& s) {
  return "a thread a column, " + std::to_string(s.problem.h) + " columns";
}

}  // namespace

const detail::Kernel kColumnSum = {
    .name = "cuda.column_sum",
    .backend = Backend::kCuda,
    .ops = {Op::kColumnSum},
    .supports = simt::type_refusal,
    .configs = configs,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
};

}  // namespace sluice::cuda
