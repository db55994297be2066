// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace millrace::app {

/// A value of a settings file as a command line would give it: 0x10 is "16".
struct FileValue {
  enum class Kind { text, integer, number, boolean };
  Kind kind = Kind::text;
  std::string text;
};

/// `key = value`, or `key = [value, …]`.
struct FileSetting {
  std::string key;    ///< "[NAME]" of a table without a meaning
  std::string place;  ///< FILE:LINE
  bool array = false;
  std::vector<FileValue> values;
};

/// A table [KIND.NAME].
struct FileTable {
  std::string name;
  std::vector<FileSetting> settings;
};

/// Settings of a file in the order of their lines.
struct SettingsFile {
  std::vector<FileSetting> settings;
  std::vector<FileTable> tables;
};

/// Reads a file of TOML 1.0. Tables [KIND.NAME] have a meaning if `kind` is not empty. IoError for a file that cannot be read. ParseError of one line,
/// `FILE:LINE: …`, for text that is no TOML and for values that no flag takes: dates, arrays in arrays, tables in arrays, texts with a NUL.
/// UnsupportedError, which names --settings, in a build without the part toml.
SettingsFile read_settings_file(const std::string& file, const std::string& kind);

}  // namespace millrace::app
