// SPDX-License-Identifier: Apache-2.0
#include "routes.h"

#include <set>

#include <fmt/format.h>
#include <millrace/streaming/live/served_route.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "toml_text.h"

namespace millrace::app {

void Routes::add_to(CLI::App& command, Settings& settings) {
  command
      .add_option("--route", texts_,
                  "NAME=MODEL: another model, for clients that name it in their start, or by the address /NAME. What else MODEL needs "
                  "stands in the "
                  ".toml beside it, or in a table [route.NAME] of --settings: the flags of a model")
      ->allow_extra_args(false)
      ->configurable(false);
  // A table without keys is a route without a model.
  settings.take_tables("route", [this](const std::string& name) -> CLI::App& { return routes_[name].app; }, [this] { return text(); });
}

std::map<std::string, const ModelFlags*> Routes::all() const {
  std::set<std::string> given;
  for (const std::string& text : texts_) {
    const auto [name, path] = split_assignment("--route", text);
    if (!given.insert(name).second) throw UsageError(fmt::format("--route: expected a name once, found '{}' twice", name));
    routes_[name].flags.path = path;
  }
  std::map<std::string, const ModelFlags*> found;
  for (const auto& [name, route] : routes_) {
    if (!is_route_name(name) || name == default_route)
      throw UsageError(
          fmt::format("--route: expected 1 to 64 characters of A-Z a-z 0-9 - _ as a model's name, and neither stream, now nor "
                      "{}, found '{}'",
                      default_route, name));
    if (route.flags.path.empty()) throw UsageError(fmt::format("[route.{}]: expected model = FILE, found none", name));
    found.emplace(name, &route.flags);
  }
  return found;
}

std::string Routes::text() const {
  std::string tables;
  for (const auto& [name, flags] : all())
    tables += fmt::format("\n[route.{}]\nmodel={}\n{}", toml_key(name), toml_string(flags->path),
                          Settings::text_of(routes_.at(name).app, "model"));
  return tables;
}

}  // namespace millrace::app
