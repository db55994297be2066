// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/onnx.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const Program& program) {
  throw UnsupportedError("program '" + program.title() + "': writing ONNX needs the part onnx, which this build was made without");
}

}  // namespace

std::string format_onnx(const Program& program) { refuse(program); }
void write_onnx(const std::filesystem::path&, const Program& program) { refuse(program); }
std::string format_onnx_batch(const Program& program) { refuse(program); }
void write_onnx_batch(const std::filesystem::path&, const Program& program) { refuse(program); }
std::string format_onnx_step(const Recurrence& recurrence) { refuse(recurrence.step); }
void write_onnx_step(const std::filesystem::path&, const Recurrence& recurrence) { refuse(recurrence.step); }
std::string format_onnx_boundary(const Recurrence& recurrence, const Recurrence::Boundary&) { refuse(recurrence.step); }
std::string format_onnx_start(const Recurrence& recurrence) { refuse(recurrence.start); }

}  // namespace millrace
