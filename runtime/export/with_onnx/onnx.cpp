// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/export/onnx.h>

#include <limits>

#include <millrace/runtime/export/with_onnx/exporter.h>
#include <millrace/runtime/import/file.h>

namespace millrace {
namespace {

std::string bytes_of(const Program& program, bool plain_names) {
  const onnx::ModelProto model = exporting::Exporter(program, plain_names).run();
  if (model.ByteSizeLong() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw UnsupportedError("program '" + program.title() + "': expected an ONNX model of at most 2 GiB, found " +
                           std::to_string(model.ByteSizeLong()) + " bytes");
  std::string bytes;
  if (!model.SerializeToString(&bytes))
    throw UnsupportedError("program '" + program.title() + "': cannot be an ONNX model: a name is no UTF-8");
  return bytes;
}

}  // namespace

std::string format_onnx(const Program& program) { return bytes_of(program, false); }
void write_onnx(const std::filesystem::path& path, const Program& program) { write_file(path, format_onnx(program)); }
std::string format_onnx_step(const Recurrence& recurrence) {
  if (recurrence.levels > 1)
    throw UnsupportedError("program '" + recurrence.step.title() +
                           "': expected one level of LoD, as a step alone does not say where inner " + "sequences open and close, found " +
                           std::to_string(recurrence.levels));
  return bytes_of(recurrence.step, true);
}
std::string format_onnx_start(const Recurrence& recurrence) { return bytes_of(recurrence.start, true); }
void write_onnx_step(const std::filesystem::path& path, const Recurrence& recurrence) { write_file(path, format_onnx_step(recurrence)); }

}  // namespace millrace
