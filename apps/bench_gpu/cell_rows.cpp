// SPDX-License-Identifier: Apache-2.0
// G8: cells that users spell out of ops, as generated kernels.
#include <chrono>
#include <cstdlib>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <bench/library/python_peer.h>
#include <bench/library/spelled_cells.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>
#include <millrace/kernels/cell_sequence.h>
#include <millrace/runtime/loops/cuda_recurrent/cell_loop.h>
#include <millrace/runtime/loops/cuda_recurrent/device_cell.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

/// Rows of x are f32 and those of products bf16, as generated kernels of tensor cores have them.
constexpr DType products = DType::bf16;

const Op& loop_of(const Program& program) {
  for (const Op& op : program.block(0).ops)
    if (op.type == "while") return op;
  throw Error("bench: expected a program with a loop");
}

Feeds rows_of(GpuMachine& machine, std::int64_t steps, std::int64_t rows, std::int64_t hidden) {
  const Tensor there = on_device(random_tensor(DDim{steps * rows, hidden}, 1), *machine.device());
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(rows), steps);
  return {{"x", Value(LoDTensor(there, LoD::from_lengths({lengths})))}};
}

void cell_row(Context& context, const SpelledCell& cell, std::int64_t steps, std::int64_t rows, std::int64_t hidden) {
  GpuMachine& machine = *context.gpu;
  const Program program = program_of(cell, hidden, products);
  const OurProgram ours(program, rows_of(machine, steps, rows, hidden), machine.device());
  Row row;
  row.id = "G8";
  row.shape = fmt::format("a step of {}, {}, B{} H{}, products of bf16", steps, cell.name, rows, hidden);
  const std::string backend = backend_of(ours.run_once());
  const GpuLstm problem = make_gpu_lstm(machine, steps, rows, hidden, DType::bf16);
  const OurProgram built_in(lstm_program(problem), feeds_of(problem), machine.device());
  const CellPlan plan = CellLoop(program, 0, loop_of(program), false).plan();
  const double barrier = machine.cluster_barrier().value_or(machine.counter_barrier().value_or(0));
  const double exchanges = static_cast<double>(plan.stages - 1) * barrier, share = cell.gates / 4.0;
  row.peer_name = fmt::format("our LSTM in bf16 x {}/4, and {} exchanges", cell.gates, plan.stages - 1);
  row.goal = 1 / 1.15;
  row.note = backend + "; " + plan.to_string();
  const Timer lstm = a_step(built_in.timer(), steps), timer = a_step(ours.timer(), steps);
  emit_pair(context, row, timer, [lstm, exchanges, share](double seconds) { return lstm(seconds) * share + exchanges; }, "");
  if (cell.name != std::string("layer-norm LSTM")) return;
  for (const auto& [form, name, goal] :
       {std::tuple{"compiled", "torch.compile and a CUDA graph", hidden <= 512 ? 4.0 : 2.0}, std::tuple{"eager", "PyTorch, eager", 50.0}}) {
    constexpr std::int64_t steps_of_peer = 64;
    const PythonPeer peer = make_python_peer(context.python, name,
                                             {"torch_cuda_cell", std::to_string(machine.index()), std::to_string(steps_of_peer),
                                              std::to_string(rows), std::to_string(hidden), form});
    row.peer_name = peer.name;
    row.goal = goal;
    row.note = backend + "; the peer in f16, a step of 64";
    emit_pair(context, row, timer, a_step(peer.timer, steps_of_peer), peer.note);
  }
}

/// From a program to a kernel that can run, with and without code that was compiled before.
void compiled_rows(Context& context, const SpelledCell& cell, std::int64_t hidden) {
  const app::ScratchFolder folder("millrace-bench");
  const char* own = std::getenv("MILLRACE_CODE_CACHE");
  const std::string before = own == nullptr ? "" : own;
  ::setenv("MILLRACE_CODE_CACHE", (folder / "code").c_str(), 1);
  const Program program = program_of(cell, hidden, products);
  for (const auto& [what, most] : {std::pair{"compiled for the first time", 2.0}, {"compiled before", 0.02}}) {
    Row row;
    row.id = "G8";
    row.shape = fmt::format("{} H{}, {}", cell.name, hidden, what);
    row.peer_name = "goal";
    row.peer = most;
    row.goal = 1;
    const auto begin = std::chrono::steady_clock::now();
    const DeviceCell made({.program = &program, .op = &loop_of(program), .device = context.gpu->device()});
    row.ours = seconds_since(begin);
    context.emit(std::move(row));
  }
  own == nullptr ? ::unsetenv("MILLRACE_CODE_CACHE") : ::setenv("MILLRACE_CODE_CACHE", before.c_str(), 1);
}

}  // namespace

void measure_user_cells(Context& context) {
  using Shape = std::pair<std::int64_t, std::int64_t>;
  const std::vector<Shape> shapes = context.quick ? std::vector<Shape>{{32, 4}} : std::vector<Shape>{{256, 64}, {512, 64}, {1024, 64}};
  for (const SpelledCell& cell : spelled_cells()) compiled_rows(context, cell, shapes.front().first);
  for (const auto& [hidden, rows] : shapes) {
    if (!context.shapes.empty() && !context.shapes.contains({hidden, rows})) continue;
    for (const SpelledCell& cell : spelled_cells()) cell_row(context, cell, context.quick ? 16 : 1024, rows, hidden);
  }
}

}  // namespace millrace::bench
