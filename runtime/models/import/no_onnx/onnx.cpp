// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <millrace/tensor/error.h>

namespace millrace {

Program import_onnx(const std::filesystem::path& path, const OnnxOptions&) { return parse_onnx({}, path.string()); }

Program parse_onnx(std::string_view, const std::string& name, const OnnxOptions&) {
  throw UnsupportedError(name + ": reading ONNX needs the part onnx, which this build was made without");
}

}  // namespace millrace
