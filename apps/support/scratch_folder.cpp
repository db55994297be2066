// SPDX-License-Identifier: Apache-2.0
#include <support/scratch_folder.h>

#include <unistd.h>

#include <millrace/tensor/error.h>

namespace millrace::app {

ScratchFolder::ScratchFolder(const std::string& program) {
  // mkdtemp wants six X at the end, and puts characters of its own in their place.
  std::string name = (std::filesystem::temp_directory_path() / (program + "." + std::string(6, 'X'))).string();
  if (::mkdtemp(name.data()) == nullptr) throw IoError(name + ": cannot make the folder");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace millrace::app
