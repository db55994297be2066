// SPDX-License-Identifier: Apache-2.0
#include <millrace/settings_file.h>

#include <millrace/tensor/error.h>

namespace millrace::app {

SettingsFile read_settings_file(const std::string& file, const std::string&) {
  throw UnsupportedError("--settings " + file +
                         ": this build reads no TOML: configure with MILLRACE_TOML=ON (Debian package libtomlplusplus-dev)");
}

}  // namespace millrace::app
