// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <cctype>
#include <cstdlib>
#include <sstream>

#include <CLI/CLI.hpp>

namespace millrace::app {
namespace {

/// MILLRACE_SERVE_MAX_SESSIONS for --max-sessions of serve.
std::string variable_of(const std::string& command, const std::string& flag) {
  std::string name = "MILLRACE_" + command + "_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// The name of an option in a file: its flag, or, for a positional such as MODEL, its name in small letters.
std::string key_of(const CLI::Option& option) {
  std::string key = option.get_single_name();
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

std::string table_name(const CLI::ConfigItem& item) {
  std::string name;
  for (const std::string& part : item.parents) name += (name.empty() ? "[" : ".") + part;
  return name + "]";
}

void give_to(CLI::Option& option, const CLI::ConfigItem& item) {
  if (item.inputs.size() == 1 && item.inputs[0].empty()) throw CLI::ValidationError(option.get_name(), "expected a value, found none");
  if (option.get_items_expected_max() > 0) {
    option.add_result(item.inputs);
  } else {  // a flag
    const std::string value = CLI::ConfigTOML().to_flag(item);
    option.add_result(option.get_flag_value(option.get_single_name(), value));
  }
  option.run_callback();
}

}  // namespace

void Settings::add_to(CLI::App& command) {
  command_ = &command;
  command
      .add_option("--settings", file_,
                  "A TOML file: `a-flag = …` is --a-flag. MILLRACE_" + variable_of(command.get_name(), "A_FLAG").substr(9) +
                      " in the environment counts before it, and the command line before both")
      ->configurable(false);
  command.add_flag("--print-config", prints_, "Prints the settings that hold, as a file for --settings, and ends")->configurable(false);
  for (CLI::Option* option : command.get_options()) {
    if (!option->get_required()) continue;
    option->required(false);
    option->description(option->get_description() + " (required)");  // what a file or the environment may give is not CLI11's to miss
    required_.push_back(option);
  }
}

void Settings::apply_environment() {
  for (CLI::Option* option : command_->get_options()) {
    const std::string variable = variable_of(command_->get_name(), key_of(*option));
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    const auto refuse = [&variable](const std::string& why) { throw CLI::ValidationError(variable, why); };
    if (!option->get_configurable()) refuse("expected " + option->get_name() + " on the command line, found it in the environment");
    if (*value == '\0') refuse("expected a value, found none");  // a flag, too: an empty word is no yes
    if (option->count() > 0) continue;
    CLI::ConfigItem item;
    item.name = key_of(*option);
    item.inputs = {value};
    try {
      give_to(*option, item);
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
  }
}

void Settings::apply_file() {
  if (file_.empty()) return;
  const std::vector<CLI::ConfigItem> items = CLI::ConfigTOML().from_file(file_);
  for (const CLI::ConfigItem& item : items) {
    const bool begins = item.name == "++";
    if (item.name == "--" || (begins && item.parents == std::vector<std::string>{kind_})) continue;  // where tables end
    const bool in_table = take_table_ && item.parents.size() == 2 && item.parents[0] == kind_;
    if (in_table)
      take_table_(item.parents[1], item);
    else if (!item.parents.empty() || !give(*command_, item))
      throw CLI::ConfigError("--settings " + file_ + ": expected a flag of " + command_->get_name() + ", found " +
                             (begins ? table_name(item) : item.fullname()));
  }
}

bool Settings::give(CLI::App& command, const CLI::ConfigItem& item) {
  for (CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || key_of(*option) != item.name) continue;
    if (option->count() == 0) give_to(*option, item);
    return true;
  }
  return false;
}

void Settings::take_tables(std::string kind, std::function<void(const std::string& name, const CLI::ConfigItem& item)> take,
                           std::function<std::string()> text) {
  kind_ = std::move(kind);
  take_table_ = std::move(take);
  tables_ = std::move(text);
}

void Settings::apply() {
  apply_environment();
  apply_file();
  for (const CLI::Option* option : required_)
    if (option->count() == 0) throw CLI::RequiredError(option->get_name());
}

std::string Settings::text() const { return text_of(*command_) + (tables_ ? tables_() : std::string()); }

std::string Settings::text_of(const CLI::App& command, const std::string& without) {
  std::string kept;
  std::istringstream lines(command.config_to_str(true, false));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with("=\"\"")) continue;  // an option that has no value
    for (std::size_t i = 0; i < line.find('='); ++i) line[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(line[i])));
    if (line.substr(0, line.find('=')) != without) kept += line + "\n";
  }
  return kept;
}

}  // namespace millrace::app
