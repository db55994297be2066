// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/import/model.h>

#include <millrace/runtime/import/file.h>
#include <millrace/runtime/import/onnx.h>
#include <millrace/runtime/program/storage.h>

namespace millrace {

Program load_model(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry) {
  const std::filesystem::path ending = path.extension();
  const bool stored = ending == ".mr" || (ending != ".onnx" && read_file(path).starts_with("millrace "));
  if (stored) return load_program(path, std::move(registry));
  OnnxOptions options;
  options.registry = std::move(registry);
  return import_onnx(path, options);
}

}  // namespace millrace
