// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Text of TOML 1.0 in lines that `read_settings_file` reads, which have at most 1000 bytes.
namespace millrace::app {

/// A key, in quotes where a bare one cannot hold it. ArgumentError as `toml_string`.
std::string toml_key(std::string_view key);
/// A string in double quotes; a long one stands in several lines. ArgumentError for a text that is no UTF-8, which TOML cannot hold.
std::string toml_string(std::string_view text);
/// An array of values that are TOML; a long one has a line for each.
std::string toml_array(const std::vector<std::string>& values);

}  // namespace millrace::app
