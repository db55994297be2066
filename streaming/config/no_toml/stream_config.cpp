// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <millrace/tensor/error.h>

namespace millrace {

StreamConfig parse_stream_config(std::string_view, const std::string& name) {
  throw UnsupportedError(name + ": this build reads no TOML: configure with MILLRACE_TOML=ON (Debian package libtomlplusplus-dev)");
}

}  // namespace millrace
