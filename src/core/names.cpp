// SPDX-License-Identifier: Apache-2.0
// The spelling of every enumerator, as the command line, results and messages use it.
#include <cstdio>
#include <string>

#include "sluice/plan.hpp"

namespace sluice {

const char* to_string(DType dtype) noexcept { return traits(dtype).name; }

const char* to_string(Op op) noexcept {
  switch (op) {
    case Op::kGateUp:
      return "gate_up";
    case Op::kDown:
      return "down";
    case Op::kMlp:
      return "mlp";
    case Op::kGateMul:
      return "gate_mul";
    case Op::kGateMulGrad:
      return "gate_mul_grad";
    case Op::kGateUpGrad:
      return "gate_up_grad";
    case Op::kMlpGrad:
      return "mlp_grad";
    case Op::kNorm:
      return "norm";
    case Op::kInputGrad:
      return "input_grad";
    case Op::kWeightGrad:
      return "weight_grad";
    case Op::kColumnSum:
      return "column_sum";
    case Op::kAllReduce:
      return "all_reduce";
  }
  return "invalid op";
}

const char* to_string(Activation activation) noexcept {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kGeluErf:
      return "gelu_erf";
    case Activation::kRelu:
      return "relu";
    case Activation::kSigmoid:
      return "sigmoid";
    case Activation::kIdentity:
      return "identity";
  }
  return "invalid activation";
}

const char* to_string(Backend backend) noexcept {
  return backend == Backend::kCpu ? "cpu" : backend == Backend::kCuda ? "cuda" : "invalid backend";
}

const char* to_string(Arch arch) noexcept {
  switch (arch) {
    case Arch::kNone:
      return "none";
    case Arch::kTuring:
      return "turing";
    case Arch::kAmpere:
      return "ampere";
    case Arch::kAda:
      return "ada";
    case Arch::kHopper:
      return "hopper";
    case Arch::kBlackwell:
      return "blackwell";
  }
  return "invalid arch";
}

const char* to_string(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::kEmulated:
      return "emulated";
    case SimdTarget::kAvx2:
      return "avx2";
    case SimdTarget::kAvx512:
      return "avx512";
    case SimdTarget::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "invalid target";
}

const char* to_string(ChoiceSource source) noexcept {
  switch (source) {
    case ChoiceSource::kHeuristic:
      return "heuristic";
    case ChoiceSource::kForced:
      return "forced";
    case ChoiceSource::kTuneTable:
      return "tuning table";
    case ChoiceSource::kNearestEntry:
      return "nearest entry";
    case ChoiceSource::kShippedTable:
      return "shipped table";
  }
  return "invalid source";
}

std::string to_string(const Problem& problem) {
  char text[128];
  std::snprintf(text, sizeof(text), "%s %lldx%lldx%lld %s %s", to_string(problem.op),
                static_cast<long long>(problem.m), static_cast<long long>(problem.d),
                static_cast<long long>(problem.h), to_string(problem.x_dtype),
                to_string(problem.gate.activation));
  return text;
}

}  // namespace sluice
