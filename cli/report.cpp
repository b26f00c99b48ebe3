// SPDX-License-Identifier: Apache-2.0
// sluice report: hands results files to the Python package, which draws the page. The program
// holds no plotting of its own.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/cli.hpp"
#include "harness/results.hpp"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> results;
  std::string output = "report.html";
  std::string python = "python3";
};

// What to put on PYTHONPATH: <prefix>/share/sluice/python beside <prefix>/bin/sluice, in an install
// and in a build tree; in a wheel <prefix> is the package itself, and its parent is on the path.
fs::path package_folder() {
  std::error_code error;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  if (fs::exists(prefix / "__init__.py", error)) return prefix.parent_path();
  return prefix / "share" / "sluice" / "python";
}

// The environment with the package's folder before any other on PYTHONPATH.
std::vector<std::string> python_environment(const fs::path& folder) {
  std::vector<std::string> out;
  std::string path = "PYTHONPATH=" + folder.string();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "PYTHONPATH=", 11) == 0) {
      if ((*entry)[11] != '\0') path += std::string(":") + (*entry + 11);
    } else {
      out.emplace_back(*entry);
    }
  }
  out.push_back(path);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// The exit code of a program found on PATH; -1 where it cannot be started.
int run_program(std::vector<std::string> words, std::vector<std::string> environment) {
  pid_t child = 0;
  const auto argv = pointers(words);
  const auto envp = pointers(environment);
  if (posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), envp.data()) != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int report(const ReportArguments& args) {
  for (const std::string& path : args.results) {
    if (access(path.c_str(), R_OK) != 0) {
      return fail(kUsage, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    }
  }
  if (args.output == "-") return fail(kUsage, "report: -o: got -, wanted a file");
  if (const Status s = harness::check_writable(args.output, args.results); !s) {
    return fail(s.error());
  }
  const fs::path folder = package_folder();
  if (!fs::is_directory(folder / "sluice")) {
    return fail(kUnsupported,
                fmt::format("report: the Python package is not beside the program; looked in {}",
                            folder.lexically_normal().string()));
  }
  const auto environment = python_environment(folder);
  const int probe = run_program({args.python, "-c", "pass"}, environment);
  if (probe != 0) {
    return fail(kUnsupported,
                fmt::format("report: no Python: \"{}\" does not run; name one with --python or "
                            "SLUICE_PYTHON",
                            args.python));
  }
  const int plots = run_program(
      {args.python, "-c",
       "import importlib.util, sys; sys.exit(importlib.util.find_spec('matplotlib') is None)"},
      environment);
  if (plots != 0) {
    return fail(kUnsupported,
                fmt::format("report: {} has no matplotlib; install it there (pip install "
                            "matplotlib) or name another Python with --python or SLUICE_PYTHON",
                            args.python));
  }
  std::vector<std::string> words = {args.python, "-m", "sluice.report"};
  words.insert(words.end(), args.results.begin(), args.results.end());
  words.insert(words.end(), {"-o", args.output});
  const int code = run_program(words, environment);
  if (code == 0) return kOk;
  // The module tells on standard error what is wrong; 2 is its word for unusable input.
  return code == kUsage ? kUsage : fail(kCheckFailed, "report: sluice.report failed");
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "report", "Draw results files as one self-contained HTML page (needs Python and matplotlib)");
  const auto args = std::make_shared<ReportArguments>();
  verb->add_option("results", args->results, "Results files that `sluice bench --json` wrote")
      ->required();
  verb->add_option("-o,--output", args->output, "The page")->capture_default_str();
  verb->add_option("--python", args->python, "Python interpreter")
      ->envname("SLUICE_PYTHON")
      ->capture_default_str();
  verb->callback([args, &context] { context.exit_code = report(*args); });
}

}  // namespace sluice::cli
