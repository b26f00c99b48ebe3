// SPDX-License-Identifier: Apache-2.0
// What plan() chooses, a line a plan: DEVICE CASE STEP=KERNEL:TILING ... WORKSPACE, in words that
// outlive the names of variants and configs. scripts/plan_dump says how it is used.
//
//   sluice_plan_dump DEVICES < lines     DEVICES: a folder of device descriptions; of each line the
//                                        first two words are read, a device's file and a case
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "harness/case.hpp"
#include "harness/device_file.hpp"
#include "sluice/plan.hpp"

namespace {

using namespace sluice;

// A kernel's word in the dump, which stays when the kernel is renamed.
std::string word_of(const std::string& kernel) {
  static const std::map<std::string, std::string> kWords = {
      {"cuda.sm90_decode", "decode"}, {"cuda.sm90_gemm", "gemm"},
      {"cuda.cublaslt", "cublaslt"},  {"cuda.sm80_decode", "sm80_decode"},
      {"cuda.sm80_gemm", "sm80"},     {"cuda.norm", "norm"},
      {"cuda.simt", "simt"},          {"cuda.elementwise", "elementwise"},
      {"cuda.norm_any", "norm_any"},  {"cuda.cublaslt_any", "cublaslt_any"}};
  const auto found = kWords.find(kernel);
  return found == kWords.end() ? kernel : found->second;
}

// The steps whose config is a choice; the others follow from them.
bool is_told(const Problem& p, const std::string& step) {
  return p.op != Op::kMlpGrad || step == "gate_up_grad" || step == "weight_grad";
}

// Where one kernel makes all of an operator, as if it made its parts.
std::string whole_steps(const Problem& p, const std::string& word, const std::string& config) {
  const auto part = [&](const char* name) { return fmt::format("{}={}:{}", name, word, config); };
  const std::string norm = p.norm.enabled ? fmt::format("norm={} ", word) : "";
  if (p.op == Op::kMlp) return norm + part("gate_up") + " " + part("down");
  return norm + part(p.op == Op::kMlpGrad ? "gate_up_grad" : to_string(p.op));
}

std::string steps_of(const Problem& p, const Explanation& why) {
  const ExplainedStep& first = why.steps.front();
  const bool whole = why.steps.size() == 1 && word_of(first.kernel) == "simt";
  if (whole) return whole_steps(p, "simt", first.config);
  std::string out;
  bool norm_step = false;
  for (const ExplainedStep& step : why.steps) {
    if (!is_told(p, step.name)) continue;
    const std::string word = word_of(step.kernel);
    norm_step = norm_step || step.name == "norm";
    const bool deferred = step.name == "gate_up" && p.norm.enabled && !norm_step;
    out += fmt::format("{}{}{}={}{}", out.empty() ? "" : " ", step.name, deferred ? "+norm" : "",
                       word, step.name == "norm" ? "" : ":" + step.config);
  }
  return out;
}

std::string choice(const Device& device, const std::string& text) {
  const auto parsed = harness::parse_case(text);
  if (!parsed) return fmt::format("error {}", parsed.error().text());
  const auto made = plan(parsed->problem, device);
  if (!made) return "none";
  return fmt::format("{} {}", steps_of(parsed->problem, explain(parsed->problem, device)),
                     made->workspace_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: sluice_plan_dump DEVICES < lines\n", stderr);
    return 2;
  }
  std::map<std::string, Device> devices;
  std::string device;
  std::string text;
  std::string rest;
  while (std::cin >> device >> text && std::getline(std::cin, rest)) {
    if (!devices.contains(device)) {
      const auto read = harness::read_device(std::string(argv[1]) + "/" + device + ".json");
      if (!read) {
        std::fprintf(stderr, "%s\n", read.error().message);
        return 2;
      }
      devices[device] = *read;
    }
    fmt::print("{} {} {}\n", device, text, choice(devices[device], text));
  }
  return 0;
}
