// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace sluice::tests {
namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

void direct(posix_spawn_file_actions_t& files, int descriptor, const char* to,
            const std::string& caught) {
  if (to != nullptr && to[0] == '\0') {
    posix_spawn_file_actions_addclose(&files, descriptor);
    return;
  }
  const char* const path = to != nullptr ? to : caught.c_str();
  posix_spawn_file_actions_addopen(&files, descriptor, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
}

}  // namespace

Outcome sluice(std::vector<std::string> arguments, const std::vector<std::string>& environment,
               const Streams& streams) {
  const char* program = std::getenv("SLUICE_TEST_PROGRAM");
  if (program == nullptr) throw std::runtime_error("SLUICE_TEST_PROGRAM is not set");
  arguments.insert(arguments.begin(), program);
  std::vector<std::string> words;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "SLUICE_", 7) != 0) words.emplace_back(*entry);
  }
  words.insert(words.end(), environment.begin(), environment.end());

  const Folder folder;
  const std::string out = folder.path("out");
  const std::string err = folder.path("err");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  direct(files, STDOUT_FILENO, streams.out, out);
  direct(files, STDERR_FILENO, streams.err, err);
  pid_t child = 0;
  const auto argv = pointers(arguments);
  const auto envp = pointers(words);
  const int started = posix_spawn(&child, program, &files, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&files);
  if (started != 0) throw std::runtime_error(std::string(program) + ": " + std::strerror(started));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error(std::strerror(errno));
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error(std::strerror(errno));
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::string Folder::write_program(const std::string& name, const std::string& content) const {
  write(name, content);
  std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
  return path(name);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace sluice::tests
