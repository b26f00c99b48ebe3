// SPDX-License-Identifier: Apache-2.0
// Writes the seed corpora: sluice_fuzz_corpus FOLDER makes one folder for each fuzz target.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/format/safetensors_image.hpp"

namespace {

namespace fs = std::filesystem;
using namespace sluice::harness::format_test;

bool write(const fs::path& folder, const char* name, const std::string& bytes) {
  fs::create_directories(folder);
  std::ofstream file(folder / name, std::ios::binary);
  file << bytes << std::flush;
  return file.good();
}

// Header, NUL, data: what fuzz_image.hpp makes an image of.
std::string seed(const std::string& image) {
  std::size_t header_bytes = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    header_bytes |= static_cast<std::size_t>(static_cast<unsigned char>(image[i])) << (8 * i);
  }
  return image.substr(8, header_bytes) + '\0' + image.substr(8 + header_bytes);
}

TensorSet layer(bool merged) {
  TensorSet set;
  const std::string mlp = "model.layers.0.mlp.";
  set.add("model.embed_tokens.weight", {3, 2});
  if (merged) {
    set.add(mlp + "gate_up_proj.weight", {6, 2}).add(mlp + "gate_up_proj.bias", {6});
  } else {
    set.add(mlp + "gate_proj.weight", {3, 2}).add(mlp + "up_proj.weight", {3, 2});
  }
  set.add(mlp + "down_proj.weight", {2, 3});
  set.add("model.layers.0.post_attention_layernorm.weight", {2});
  return set;
}

// A layer in blocks of 18 bytes.
TensorSet blocks() {
  TensorSet set;
  const std::string mlp = "model.layers.0.mlp.";
  set.add("model.embed_tokens.weight", {3, 32});
  set.add_bytes(mlp + "gate_proj.weight", {32, 18}).add_bytes(mlp + "up_proj.weight", {32, 18});
  set.add_bytes(mlp + "down_proj.weight", {32, 18}).add(mlp + "down_proj.bias", {32});
  return set;
}

bool write_all(const fs::path& root) {
  const std::string settings =
      R"("__metadata__":{"hidden_act":"gelu","rms_norm_eps":"1e-6","name":"a/b"})";
  bool good = true;
  for (const char* target : {"safetensors", "checkpoint"}) {
    const fs::path folder = root / target;
    good &= write(folder, "empty", "{}");
    good &= write(folder, "raw", "r" + image("{}", ""));
    good &= write(folder, "types",
                  "{" + entry("a", "BF16", "[2,2]", 0, 8) + "," + entry("b", "F64", "[]", 8, 16) +
                      "," + entry("c", "F4", "[4,0]", 16, 16) + "}" + std::string(17, '\0'));
    good &= write(folder, "separate", seed(layer(false).bytes()));
    good &= write(folder, "merged", seed(layer(true).bytes(settings)));
    good &=
        write(folder, "packed",
              seed(layer(true).bytes(
                  R"("__metadata__":{"mlp_gate_up_block":"1","mlp_gate_up_order":"up_gate"})")));
    good &= write(folder, "blocks",
                  seed(blocks().bytes(R"("__metadata__":{"mlp_weight_blocks":"q4_0"})")));
  }
  const std::string problem =
      "\tmlp 16x64x96 bf16/bf16/bf16/bf16 silu threads=2 norm=0 flags=8 adds=0 blocks=0/0 align=16 "
      "layout=0123456789abcdef\tcpu.simd\tmlp=avx2\t82300 120 90100";
  good &=
      write(root / "tune", "lines", "cpu A\t-\t0.1.0" + problem + "\ncuda B\td\t0.1.0" + problem);
  good &= write(root / "tune", "raw", "rsluice tune 2\n");
  const fs::path index = root / "index";
  good &=
      write(index, "one", R"({"metadata":{"total_size":8},"weight_map":{"a":"b.safetensors"}})");
  good &= write(index, "escape", R"({"weight_map":{"a":"../b","c":"\u0000","d":"\\"}})");
  const fs::path results = root / "results";
  good &= write(results, "empty", R"({"meta":{},"columns":[],"rows":[]})");
  good &=
      write(results, "one", R"({"meta":{"device":"A","op":"mlp","m":1},"columns":[],"rows":[[]]})");
  good &= write(results, "rows",
                R"({"meta":{"device":"A","commit":"unknown","dirty":false,"read_tbps":4.2,"d":64},)"
                R"("columns":["m","us","baseline","ratio"],)"
                R"("rows":[[1,1.25,"cublaslt+act",1.5],[2,2e-3,null,null]]})");
  good &= write(results, "largest",
                R"({"meta":{},"columns":["us"],"rows":[[1.7976931348623157e308],[1]]})");
  good &=
      write(results, "words",
            R"({"meta":{},"columns":["m",{"baseline":["a","b"]}],"rows":[[1,0],[2,1],[3,null]]})");
  good &= write(results, "short", R"({"meta":{},"columns":["m","d"],"rows":[[1,2],[3]]})");
  const fs::path cases = root / "case";
  good &= write(cases, "plain", "128x4096x14336:bf16:silu");
  good &= write(cases, "norm", "3x16x24:fp16:add_norm(eps=1e-6,weight_offset=1):save:bias:concat");
  good &= write(cases, "grad", "3x16x24:mlp_grad:recompute:interleaved8+up_first:pad=3:seed=7");
  good &= write(cases, "blocks", "3x32x64:down:q4_0:residual:fill=special:align=2");
  const fs::path arguments = root / "arguments";
  good &= write(arguments, "case", "4x64x96\n--dtype\nfp16\n--threads\n3");
  good &= write(arguments, "model", "--model\nllama-3.1-8b\n--tokens\n1-3,8\n--tp\n2");
  good &= write(root / "abi", "plain", std::string("\4\77\0\137\0\0", 6));
  good &= write(root / "abi", "grad", std::string("\0\77\0\137\0\6\2\2\5\0\1\0\0\0", 14));
  good &= write(root / "abi", "pack", std::string("\10\7\0\0\0\0\3\6\3\0\4\0\0\0\0\0\0\0", 18));
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: sluice_fuzz_corpus FOLDER\n");
    return 2;
  }
  return write_all(argv[1]) ? 0 : 1;
}
