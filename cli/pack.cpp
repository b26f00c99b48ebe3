// SPDX-License-Identifier: Apache-2.0
// sluice pack: rewrites a checkpoint with gate and up in blocks of rows of one tensor, or apart.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/cli.hpp"
#include "harness/checkpoint_pack.hpp"

namespace sluice::cli {
namespace {

struct PackArguments {
  std::string model;
  std::string out;
  std::string block;
  std::string order = "gate_up";
  bool unpack = false;
};

// "halves" or a positive number.
std::string check_block(const std::string& text) {
  std::int64_t rows = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rows);
  const bool number = error == std::errc{} && stop == end && rows > 0;
  return text == "halves" || number ? "" : "got " + text + ", wanted halves or at least 1";
}

int pack(const PackArguments& args) {
  if (!args.out.ends_with(".safetensors")) {
    return fail(kUsage, fmt::format("pack: --out: got {}, wanted a .safetensors file", args.out));
  }
  harness::GateUpPacking target;
  if (args.order == "up_gate") target.order = PackOrder::kUpGate;
  if (args.block != "halves") {
    std::from_chars(args.block.data(), args.block.data() + args.block.size(), target.block_rows);
  }
  const auto report =
      harness::pack_checkpoint(args.model, args.out, args.unpack ? nullptr : &target);
  if (!report) return fail(report.error());
  const std::string how = args.unpack ? "gate and up in tensors of their own"
                          : args.block == "halves"
                              ? "halves, " + args.order
                              : "blocks of " + args.block + " rows, " + args.order;
  fmt::print("{}: {} tensors, {} pairs of gate and up: {}\n", args.out, report->tensors,
             report->pairs, how);
  return kOk;
}

}  // namespace

void add_pack(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "pack", "Rewrite a checkpoint with gate and up in blocks of rows of one tensor, or apart");
  const auto args = std::make_shared<PackArguments>();
  verb->add_option("model", args->model, "A .safetensors file, a sharded index, or their folder")
      ->required();
  verb->add_option("-o,--out", args->out, "The .safetensors file to write")->required();
  CLI::Option* const block =
      verb->add_option(
              "--block", args->block,
              "Rows of a block: 1 to H, which it divides; or halves, H rows of each tensor")
          ->check(CLI::Validator(check_block, "ROWS|halves"));
  CLI::Option* const order = verb->add_option("--order", args->order, "Which of the two is first")
                                 ->check(CLI::IsMember({"gate_up", "up_gate"}))
                                 ->capture_default_str();
  verb->add_flag("--unpack", args->unpack,
                 "Into tensors of their own; the file's metadata say how it is packed")
      ->excludes(block)
      ->excludes(order);
  verb->callback([args, &context] {
    if (!args->unpack && args->block.empty()) {
      context.exit_code = fail(kUsage, "pack: wanted --block ROWS, --block halves or --unpack");
      return;
    }
    context.exit_code = pack(*args);
  });
}

}  // namespace sluice::cli
