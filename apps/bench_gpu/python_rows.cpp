// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bench/library/python_peer.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>

namespace millrace::bench {
namespace {

void beside_pytorch(Context& context, std::int64_t steps, std::int64_t rows, std::int64_t hidden, std::size_t layers, DType dtype) {
  const GpuLstm problem = make_gpu_lstm(*context.gpu, steps, rows, hidden, dtype, layers);
  const OurProgram ours(lstm_program(problem), feeds_of(problem), context.gpu->device());
  // Weights of its own: only its time is wanted.
  PythonPeer peer = make_python_peer(context.python, "PyTorch nn.LSTM",
                                     {"torch_cuda_layers", std::to_string(context.gpu->index()), std::to_string(steps),
                                      std::to_string(rows), std::to_string(hidden), std::to_string(layers), std::string(name_of(dtype))});
  Row row;
  row.id = "torch";
  row.shape = fmt::format("{} steps, {} layer{}, B{} H{} {}", steps, layers, layers == 1 ? "" : "s", rows, hidden, name_of(dtype));
  row.peer_name = peer.name;
  row.note = backend_of(ours.run_once());
  emit_pair(context, row, ours.timer(), peer.timer, peer.note);
}

}  // namespace

void measure_beside_pytorch(Context& context) {
  const std::vector<std::int64_t> widths = context.quick ? std::vector<std::int64_t>{32} : std::vector<std::int64_t>{256, 512, 1024};
  const std::vector<std::int64_t> batches = context.quick ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{16, 64};
  for (const std::int64_t hidden : widths)
    for (const std::int64_t rows : batches)
      for (const std::size_t layers : {std::size_t{1}, std::size_t{4}})
        for (const DType dtype : {DType::f16, DType::bf16}) beside_pytorch(context, context.quick ? 16 : 1024, rows, hidden, layers, dtype);
}

}  // namespace millrace::bench
