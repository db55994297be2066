// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <millrace/tensor/error.h>

#include "toml_text.h"

namespace millrace::app {
namespace {

/// MILLRACE_SERVE_MAX_SESSIONS for --max-sessions of serve.
std::string variable_of(const std::string& command, const std::string& flag) {
  std::string name = "MILLRACE_" + command + "_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// The names of an option in a file: its long flags, of which the first is printed, or, for a positional such as MODEL, its name in small letters.
std::vector<std::string> keys_of(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return option.get_lnames();
  std::string key = option.get_single_name();
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return {key};
}

/// Characters that are put in, taken out or changed between two words.
std::size_t edits_between(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char c : from) {
    std::size_t corner = row[0]++;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t changed = corner + (c == to[i] ? 0 : 1);
      corner = row[i + 1];
      row[i + 1] = std::min({corner + 1, row[i] + 1, changed});
    }
  }
  return row.back();
}

/// "; the nearest is WORD" for a word of `known` that resembles `found`, else nothing.
std::string nearest(std::string_view found, const std::vector<std::string>& known) {
  const auto distance = [&found](const std::string& word) { return edits_between(found, word); };
  const auto best = std::ranges::min_element(known, {}, distance);
  const bool near = best != known.end() && distance(*best) <= 1 + found.size() / 4;
  return near ? "; the nearest is " + *best : std::string();
}

/// Kubernetes gives each container variables of a Service by the Service's name: one that is called millrace-serve makes MILLRACE_SERVE_SERVICE_HOST,
/// MILLRACE_SERVE_SERVICE_PORT, MILLRACE_SERVE_PORT_80_TCP and others.
bool is_of_kubernetes(std::string_view rest) { return rest.starts_with("SERVICE_") || rest.starts_with("PORT_"); }

/// CLI::ValidationError for a variable of the environment that has the command's prefix and belongs to no flag: a mistyped name must not leave a limit or
/// a token out in silence.
void check_variables(const CLI::App& command, const std::map<std::string, CLI::Option*>& known) {
  const std::string prefix = variable_of(command.get_name(), "");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string_view(*entry).find('='));
    if (!name.starts_with(prefix) || known.contains(name) || is_of_kubernetes(std::string_view(name).substr(prefix.size()))) continue;
    std::vector<std::string> ends;
    for (const auto& [variable, option] : known) ends.push_back(variable.substr(prefix.size()));
    std::string near = nearest(name.substr(prefix.size()), ends);
    if (!near.empty()) near.insert(near.rfind(' ') + 1, prefix);
    throw CLI::ValidationError(name, "expected a flag of " + command.get_name() + " behind " + prefix + ", found none" + near);
  }
}

enum class Takes { boolean, integer, number, text };

Takes taken_by(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Takes::boolean;
  const std::string type = option.get_type_name();
  if (type.starts_with("UINT") || type.starts_with("INT")) return Takes::integer;
  return type.starts_with("FLOAT") ? Takes::number : Takes::text;
}

/// The error of a value that the option does not take; nothing for one that it takes. Texts fit numbers such as "2G". Integers fit texts because an older
/// --print-config left the quotes of admin = "9100" out.
std::optional<std::string> misfit(Takes takes, FileValue::Kind found) {
  using Kind = FileValue::Kind;
  const char* const names[] = {"a string", "an integer", "a number with a fraction", "true or false"};
  const bool fits = takes == Takes::boolean
                        ? found == Kind::boolean
                        : found == Kind::text || found == Kind::integer || (takes == Takes::number && found == Kind::number);
  if (fits) return std::nullopt;
  const char* const expected = takes == Takes::boolean   ? names[3]
                               : takes == Takes::integer ? names[1]
                               : takes == Takes::number  ? "a number"
                                                         : names[0];
  return fmt::format("expected {}, found {}", expected, names[static_cast<std::size_t>(found)]);
}

void give_to(CLI::Option& option, const std::vector<std::string>& values) {
  if (values.empty() || std::ranges::find(values, std::string()) != values.end())
    throw CLI::ValidationError(option.get_name(), "expected a value, found none");
  if (taken_by(option) == Takes::boolean)
    option.add_result(option.get_flag_value(option.get_single_name(), values[0]));
  else
    option.add_result(values);
  option.run_callback();
}

void give_to(CLI::Option& option, const FileSetting& setting) {
  std::vector<std::string> values;
  for (const FileValue& value : setting.values) {
    if (const auto why = misfit(taken_by(option), value.kind)) throw CLI::ValidationError(setting.key, *why);
    values.push_back(value.text);
  }
  if (setting.array && option.get_items_expected_max() <= 1) throw CLI::ValidationError(setting.key, "expected one value, found an array");
  give_to(option, values);
}

/// Options of a command by the keys that a file may have.
std::map<std::string, CLI::Option*> options_by_key(CLI::App& command) {
  std::map<std::string, CLI::Option*> options;
  for (CLI::Option* option : command.get_options())
    if (option->get_configurable())
      for (const std::string& key : keys_of(*option)) options.emplace(key, option);
  return options;
}

/// Gives settings of a file to the options of `command` that have no value yet. CLI::ConfigError of one line: `FILE:LINE: `, `where`, and, for a key of
/// no option, `expected`.
void give_all(CLI::App& command, const std::vector<FileSetting>& settings, const std::string& where, const std::string& expected) {
  const std::map<std::string, CLI::Option*> options = options_by_key(command);
  std::map<const CLI::Option*, std::string> given;
  for (const FileSetting& setting : settings) {
    const auto fail = [&](const std::string& what) { throw CLI::ConfigError(setting.place + ": " + where + what); };
    const auto found = options.find(setting.key);
    if (found == options.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, option] : options) keys.push_back(key);
      fail("expected " + expected + ", found " + setting.key + nearest(setting.key, keys));
    }
    CLI::Option& option = *found->second;
    const auto [before, first] = given.emplace(&option, setting.key);
    if (!first) fail("expected one name of a flag, found " + before->second + " and " + setting.key);
    if (option.count() > 0) continue;
    try {
      give_to(option, setting);
    } catch (const CLI::ParseError& error) {
      fail(error.what());
    }
  }
}

/// "model, state or row": the keys of a command's options, in their order.
std::string keys_in_words(const CLI::App& command) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : command.get_options())
    if (option->get_configurable()) keys.push_back(keys_of(*option)[0]);
  std::string words;
  for (std::size_t i = 0; i < keys.size(); ++i) words += (i == 0 ? "" : i + 1 == keys.size() ? " or " : ", ") + keys[i];
  return words;
}

/// A value of an option as TOML: numbers as such, where TOML has them so.
std::string printed(Takes takes, const std::string& text) {
  const char* const end = text.data() + text.size();
  if (takes == Takes::integer && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return text;
  if (takes == Takes::number) {
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return fmt::format("{}", value);
  }
  return toml_string(text);
}

/// `key=value` of an option; nothing for one without a value.
std::string line_of(const CLI::Option& option) {
  const std::string key = keys_of(option)[0];
  const Takes takes = taken_by(option);
  if (takes == Takes::boolean) return fmt::format("{}={}\n", key, option.count() > 0 && option.as<bool>());
  std::vector<std::string> values = option.reduced_results();
  if (values.empty() && !option.get_default_str().empty()) values.push_back(option.get_default_str());
  for (std::string& value : values) value = printed(takes, value);
  if (values.empty()) return {};
  return fmt::format("{}={}\n", key, option.get_items_expected_max() > 1 ? toml_array(values) : values[0]);
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
  std::map<std::string, CLI::Option*> options;
  for (CLI::Option* option : command_->get_options())
    for (const std::string& key : keys_of(*option)) options.emplace(variable_of(command_->get_name(), key), option);
  check_variables(*command_, options);
  std::map<const CLI::Option*, std::string> given;
  for (const auto& [name, option] : options) {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) continue;
    const auto refuse = [&variable = name](const std::string& why) { throw CLI::ValidationError(variable, why); };
    if (!option->get_configurable()) refuse("expected " + option->get_name() + " on the command line, found it in the environment");
    if (*value == '\0') refuse("expected a value, found none");  // a flag, too: an empty word is no yes
    const auto [before, first] = given.emplace(option, name);
    if (!first) refuse("expected one variable of a flag, found " + before->second + ", too");
    if (option->count() > 0) continue;
    try {
      give_to(*option, std::vector<std::string>{value});
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
  }
}

void Settings::apply_file() {
  if (file_.empty()) return;
  SettingsFile file;
  try {
    file = read_settings_file(file_, kind_);
  } catch (const ParseError& error) {
    throw CLI::ConfigError(error.what());
  } catch (const IoError& error) {
    throw CLI::ConfigError(std::string("--settings: ") + error.what());
  }
  give_all(*command_, file.settings, "", "a flag of " + command_->get_name());
  for (const FileTable& table : file.tables) {
    CLI::App& options = options_of_(table.name);
    give_all(options, table.settings, fmt::format("[{}.{}]: ", kind_, table.name), keys_in_words(options));
  }
}

void Settings::take_tables(std::string kind, std::function<CLI::App&(const std::string& name)> options_of,
                           std::function<std::string()> text) {
  kind_ = std::move(kind);
  options_of_ = std::move(options_of);
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
  std::string text;
  for (const CLI::Option* option : command.get_options())
    if (option->get_configurable() && keys_of(*option)[0] != without) text += line_of(*option);
  return text;
}

}  // namespace millrace::app
