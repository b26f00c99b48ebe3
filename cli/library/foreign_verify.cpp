// SPDX-License-Identifier: Apache-2.0
// libsluice_verify: `sluice verify --foreign` as a function, for kernels that live in the caller's
// process alone (sluice/foreign.h).
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <vector>

#include "cli/cli.hpp"
#include "harness/foreign.hpp"

namespace sluice::cli {
namespace {

// The struct's members are in Op's order.
static_assert(sizeof(sluice_foreign_functions) ==
              sizeof(std::size_t) + sizeof(harness::ForeignKernels::functions));
static_assert(offsetof(sluice_foreign_functions, column_sum) ==
              sizeof(std::size_t) + sizeof(void*) * static_cast<std::size_t>(Op::kColumnSum));

// What results keep as the command is the caller's, without the verb.
int verify_functions(std::span<const char* const> own, const harness::ForeignKernels& kernels) {
  std::vector<const char*> words(own.begin(), own.end());
  words.insert(words.begin() + 1, "verify");
  CLI::App app{"Foreign kernels against Sluice's fp64 oracle", words[0]};
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return std::string("sluice: ") + e.what() + "; --help says more\n";
  });
  Context context;
  context.argc = static_cast<int>(own.size());
  context.argv = own.data();
  context.foreign = &kernels;
  read_environment(context);
  app.fallthrough();
  app.add_flag("-q,--quiet", context.quiet, "No progress and no notes on standard error");
  add_verify(app, context);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  if (std::fflush(stdout) == 0) return context.exit_code;
  return fail(kUsage, "standard output: cannot be written");
}

}  // namespace
}  // namespace sluice::cli

extern "C" std::int32_t sluice_foreign_verify(std::int32_t argc, const char* const* argv,
                                              const sluice_foreign_functions* functions) {
  using namespace sluice::cli;  // NOLINT: the function has C linkage
  if (argc < 1 || argv == nullptr || functions == nullptr) {
    return fail(kUsage, "sluice_foreign_verify: got null or no argument");
  }
  if (functions->struct_size != sizeof(*functions)) {
    return fail(kUsage, "sluice_foreign_verify: struct_size is that of another version");
  }
  try {
    sluice::harness::ForeignKernels kernels;
    std::memcpy(kernels.functions.data(), &functions->gate_up, sizeof(kernels.functions));
    return verify_functions({argv, static_cast<std::size_t>(argc)}, kernels);
  } catch (const std::bad_alloc&) {
    return fail(kUnsupported, "out of memory");
  } catch (const std::exception& e) {
    return fail(kCheckFailed, e.what());
  }
}
