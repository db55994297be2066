// SPDX-License-Identifier: Apache-2.0
// G7: a layer over ragged sequences, beside the dense steps that 64 slots would need, and beside PyTorch's three ways.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <bench/library/python_peer.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>

namespace millrace::bench {
namespace {

constexpr std::int64_t slots = 64;

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string made;
  for (const std::int64_t number : numbers) made += (made.empty() ? "" : ",") + std::to_string(number);
  return made;
}

/// The fastest of padded, of sorted and padded by 64, and of packed.
PythonPeer best_of_pytorch(Context& context, const std::vector<std::int64_t>& lengths, std::int64_t hidden) {
  PythonPeer best;
  double least = 0;
  for (const char* form : {"padded", "sorted", "packed"}) {
    PythonPeer one =
        make_python_peer(context.python, std::string("PyTorch nn.LSTM, ") + form,
                         {"torch_cuda_ragged", std::to_string(context.gpu->index()), std::to_string(hidden), "f16", joined(lengths), form});
    if (!one.timer) {
      if (!best.timer) best = std::move(one);
      continue;
    }
    const double seconds = one.timer(context.effort.seconds);
    if (best.timer && seconds >= least) continue;
    least = seconds;
    best = std::move(one);
  }
  return best;
}

void ragged_row(Context& context, const std::vector<std::int64_t>& lengths, std::int64_t hidden) {
  const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  GpuLstm problem = make_gpu_lstm(*context.gpu, rows, 1, hidden, DType::f16);
  const LoDTensor x(problem.x.reshape(DDim{rows, hidden}), LoD::from_lengths({lengths}));
  const OurProgram ours(lstm_program(problem, false), {{"x", Value(x)}}, context.gpu->device());
  Row row;
  row.id = "G7";
  row.shape = fmt::format("{} sequences of {} rows, the longest {}, H{} f16", lengths.size(), rows, longest, hidden);
  row.note = backend_of(ours.run_once());
  const std::int64_t steps = context.quick ? 16 : 256;
  const GpuLstm even = make_gpu_lstm(*context.gpu, steps, slots, hidden, DType::f16);
  const Timer step = a_step(OurProgram(lstm_program(even), feeds_of(even), context.gpu->device()).timer(), steps);
  const double needed = 1.1 * std::max(static_cast<double>(longest), static_cast<double>(rows) / slots);
  row.peer_name = fmt::format("1.1 x the dense steps of B{} that they need", slots);
  row.goal = 1;
  emit_pair(context, row, ours.timer(), [step, needed](double seconds) { return step(seconds) * needed; }, "");
  const PythonPeer peer = best_of_pytorch(context, lengths, hidden);
  row.peer_name = peer.name;
  row.goal = hidden <= 512 ? 5 : 2.5;
  emit_pair(context, row, ours.timer(), peer.timer, peer.note);
}

}  // namespace

void measure_ragged(Context& context) {
  const std::vector<std::int64_t> lengths = context.quick ? log_normal_lengths(16, 8, 0.6) : log_normal_lengths(512, 256, 0.6);
  for (const std::int64_t hidden : context.quick ? std::vector<std::int64_t>{32} : std::vector<std::int64_t>{256, 512, 1024})
    if (is_wanted(context, hidden, slots) || context.quick) ragged_row(context, lengths, hidden);
}

}  // namespace millrace::bench
