// SPDX-License-Identifier: Apache-2.0
// sluice explain: what plan() chooses for a problem, and why.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/cli.hpp"
#include "harness/case.hpp"
#include "harness/device_file.hpp"

namespace sluice::cli {
namespace {

// Further lines below the first one's text.
std::string indented(const std::string& lines) {
  std::string out;
  for (const char c : lines) out += c == '\n' ? std::string("\n           ") : std::string(1, c);
  return out;
}

void print_steps(const std::vector<ExplainedStep>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const ExplainedStep& step = steps[i];
    fmt::print("step {}     {}: {} {}\n", i + 1, step.name, step.kernel, step.config);
    if (!step.blocks.empty()) fmt::print("           {}\n", indented(step.blocks));
    if (!step.passed_over.empty()) fmt::print("           not by {}\n", indented(step.passed_over));
  }
}

// A device that is here, or one that a file describes: plans need no more.
Expected<Device> device_of(const Context& context) {
  const std::string& name = context.device;
  if (!name.ends_with(".json")) return find_device(context);
  auto device = harness::read_device(name);
  if (device) harness::limit_capability(*device, context.max_capability);
  return device;
}

int explain_case(const std::string& text, const Context& context) {
  const auto parsed = harness::parse_case(text);
  if (!parsed) return fail(parsed.error());
  const auto device = device_of(context);
  if (!device) return fail_device(device.error(), context.device);
  if (const Status s = check_device_options(context, device->backend); !s) return fail(s.error());
  const Problem& problem = parsed->problem;
  const auto scheduler = open_scheduler(context, *device);
  if (!scheduler) return fail(scheduler.error());
  const Options options = context.options(scheduler->get());
  const Explanation why = explain(problem, *device, options);

  fmt::print("case       {}\n", harness::format_case(*parsed));
  fmt::print("device     {}: {}\n", to_string(device->backend), device->name);
  fmt::print("work       {:.4g} GFLOP, {} to move, alignment promised {} B\n",
             flops(problem) * 1e-9, human_bytes(bytes_moved(problem)), problem.alignment_bytes);
  if (!why.error) {
    const auto made = plan(problem, *device, options);
    if (!made) return fail(made.error());
    fmt::print("chosen     {} ({}), config {}\n", made->variant_name(), to_string(why.source),
               why.config);
    fmt::print("recipe     {}\n", why.reason);
    if (!why.entry.empty()) fmt::print("entry      {}\n", why.entry);
    fmt::print("workspace  {}\n", human_bytes(static_cast<double>(made->workspace_bytes)));
    if (device->backend == Backend::kCpu) fmt::print("threads    {}\n", made->threads);
    print_steps(why.steps);
    fmt::print("configs    {}\n\n",
               fmt::join(config_names(made->variant_name(), problem, *device), " "));
  }
  Table table;
  table.column("variant", Align::kLeft);
  table.column("", Align::kLeft);
  table.column("why not", Align::kLeft);
  for (const Refusal& line : why.variants) {
    table.row({line.variant,
               line.chosen           ? "chosen"
               : line.reason.empty() ? "takes it"
                                     : "refuses",
               line.reason});
  }
  table.print();
  return why.error ? fail(*why.error) : kOk;
}

}  // namespace

void add_explain(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("explain", "The variant and config chosen for a problem, and why");
  const auto text = std::make_shared<std::string>();
  verb->add_option("case", *text, "Problem, such as 128x4096x14336:bf16:silu")->required();
  add_device_option(*verb, context, ", or a description such as data/devices/a100.json");
  add_kernel_options(*verb, context);
  verb->callback([text, &context] { context.exit_code = explain_case(*text, context); });
}

}  // namespace sluice::cli
