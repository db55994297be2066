// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "model_flags.h"
#include "settings.h"

namespace millrace::app {

/// The models of a server beside its MODEL: --route NAME=MODEL on the command line, and tables [route.NAME] in the file of --settings, whose keys are the flags
/// of a model without their dashes: model, state, const, row, config, weights. On the command line stands `model` of a table, which counts first.
class Routes {
 public:
  /// The last call before `settings.add_to`; `settings` then prints the tables.
  void add_to(CLI::App& command, Settings& settings);
  /// By name, once `settings` were applied. UsageError for text that is no NAME=MODEL, and for a table without a model.
  std::map<std::string, const ModelFlags*> all() const;

 private:
  struct Route {
    Route() { flags.add_to(app); }
    CLI::App app;
    ModelFlags flags;
  };
  std::string text() const;

  std::vector<std::string> texts_;
  mutable std::map<std::string, Route> routes_;
};

}  // namespace millrace::app
