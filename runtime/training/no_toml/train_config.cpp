// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/train_config.h>

namespace millrace::training {

TrainConfig parse_train_config(std::string_view, const std::string& name) {
  throw UnsupportedError(name + ": this build reads no TOML: configure with MILLRACE_TOML=ON (Debian package libtomlplusplus-dev)");
}

}  // namespace millrace::training
