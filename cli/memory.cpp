// SPDX-License-Identifier: Apache-2.0
// sluice memory: what the unfused MLP's activations take, what the fused ones take, and how many
// more tokens of KV cache the difference holds. Source of the two views: the chunk-512 and the
// sequence-length graphs of the Fused SwiGLU study (github.com/bit-ml/Fused-SwiGLU).
#include <fmt/format.h>

#include <memory>

#include "cli/cli.hpp"
#include "harness/models.hpp"
#include "harness/provenance.hpp"
#include "harness/results.hpp"

namespace sluice::cli {
namespace {

using harness::Model;
using nlohmann::ordered_json;

struct MemoryArguments {
  std::vector<std::string> models;
  std::vector<std::int64_t> tokens;
  std::string dtype = "bf16";
  std::string kv_dtype;
  int tp = 1;
  std::string json;
};

struct Line {
  const Model* model;
  std::int64_t tokens;
  harness::ActivationBytes bytes;
  std::int64_t kv_token_bytes;
  [[nodiscard]] std::int64_t kv_tokens() const { return bytes.saved() / kv_token_bytes; }
};

// No context is as long; and the bytes of no preset's token reach 2^31, so that sums stay far from
// 2^63.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
// The study says that engines take 256 or 512 tokens for a chunk, and draws 512.
constexpr std::int64_t kChunk = 512;
constexpr const char* kSequenceModels[] = {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"};

Table line_table(const std::vector<Line>& lines) {
  Table table;
  table.column("model", Align::kLeft);
  for (const char* title :
       {"tokens", "unfused", "fused", "saved", "bytes/KV token", "more KV tokens"}) {
    table.column(title, Align::kRight);
  }
  for (const Line& line : lines) {
    table.row({line.model->name, std::to_string(line.tokens),
               human_bytes(static_cast<double>(line.bytes.unfused)),
               human_bytes(static_cast<double>(line.bytes.fused)),
               human_bytes(static_cast<double>(line.bytes.saved())),
               std::to_string(line.kv_token_bytes), std::to_string(line.kv_tokens())});
  }
  return table;
}

ordered_json line_json(const Line& line, const MemoryArguments& args) {
  return {{"model", line.model->name},
          {"d", line.model->d},
          {"h", line.model->h},
          {"layers", line.model->layers},
          {"kv_heads", line.model->kv_heads},
          {"head_size", line.model->head_size},
          {"dtype", args.dtype},
          {"kv_dtype", args.kv_dtype},
          {"tp", args.tp},
          {"tokens", line.tokens},
          {"unfused_bytes", line.bytes.unfused},
          {"fused_bytes", line.bytes.fused},
          {"saved_bytes", line.bytes.saved()},
          {"kv_token_bytes", line.kv_token_bytes},
          {"kv_tokens", line.kv_tokens()}};
}

// The models asked for, or all of them; those that --tp does not fit are an error if asked for by
// name and left out otherwise.
Expected<std::vector<const Model*>> chosen_models(const MemoryArguments& args) {
  std::vector<const Model*> chosen;
  for (const std::string& name : args.models) {
    const auto found = harness::find_model(name);
    if (!found) return found.error();
    for (const Model& model : harness::models()) {
      if (model.name == found->name) chosen.push_back(&model);
    }
  }
  const bool named = !chosen.empty();
  if (!named) {
    for (const Model& model : harness::models()) chosen.push_back(&model);
  }
  std::vector<const Model*> fitting;
  for (const Model* model : chosen) {
    if (std::find(model->tp.begin(), model->tp.end(), args.tp) != model->tp.end()) {
      fitting.push_back(model);
    } else if (named) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tp: got %d, wanted one that fits %s (see `sluice list models`)", args.tp,
                        model->name.c_str());
    }
  }
  if (fitting.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "tp: got %d, which fits no model", args.tp);
  }
  return fitting;
}

int memory(MemoryArguments args, const Context& context) {
  if (args.kv_dtype.empty()) args.kv_dtype = args.dtype;
  const auto dtype = parse_dtype(args.dtype);
  if (!dtype) return fail(dtype.error());
  const auto kv_dtype = parse_dtype(args.kv_dtype);
  if (!kv_dtype) return fail(kv_dtype.error());
  const auto chosen = chosen_models(args);
  if (!chosen) return fail(chosen.error());

  const auto line = [&](const Model& model, std::int64_t tokens) {
    return Line{&model, tokens, harness::activation_bytes(model, tokens, *dtype, args.tp),
                model.kv_token_bytes(*kv_dtype, args.tp)};
  };
  std::vector<Line> chunk;
  std::vector<Line> sequence;
  if (!args.tokens.empty()) {
    for (const Model* model : *chosen) {
      for (const std::int64_t tokens : args.tokens) chunk.push_back(line(*model, tokens));
    }
  } else {
    for (const Model* model : *chosen) chunk.push_back(line(*model, kChunk));
    for (const Model* model : *chosen) {
      const bool wanted =
          !args.models.empty() || std::find(std::begin(kSequenceModels), std::end(kSequenceModels),
                                            model->name) != std::end(kSequenceModels);
      for (std::int64_t tokens = 1024; wanted && tokens <= 65536; tokens *= 2) {
        sequence.push_back(line(*model, tokens));
      }
    }
  }

  if (!args.json.empty()) {
    ordered_json records = ordered_json::array();
    for (const auto* lines : {&chunk, &sequence}) {
      for (const Line& l : *lines) records.push_back(line_json(l, args));
    }
    const harness::Meta meta =
        harness::make_meta(cpu_device(), harness::Ceilings{}, context.argc, context.argv);
    const Status written =
        harness::write_text(args.json, harness::results_text(meta, {{"memory", records}}));
    if (!written) return fail(written.error());
    if (args.json == "-") return kOk;
  }
  fmt::print(
      "Activations of one MLP on one GPU{}, {}; unfused: x [M,D], gate_up [M,2H], h [M,H], "
      "y [M,D]; fused: x, h, y; M = tokens x experts a token.\nA KV token: 2 x layers x KV heads x "
      "head size x {} "
      "bytes.\n\n",
      args.tp > 1 ? fmt::format(" of {}", args.tp) : "", args.dtype, size_bytes(*kv_dtype));
  if (args.tokens.empty()) fmt::print("Chunked prefill, {} tokens at a time\n", kChunk);
  line_table(chunk).print();
  if (!sequence.empty()) {
    fmt::print("\nWhole sequences\n");
    line_table(sequence).print();
  }
  return kOk;
}

}  // namespace

void add_memory(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "memory", "Activation bytes, unfused and fused, and the KV-cache tokens they are worth");
  const auto args = std::make_shared<MemoryArguments>();
  verb->add_option("--model", args->models, "Model presets; all where not given")->delimiter(',');
  verb->add_option("--tokens", args->tokens,
                   "Chunk or sequence lengths; where not given, 512 and then 1k to 64k")
      ->delimiter(',')
      ->check(integer(1, kMostTokens));
  verb->add_option("--dtype", args->dtype, "Of activations: bf16, fp16, fp32 or fp64")
      ->capture_default_str();
  verb->add_option("--kv-dtype", args->kv_dtype, "Of the KV cache; as --dtype where not given");
  verb->add_option("--tp", args->tp, "Tensor-parallel size: GPUs that share H and the KV heads")
      ->check(at_least(1))
      ->capture_default_str();
  verb->add_option("--json", args->json, "Write JSON to this file, - for standard output")
      ->check(named());
  verb->callback([args, &context] { context.exit_code = memory(*args, context); });
}

}  // namespace sluice::cli
