// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include <millrace/runtime/program/program.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/tensor/device.h>

namespace millrace::app {

/// The flags that say which model, and how it is fed.
struct ModelFlags {
  std::string path;
  std::vector<std::string> states;
  std::vector<std::string> constants;
  std::string config;

  void add_to(CLI::App& command);
};

/// A model with what goes with it.
struct Model {
  Program program;
  StreamConfig config;                                      ///< of --config, else of the .toml beside the model, else empty
  std::vector<std::pair<std::string, std::string>> states;  ///< of --state, else of the config
  std::map<std::string, Tensor> constants;
};
Model load(const ModelFlags& flags);

/// "NAME=VALUE" at its first '='. UsageError names the flag.
std::pair<std::string, std::string> split_assignment(const std::string& flag, const std::string& text, char at = '=');

/// --place and --threads.
struct DeviceFlags {
  std::string place = "cpu";
  int threads = 1;

  void add_to(CLI::App& command);
  /// UsageError for text that is no place, UnsupportedError for a place that this build does not have.
  std::shared_ptr<Device> make() const;
};

}  // namespace millrace::app
