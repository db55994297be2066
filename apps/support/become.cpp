// SPDX-License-Identifier: Apache-2.0
#include <support/become.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include <millrace/tensor/error.h>

namespace millrace::app {

void become(const std::string& name, const std::vector<std::string>& words) {
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
  std::vector<char*> arguments{const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw IoError(program + ": cannot start: " + std::strerror(errno));
}

}  // namespace millrace::app
