// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <doctest/doctest.h>

#include <apps/process.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("a build without the part toml refuses --settings by name and prints settings all the same") {
  const ScratchFolder folder;
  const std::string file = (folder / "settings.toml").string();
  std::ofstream(file) << "max-sessions = 3\n";
  check_refused({"serve", "a.mr", "--port", "0", "--settings", file}, 1, {"--settings", file, "MILLRACE_TOML"});
  const Ended printed = millrace_command({"serve", "a.mr", "--port", "0", "--print-config"});
  CHECK(printed.code == 0);
  CHECK(printed.out.find("model=\"a.mr\"\n") != std::string::npos);
}
