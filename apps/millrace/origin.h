// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace millrace::app {

/// The origin as a browser writes it (RFC 6454, section 6.2): scheme://host[:port] in small letters, without the port that http or https has anyway, or
/// `null`, which pages of files have. The server compares origins byte by byte. CLI::ValidationError for any other text, which no browser ever sends.
std::string browser_origin(const std::string& text);

}  // namespace millrace::app
