// SPDX-License-Identifier: Apache-2.0
// Layers of an LSTM beside PyTorch's: one, a stack of four (G4), and one with its gradients (G6).
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <bench/library/python_peer.h>
#include <bench/library/train_problem.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace::bench {
namespace {

struct Shape {
  std::int64_t steps, rows, hidden;
  std::size_t layers = 1;
  DType dtype = DType::f16;
};

/// Its weights are its own: only its time is wanted.
PythonPeer peer_of(Context& context, const char* set_up, const Shape& shape) {
  return make_python_peer(context.python, "PyTorch nn.LSTM",
                          {set_up, std::to_string(context.gpu->index()), std::to_string(shape.steps), std::to_string(shape.rows),
                           std::to_string(shape.hidden), std::to_string(shape.layers), std::string(name_of(shape.dtype))});
}

Row row_of(const char* id, const Shape& shape, std::optional<double> goal) {
  Row row;
  row.id = id;
  row.shape = fmt::format("{} steps, {} layer{}, B{} H{} {}", shape.steps, shape.layers, shape.layers == 1 ? "" : "s", shape.rows,
                          shape.hidden, name_of(shape.dtype));
  row.goal = goal;
  return row;
}

OurProgram forward_of(Context& context, const Shape& shape) {
  const GpuLstm problem = make_gpu_lstm(*context.gpu, shape.steps, shape.rows, shape.hidden, shape.dtype, shape.layers);
  return OurProgram(lstm_program(problem), feeds_of(problem), context.gpu->device());
}

void layers_row(Context& context, const char* id, const Shape& shape, std::optional<double> goal) {
  const OurProgram ours = forward_of(context, shape);
  const PythonPeer peer = peer_of(context, "torch_cuda_layers", shape);
  Row row = row_of(id, shape, goal);
  row.peer_name = peer.name;
  row.note = backend_of(ours.run_once());
  emit_pair(context, row, ours.timer(), peer.timer, peer.note);
}

/// A stack beside one of its layers.
void stack_row(Context& context, const Shape& shape) {
  const OurProgram stack = forward_of(context, shape);
  Shape one = shape;
  one.layers = 1;
  const OurProgram layer = forward_of(context, one);
  Row row = row_of("G4", shape, 1 / 1.5);
  row.peer_name = "our layer";
  row.note = backend_of(stack.run_once());
  emit_pair(context, row, stack.timer(), layer.timer(), "");
}

double stack_goal(const Shape& shape) {
  if (shape.hidden <= 512 || (shape.hidden <= 768 && shape.rows <= 16)) return 15;
  return shape.hidden <= 768 || shape.rows <= 16 ? 10 : 5;
}

double training_goal(const Shape& shape) {
  if (shape.rows <= 16) return shape.hidden <= 512 ? 1.8 : shape.hidden <= 768 ? 1.5 : 1.2;
  if (shape.rows <= 64) return shape.hidden <= 512 ? 4 : shape.hidden <= 768 ? 2.5 : 1.8;
  return shape.hidden <= 512 ? 3 : 1.2;
}

/// Inputs x, dy and the weights; outputs y and the gradients of x, weights and bias.
OurProgram training_of(Context& context, const Shape& shape, std::shared_ptr<Device> device) {
  const GpuLstm problem = make_gpu_lstm(*context.gpu, shape.steps, shape.rows, shape.hidden, shape.dtype, shape.layers);
  const Program forward = lstm_program(problem);
  Program program = with_backward(forward, VarType(shape.dtype, {DDim::unknown, DDim::unknown, shape.hidden}));
  Feeds feeds = feeds_of(problem);
  feeds["dy"] = Value(problem.x);
  for (const auto& [name, weight] : training::weights_of(forward))
    feeds[training::fed_name(name)] = Value(on_device(weight, *context.gpu->device()));
  return OurProgram(std::move(program), std::move(feeds), std::move(device));
}

/// `tf32`: products of f32 as tf32, as PyTorch's LSTM has them unless it is told otherwise.
void training_row(Context& context, const Shape& shape, bool tf32) {
  CudaOptions options;
  options.index = context.gpu->index();
  options.tf32 = tf32;
  const OurProgram ours = training_of(context, shape, make_cuda_device(options));
  const PythonPeer peer = peer_of(context, "torch_cuda_backward", shape);
  Row row = row_of("G6", shape, training_goal(shape));
  row.shape = "forward and backward, " + row.shape + (tf32 ? ", products of tf32" : "");
  row.peer_name = peer.name;
  const RunResult result = ours.run_once();
  row.note = fmt::format("{}, {} of its 2 loops", backend_of(result), result.fused_loops);
  emit_pair(context, row, ours.timer(), peer.timer, peer.note);
}

/// f(width, rows, steps) for the widths and rows that are wanted.
template <class F>
void each_shape(const Context& context, const F& f) {
  if (context.quick) return f(32, 2, 16);
  for (const std::int64_t hidden : {256, 512, 768, 1024})
    for (const std::int64_t rows : {16, 64})
      if (is_wanted(context, hidden, rows)) f(hidden, rows, 1024);
}

}  // namespace

void measure_beside_pytorch(Context& context) {
  each_shape(context, [&](std::int64_t hidden, std::int64_t rows, std::int64_t steps) {
    for (const DType dtype : {DType::f16, DType::bf16}) layers_row(context, "torch", {steps, rows, hidden, 1, dtype}, std::nullopt);
  });
}

void measure_stack(Context& context) {
  each_shape(context, [&](std::int64_t hidden, std::int64_t rows, std::int64_t steps) {
    const Shape shape{steps, rows, hidden, 4, DType::f16};
    layers_row(context, "G4", shape, stack_goal(shape));
    if (hidden <= 512) stack_row(context, shape);
  });
}

void measure_training_layers(Context& context) {
  each_shape(context, [&](std::int64_t hidden, std::int64_t rows, std::int64_t steps) {
    for (const bool tf32 : {true, false}) training_row(context, {steps, rows, hidden, 1, DType::f32}, tf32);
  });
}

}  // namespace millrace::bench
