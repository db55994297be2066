// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/program/program.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/tensor/device.h>

namespace millrace::app {

/// The flags that say which model, and how it is fed.
struct ModelFlags {
  std::string path;
  std::vector<std::string> states;
  std::vector<std::string> constants;
  std::vector<std::string> rows;
  std::string config;
  std::string weights;

  void add_to(CLI::App& command);
  /// The files, for errors.
  std::string source() const;
};

/// A model with what goes with it.
struct Model {
  Program program;
  StreamConfig config;                                      ///< of --config, else of the .toml beside the model, else empty
  std::vector<std::pair<std::string, std::string>> states;  ///< of --state, else of the config
  std::map<std::string, Tensor> constants;
  std::map<std::string, DDim> rows;             ///< of --row
  std::map<std::string, Tensor> defaults = {};  ///< of states that have an initializer in the file
};
Model load(const ModelFlags& flags);

/// The model as it is fed step by step.
std::shared_ptr<const ServedModel> served(const Model& model);

/// "NAME=VALUE" at its first '='. UsageError names the flag.
std::pair<std::string, std::string> split_assignment(const std::string& flag, const std::string& text, char at = '=');

/// A check for a flag: a number from `least` to `most`. (CLI::Range takes a NaN.)
/// The same for a number of bytes, behind CLI::AsSizeValue.
std::function<std::string(const std::string&)> bytes_above_zero();
std::function<std::string(const std::string&)> within(double least, double most);

/// --place, --threads, --streams, --memory-limit, --tf32 and --backend.
struct DeviceFlags {
  std::string place = "cpu";
  int threads = 1;
  int streams = 4;
  std::uint64_t memory_limit = 0;  ///< bytes; 0: none
  bool tf32 = false;
  std::string backend = "auto";

  void add_to(CLI::App& command);
  void add_place(CLI::App& command);
  void add_backend(CLI::App& command);
  /// For a command that runs no model: any of the four is a UsageError that says `why`.
  static void refuse_in(CLI::App& command, const std::string& why);
  /// UsageError.
  Place parsed_place(int rank = 0) const;
  /// `backend` as a run takes it. A backend that was named must be had by every loop.
  Backend chosen_backend() const;
  bool backend_required() const { return chosen_backend() == Backend::captured || chosen_backend() == Backend::fused; }
  /// UsageError for text that is no place, for more than one, and for --tf32 on the CPU; PlaceError for a place that this build or this machine does not have.
  std::shared_ptr<Device> make() const;
  /// The device of a rank: ranks take the places of the list in turn.
  std::shared_ptr<Device> make_for(int rank) const;
  /// All places of the list, a device each.
  std::vector<std::shared_ptr<Device>> make_all() const;
  std::vector<std::string> places() const;
  /// --place, and whether f32 is multiplied as tf32 there, for people.
  std::string where() const;
};

}  // namespace millrace::app
