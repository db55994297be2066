// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/model.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/models/import/onnx.h>
#include <millrace/runtime/program/storage.h>

namespace millrace {

Program load_model(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry) {
  constexpr std::string_view opening = "millrace ";
  const std::string ending = ending_of(path);
  const bool stored = ending == ".mr" || (ending != ".onnx" && read_file_start(path, opening.size()).bytes == opening);
  if (stored) return load_program(path, std::move(registry));
  OnnxOptions options;
  options.registry = std::move(registry);
  return import_onnx(path, options);
}

}  // namespace millrace
