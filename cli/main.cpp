// SPDX-License-Identifier: Apache-2.0
// The program `sluice`: a verb a file; this one puts them together.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include "cli/cli.hpp"

namespace sluice::cli {
namespace {

int program(int argc, char** argv) {
  CLI::App app{
      "Sluice: the gated MLP block, y = (act(x Wg^T) * (x Wu^T)) Wd^T, fused.\n"
      "M tokens, D model width, H hidden width. A problem is written MxDxH[:token]...,\n"
      "such as 128x4096x14336:bf16:silu; `sluice list tokens` has all of them.\n"
      "Exit codes: 0 done, 1 a check failed, 2 usage, 3 unsupported or no device.",
      "sluice"};
  app.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.failure_message([](const CLI::App* failed, const CLI::Error& e) {
    // Without a verb CLI11 would only say that a subcommand is required.
    const bool no_verb = e.get_name() == "RequiredError" && failed->get_parent() == nullptr &&
                         failed->get_subcommands().empty();
    return "sluice: " +
           (no_verb ? "wanted a verb, such as info or explain" : std::string(e.what())) +
           "; --help says more\n";
  });
  Context context;
  context.argc = argc;
  context.argv = argv;
  read_environment(context);
  app.add_flag("-q,--quiet", context.quiet, "No progress and no notes on standard error");
  add_info(app, context);
  add_list(app, context);
  add_explain(app, context);
  add_verify(app, context);
  add_bench(app, context);
  add_tune(app, context);
  add_memory(app, context);
  add_pack(app, context);
  add_report(app, context);
  // Nor would it name the word that is none.
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == argv[1]; })
          .empty()) {
    return fail(kUsage, std::string("no verb \"") + argv[1] + "\"; sluice --help lists them");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  return context.exit_code;
}

// Opens what of 0, 1, 2 the caller left closed, so that no file of ours gets their number and their
// text. Standard output fails at its first write; what is told on standard error is lost.
void open_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(file, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free: `file`.
    [[maybe_unused]] const int opened =
        open("/dev/null", file == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
  }
}

// The verb's exit code, unless what it printed did not arrive.
int finish(int code) {
  if (code != kOk && !std::cout.good()) return code;  // told already
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  const int told = fail(kUsage, std::string("standard output: cannot be written") +
                                    (errno == 0 ? "" : std::string(": ") + std::strerror(errno)));
  return code == kOk ? told : code;
}

// fmt throws where standard output cannot be written; nothing may throw while that is told.
int guarded_program(int argc, char** argv) {
  try {
    return program(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("sluice: out of memory\n", stderr);
    return kUnsupported;
  } catch (const std::exception& e) {
    if (std::ferror(stdout) != 0) return kOk;  // finish() tells it
    std::fprintf(stderr, "sluice: %s\n", e.what());
    return kCheckFailed;
  }
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  sluice::cli::open_standard_files();
  // Ignored by who started it, as some supervisors do, it would hide how a program here ended.
  std::signal(SIGCHLD, SIG_DFL);
  return sluice::cli::finish(sluice::cli::guarded_program(argc, argv));
}
