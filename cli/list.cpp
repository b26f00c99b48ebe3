// SPDX-License-Identifier: Apache-2.0
// sluice list: the words that other verbs take.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/cli.hpp"
#include "harness/case.hpp"
#include "harness/models.hpp"

namespace sluice::cli {
namespace {

int list_models() {
  Table table;
  table.column("model", Align::kLeft);
  for (const char* title : {"D", "H", "layers", "heads", "KV heads", "head size"}) {
    table.column(title, Align::kRight);
  }
  for (const char* title : {"gate", "layout", "bias", "experts", "TP", "source"}) {
    table.column(title, Align::kLeft);
  }
  for (const harness::Model& m : harness::models()) {
    table.row({m.name, std::to_string(m.d), std::to_string(m.h), std::to_string(m.layers),
               std::to_string(m.heads), std::to_string(m.kv_heads), std::to_string(m.head_size),
               m.gate, m.layout, m.bias ? "yes" : "no",
               m.experts > 1 ? fmt::format("{} of {}", m.experts_per_token, m.experts) : "",
               fmt::format("{}", fmt::join(m.tp, ",")), m.source});
  }
  table.print();
  return kOk;
}

int list_gates() {
  Table table;
  table.column("gate", Align::kLeft);
  table.column("act(v)", Align::kLeft);
  table.row({"silu", "v sigmoid(alpha v)"});
  table.row({"gelu_tanh", "v/2 (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3)))"});
  table.row({"gelu_erf", "v/2 (1 + erf(v / sqrt 2))"});
  table.row({"relu", "max(v, 0)"});
  table.row({"sigmoid", "sigmoid(alpha v)"});
  table.row({"identity", "v"});
  table.row({"clamped_swiglu", "silu with alpha=1.702, limit=7, up_offset=1 (gpt-oss)"});
  table.print();
  fmt::print(
      "h = output_multiplier act(v) w, v = min(gate_multiplier g, limit),\n"
      "w = clamp(u, -limit, limit) + up_offset; parameters in brackets, such as\n"
      "silu(alpha=1.7,limit=7,up_offset=1,gate_multiplier=1.3,output_multiplier=2)\n");
  return kOk;
}

int list_variants() {
  Table table;
  table.column("backend", Align::kLeft);
  table.column("variant", Align::kLeft);
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (const std::string& name : variant_names(backend)) table.row({to_string(backend), name});
  }
  table.print();
  return kOk;
}

int list_tokens() {
  Table table;
  table.column("MxDxH[:token]...", Align::kLeft);
  table.column("each at most once, in any order", Align::kLeft);
  for (const harness::TokenHelp& line : harness::token_help()) {
    table.row({line.tokens, line.meaning});
  }
  table.print();
  return kOk;
}

}  // namespace

void add_list(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("list", "Models, gates, variants, or the tokens of a problem");
  verb->require_subcommand(0, 1);
  verb->callback([verb, &context] {
    if (verb->get_subcommands().empty()) {
      context.exit_code = fail(kUsage, "list: wanted models, gates, variants or tokens");
    }
  });
  verb->add_subcommand("models", "Model presets and their shapes")->callback([&context] {
    context.exit_code = list_models();
  });
  verb->add_subcommand("gates", "Gates and their formulas")->callback([&context] {
    context.exit_code = list_gates();
  });
  verb->add_subcommand("variants", "Variants by backend, best first")->callback([&context] {
    context.exit_code = list_variants();
  });
  verb->add_subcommand("tokens", "What a problem may say beside its shape")->callback([&context] {
    context.exit_code = list_tokens();
  });
}

}  // namespace sluice::cli
