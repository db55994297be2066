// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <bench/families.h>
#include <bench/frame_time.h>
#include <bench/gemm_pair.h>
#include <bench/library/python_peer.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {

void measure_silero(Context& context) {
  const std::string model = context.models + "/silero_vad_v6.onnx";
  const bool there = std::filesystem::exists(model);
  PythonPeer peer;
  if (there) peer = make_python_peer(context.python, "ONNX Runtime", {"onnx_frame", model, "1"});
  for (const auto& [rows, goal] : {std::pair(1, 1.0), std::pair(64, 1 / 0.3)}) {
    Row row;
    row.id = "silero";
    row.shape = "Silero VAD v6, " + std::to_string(rows) + " ready, time of one frame, 1 thread";
    row.peer_name = there ? peer.name : "ONNX Runtime";
    row.goal = goal;
    if (!there) {
      row.note = "not measured: no silero_vad_v6.onnx in the folder of --models";
      context.emit(std::move(row));
      continue;
    }
    try {
      emit_pair(context, row, frame_timer(model, {{"h", "hn"}, {"c", "cn"}}, rows), peer.timer, peer.note);
    } catch (const UnsupportedError& error) {
      row.note = std::string("not measured: ") + error.what();
      context.emit(std::move(row));
    }
  }
}

void measure_gemm(Context& context) {
  const GemmPair pair(64, 512, 2048);
  Row row;
  row.id = "gemm";
  row.shape = "64x512x2048 f32, 1 thread";
  row.peer_name = "oneDNN matmul";
  row.goal = 0.5;
  emit_pair(context, row, pair.ours(), pair.peer(), pair.note());
}

}  // namespace millrace::bench
