// SPDX-License-Identifier: Apache-2.0
// Runs an AOTInductor package that calls Sluice's operators, without Python:
//   aoti PACKAGE.pt2 .../sluice/lib/sluice_torch.so
// Prints y of five tokens, whose values run from -1 to 1.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: aoti PACKAGE.pt2 sluice_torch.so\n", stderr), 2;
  // Loading it registers torch.ops.sluice, which the package looks up by name.
  if (dlopen(argv[2], RTLD_NOW) == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const auto y = model.run({torch::linspace(-1, 1, 5 * 64).reshape({5, 64})}).at(0).contiguous();
  for (int64_t i = 0; i < y.numel(); ++i) std::printf("%.9g ", y.data_ptr<float>()[i]);
  std::puts("");
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
