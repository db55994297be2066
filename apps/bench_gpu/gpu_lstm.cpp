// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/gpu_lstm.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>

namespace millrace::bench {
namespace {

Tensor narrow(const Tensor& of, DType dtype) {
  CpuDevice host;
  return cast(of, dtype, host.stream(0));
}

/// A prime number of random elements, again and again: a billion of them would take longer to draw than to measure with.
Tensor many(const DDim& dims, DType dtype) {
  constexpr std::int64_t drawn = 1'000'003;
  const Tensor few = narrow(random_tensor(DDim{std::min(drawn, dims.elements())}, 1), dtype);
  Tensor made(dtype, dims);
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  for (std::size_t at = 0; at < made.bytes(); at += few.bytes()) std::memcpy(to + at, few.raw(), std::min(few.bytes(), made.bytes() - at));
  made.storage()->mark_written();
  return made;
}

}  // namespace

GpuLstm make_gpu_lstm(GpuMachine& machine, std::int64_t steps, std::int64_t rows, std::int64_t hidden, DType dtype, std::size_t layers) {
  GpuLstm problem{steps, rows, hidden, layers, dtype, {}, {}};
  const float deviation = 1 / std::sqrt(static_cast<float>(hidden));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    layers::LstmWeights weights;
    weights.input = narrow(random_tensor(DDim{hidden, 4 * hidden}, 10 + layer, deviation), dtype);
    weights.recurrent = narrow(random_tensor(DDim{hidden, 4 * hidden}, 20 + layer, deviation), dtype);
    weights.bias = narrow(random_tensor(DDim{4 * hidden}, 30 + layer, 0.1f), dtype);
    problem.weights.push_back(std::move(weights));
  }
  problem.x = on_device(many(DDim{steps, rows, hidden}, dtype), *machine.device());
  return problem;
}

Program lstm_program(const GpuLstm& problem, bool dense) {
  Program program;
  build::Guard guard(program);
  const VarType type = dense ? VarType(problem.dtype, {DDim::unknown, DDim::unknown, problem.hidden})
                             : VarType(problem.dtype, {DDim::unknown, problem.hidden}, 1);
  const build::Var x = build::input("x", type);
  build::output("y", layers::lstm({x}, problem.weights).y);
  return program;
}

Feeds feeds_of(const GpuLstm& problem) { return {{"x", Value(problem.x)}}; }

bool is_wanted(const Context& context, std::int64_t hidden, std::int64_t rows) {
  return context.shapes.empty() || context.shapes.contains({hidden, rows});
}

Timer a_step(Timer whole, std::int64_t steps) {
  if (!whole) return whole;
  return [whole = std::move(whole), steps](double seconds) { return whole(seconds) / static_cast<double>(steps); };
}

Tensor last_step(const Tensor& y) { return y.rows(y.dim(0) - 1, y.dim(0)).copy_to(CpuPlace{}).reshape(DDim{y.dim(1), y.dim(2)}); }

double difference_of(const Tensor& a, const Tensor& b) { return difference(narrow(a, DType::f32), narrow(b, DType::f32)); }

}  // namespace millrace::bench
