// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/onnx.h>

#include <limits>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/models/export/with_onnx/exporter.h>

namespace millrace {
namespace {

std::string bytes_of(const Program& program, bool plain_names, bool batched = false, bool initial = false) {
  const onnx::ModelProto model = exporting::Exporter(program, plain_names, batched, initial).run();
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
std::string format_onnx_batch(const Program& program) { return bytes_of(program, false, true); }
void write_onnx_batch(const std::filesystem::path& path, const Program& program) { write_file(path, format_onnx_batch(program)); }
std::string format_onnx_step(const Recurrence& recurrence) { return bytes_of(recurrence.step, true); }
std::string format_onnx_boundary(const Recurrence& recurrence, const Recurrence::Boundary& at) {
  Program program = at.program;
  for (const auto& [state, value] : at.constants) {
    const std::string& name = recurrence.states.at(state).name;
    program.add_output("next " + name, program.add_parameter(name, value));
  }
  return bytes_of(program, true);
}
std::string format_onnx_start(const Recurrence& recurrence) { return bytes_of(recurrence.start, true, false, true); }
void write_onnx_step(const std::filesystem::path& path, const Recurrence& recurrence) { write_file(path, format_onnx_step(recurrence)); }

}  // namespace millrace
