// SPDX-License-Identifier: Apache-2.0
#include <millrace/settings_file.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/files/with_toml/toml_table.h>
#include <millrace/tensor/error.h>

namespace millrace::app {
namespace {

constexpr std::size_t most_bytes = 1 << 20;

/// The file may be a pipe, as `--settings <(…)` makes one.
std::string text_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(most_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad()) throw IoError(file + ": cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > most_bytes) throw IoError(fmt::format("{}: expected at most {} bytes, found more", file, most_bytes));
  return text;
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  /// Keys with their values in the order of lines; toml++ has them in the order of letters.
  static std::vector<std::pair<std::string, const toml::node*>> in_order(const toml::table& table) {
    std::vector<std::pair<std::string, const toml::node*>> nodes;
    for (const auto& [key, node] : table) nodes.emplace_back(std::string(key.str()), &node);
    std::ranges::sort(nodes, {}, [](const auto& node) { return std::pair(node.second->source().begin.line, node.first); });
    return nodes;
  }
  FileSetting setting(const std::string& key, const toml::node& node) const {
    FileSetting made{key, place(node), node.is_array(), {}};
    if (const toml::array* const array = node.as_array())
      for (const toml::node& element : *array) made.values.push_back(value(key, element));
    else
      made.values.push_back(value(key, node));
    return made;
  }
  FileTable table(const std::string& kind, const std::string& name, const toml::node& node) const {
    if (!node.is_table()) fail(node, fmt::format("expected tables [{}.NAME], found {}.{}", kind, kind, name));
    FileTable made{name, {}};
    for (const auto& [key, below] : in_order(*node.as_table()))
      made.settings.push_back(below->is_table() ? FileSetting{"[" + key + "]", place(*below), false, {}} : setting(key, *below));
    return made;
  }
  std::string place(const toml::node& node) const { return fmt::format("{}:{}", file_, node.source().begin.line); }
  [[noreturn]] void fail(const toml::node& node, const std::string& what) const { throw ParseError(place(node) + ": " + what); }

 private:
  FileValue value(const std::string& key, const toml::node& node) const {
    using Kind = FileValue::Kind;
    if (const auto* const text = node.as_string()) {
      if (text->get().find('\0') != std::string::npos) fail(node, key + ": expected a text without a NUL, found one");
      return {Kind::text, text->get()};
    }
    if (const auto* const integer = node.as_integer()) return {Kind::integer, fmt::format("{}", integer->get())};
    if (const auto* const number = node.as_floating_point()) return {Kind::number, fmt::format("{}", number->get())};
    if (const auto* const boolean = node.as_boolean()) return {Kind::boolean, boolean->get() ? "true" : "false"};
    fail(node, key + ": expected a string, a number, true or false, found " + internal::TomlTable::kind(node));
  }

  const std::string& file_;
};

}  // namespace

SettingsFile read_settings_file(const std::string& file, const std::string& kind) {
  const Reader reader(file);
  return internal::read_toml(text_of(file), file, [&](const internal::TomlTable& whole) {
    SettingsFile made;
    for (const auto& [key, node] : Reader::in_order(whole.table())) {
      if (kind.empty() || key != kind) {
        made.settings.push_back(node->is_table() ? FileSetting{"[" + key + "]", reader.place(*node), false, {}}
                                                 : reader.setting(key, *node));
        continue;
      }
      if (!node->is_table()) reader.fail(*node, fmt::format("expected tables [{}.NAME], found {}", kind, internal::TomlTable::kind(*node)));
      for (const auto& [name, below] : Reader::in_order(*node->as_table())) made.tables.push_back(reader.table(kind, name, *below));
    }
    return made;
  });
}

}  // namespace millrace::app
