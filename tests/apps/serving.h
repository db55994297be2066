// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <apps/process.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/program/storage.h>
#include <streaming/live/live_model.h>

namespace millrace::testing {

/// A listing that is served.
struct Serving {
  static constexpr std::int64_t features = 3, hidden = 4;

  explicit Serving(std::vector<std::string> more = {}) : random(1), program(live_listing(random, features, hidden)) {
    save_program(program, folder / "listing.mr");
    std::vector<std::string> words{"serve", model(), "--port", "0", "--stats-json", (folder / "stats.json").string()};
    words.insert(words.end(), more.begin(), more.end());
    server.emplace(words);
    const std::string line = server->first_line();
    const std::string opening = "millrace: serving " + model() + " on 127.0.0.1:";
    REQUIRE(line.starts_with(opening));
    port = line.substr(opening.size());
  }
  std::string model() const { return (folder / "listing.mr").string(); }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  ScratchFolder folder;
  Random random;
  Program program;
  std::optional<Process> server;
  std::string port;
};

}  // namespace millrace::testing
