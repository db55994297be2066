// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/file_plan.h>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/utf8.h>
#include <millrace/streaming/audio/wav.h>

namespace millrace {
namespace {

void plan_sound(const std::filesystem::path& path, const PortSpec& port, ClientPlan& plan) {
  const AudioFile file = read_wav(path.string());
  plan.bytes.assign(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  plan.unit_bytes = file.format.frame_bytes();
  plan.units_per_second = file.format.rate;
  InputRequest& request = plan.start.inputs[port.name];
  request.format = file.format.format;
  request.rate = file.format.rate;
  request.channels = file.format.channels;
  plan.start.segments = true;
}

void plan_rows(const std::filesystem::path& path, const PortSpec& port, ClientPlan& plan) {
  const Tensor rows = read_npy(path);
  if (rows.dtype() != port.dtype)
    throw DTypeError(
        fmt::format("{}: expected {} for input '{}', found {}", path.string(), name_of(port.dtype), port.name, name_of(rows.dtype())));
  if (rows.rank() != port.shape.rank() + 1 || rows.dims().erased(0) != port.shape)
    throw ShapeError(fmt::format("{}: expected rows of {} for input '{}', found {}", path.string(), port.shape.to_string(), port.name,
                                 rows.dims().to_string()));
  plan.bytes.assign(static_cast<const char*>(rows.raw()), rows.bytes());
  plan.unit_bytes = static_cast<std::size_t>(port.shape.elements()) * size_of(port.dtype);
  plan.start.inputs[port.name].dtype = port.dtype;
  plan.start.inputs[port.name].shape = port.shape;
}

}  // namespace

ClientPlan plan_file(const std::filesystem::path& path, const StartedMessage& server) {
  if (server.inputs.size() != 1)
    throw UnsupportedError(fmt::format("{}: expected a server with one live input, found {}", path.string(), server.inputs.size()));
  const PortSpec& port = server.inputs.front();
  ClientPlan plan;
  const std::string label = path.filename().string();
  if (label.size() <= 128 && is_utf8(label)) plan.start.session = label;
  plan.start.reply = ReplyFormat::binary;
  plan.input = port.name;
  const std::string ending = ending_of(path);
  if (port.audio && ending == ".wav")
    plan_sound(path, port, plan);
  else if (!port.audio && ending == ".npy")
    plan_rows(path, port, plan);
  else
    throw UnsupportedError(fmt::format("{}: expected {} for input '{}', found '{}'", path.string(),
                                       port.audio ? "a .wav file" : "a .npy file", port.name, ending));
  return plan;
}

}  // namespace millrace
