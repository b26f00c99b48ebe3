// SPDX-License-Identifier: Apache-2.0
// sluice report as a process. The page itself is tested with the Python package; here is what the
// program does to get there, with stand-ins for Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "process.hpp"

namespace sluice::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Report, MissingResultsAreTwo) {
  const Outcome report = sluice({"report", "/nowhere.json"});
  EXPECT_EQ(report.code, 2);
  EXPECT_EQ(report.err, "sluice: /nowhere.json: cannot be read: No such file or directory\n");
  EXPECT_EQ(sluice({"report"}).code, 2);
}

TEST(Report, NoPythonIsThree) {
  const Folder folder;
  const std::string file = folder.write("a.json", "{}");
  const Outcome option = sluice({"report", file, "--python", "/no/python"});
  EXPECT_EQ(option.code, 3);
  EXPECT_THAT(option.err, StartsWith("sluice: report: no Python: \"/no/python\" does not run"));
  const Outcome environment = sluice({"report", file}, {"SLUICE_PYTHON=/no/other"});
  EXPECT_EQ(environment.code, 3);
  EXPECT_THAT(environment.err, HasSubstr("/no/other"));
}

// As some supervisors leave it: who waits for a child would be told of none.
TEST(Report, RunsWhereTheSignalOfChildrenIsIgnored) {
  const Folder folder;
  const std::string file = folder.write("a.json", "{}");
  const std::string python = folder.write_program("python", "#!/bin/sh\nexit 0\n");
  const std::string command = "trap '' CHLD; exec " +
                              std::string(std::getenv("SLUICE_TEST_PROGRAM")) + " report " + file +
                              " --python " + python;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Report, NoMatplotlibIsThree) {
  const Folder folder;
  const std::string file = folder.write("a.json", "{}");
  const std::string python = folder.write_program(
      "python", "#!/bin/sh\ncase \"$2\" in *matplotlib*) exit 1;; esac\nexit 0\n");
  const Outcome report = sluice({"report", file, "--python", python});
  EXPECT_EQ(report.code, 3);
  EXPECT_THAT(report.err, HasSubstr("has no matplotlib"));
}

TEST(Report, RunsThePackageBesideTheProgram) {
  const Folder folder;
  const std::string a = folder.write("a.json", "{}");
  const std::string b = folder.write("b.json", "{}");
  const std::string python =
      folder.write_program("python",
                           "#!/bin/sh\n[ \"$1\" = -m ] && echo \"$@ PYTHONPATH=$PYTHONPATH\"\n"
                           "[ \"$1\" = -m ] && ls \"${PYTHONPATH%%:*}/sluice\" >&2\nexit 0\n");
  const Outcome report =
      sluice({"report", a, b, "-o", "page.html", "--python", python}, {"PYTHONPATH=/mine"});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, StartsWith("-m sluice.report " + a + " " + b + " -o page.html "));
  EXPECT_THAT(report.out, HasSubstr("/share/sluice/python:/mine"));
  EXPECT_THAT(report.err, HasSubstr("__init__.py"));
}

TEST(Report, AFailedPageIsOneAndBadInputTwo) {
  const Folder folder;
  const std::string file = folder.write("a.json", "{}");
  for (const int code : {1, 2}) {
    const std::string python = folder.write_program(
        "python", "#!/bin/sh\n[ \"$1\" = -m ] && exit " + std::to_string(code) + "\nexit 0\n");
    EXPECT_EQ(sluice({"report", file, "--python", python}).code, code);
  }
}

}  // namespace
}  // namespace sluice::tests
