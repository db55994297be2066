// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/train_config.h>

#include <millrace/runtime/files/file.h>

namespace millrace::training {

TrainConfig read_train_config(const std::filesystem::path& path) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 20;
  return parse_train_config(read_file(path, most_bytes), path.string());
}

}  // namespace millrace::training
