// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/python_peer.h>
#include <bench/live_trials.h>
#include <bench/on_core.h>
#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

constexpr const char* config = R"([audio]
input = "input"
rate = 16000
window = 512
context = 64
[state]
h = "hn"
c = "cn"
)";

/// Seconds of one call of ONNX Runtime for one frame, on one core, without any socket; and its name, or why there is none.
struct FrameCall {
  std::string name = "ONNX Runtime, one call a frame";
  std::optional<double> seconds;
  std::string note;
};
FrameCall measure_frame_call(const Context& context) {
  FrameCall call;
  const OnCore core(0);
  const PythonPeer peer = make_python_peer(context.python, "ONNX Runtime", {"onnx_frame", context.models + "/silero_vad_v6.onnx", "1"});
  call.name = peer.name;
  call.note = peer.note;
  if (!peer.timer) return call;
  std::vector<double> seconds(9);
  for (double& each : seconds) each = peer.timer(context.quick ? 0.01 : 0.2);
  call.seconds = median(seconds);
  return call;
}

/// The rows of one size of chunk: streams against those that the peer's calls alone would allow a core, then what a reply costs.
void chunk_rows(Context& context, std::int64_t windows, double goal) {
  const std::string shape = fmt::format("live Silero, {} ms chunks", 32 * windows);
  Row row;
  row.id = "C5";
  row.shape = shape + ": streams a core, p99 lag < 32 ms";
  row.unit = Unit::streams;
  row.goal = goal;
  row.peer_name = FrameCall().name;
  std::optional<Trial> held;
  try {
    const std::string model = context.models + "/silero_vad_v6.onnx";
    if (!std::filesystem::exists(model)) throw IoError("no silero_vad_v6.onnx in the folder of --models");
    const app::ScratchFolder scratch("millrace-bench");
    const std::string toml = scratch / "silero.toml";
    write_file(toml, config);
    LiveLoad load;
    load.served = {model, "--config", toml};
    load.crowd.noise = Noise::s16;
    load.crowd.step_elements = 512;
    load.crowd.steps = windows;
    load.crowd.step_seconds = 0.032;
    load.most_p99_ms = 32;
    const auto [streams, trial] = Trials(context, load).bisect();
    held = trial;
    const FrameCall call = measure_frame_call(context);
    row.peer_name = call.name;
    if (call.seconds) row.peer = 0.032 / *call.seconds;
    row.ours = static_cast<double>(streams);
    row.note = lags_of(trial.saw);
    if (!call.note.empty()) row.note += "; " + call.note;
  } catch (const Error& error) {
    row.note = std::string("not measured: ") + error.what();
  }
  context.emit(std::move(row));
  if (held) emit_costs(context, "C5", shape, *held);
}

}  // namespace

void measure_live(Context& context) {
  chunk_rows(context, 1, 5);
  chunk_rows(context, 3, 10);
}

}  // namespace millrace::bench
