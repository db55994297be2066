// SPDX-License-Identifier: Apache-2.0
// Programs with gradients on a device: their loops run as kernels, forwards and backwards, with the bits of the same loops iteration by iteration.
#include <millrace/runtime/autodiff/append_backward.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/training/clipping.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/sanitized.h>
#include <support/random_tensor.h>
#include <support/test_place.h>
#include <support/user_cells.h>
#include <support/with_gradients.h>

namespace millrace::testing {
namespace {

using build::Var;

/// The rows of a batch: [rows, C] with lengths, or [T, N, C].
struct Batch {
  std::vector<std::int64_t> lengths;
  bool dense = false;
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  DDim rows(std::int64_t width) const {
    if (dense) return DDim{lengths[0], sequences(), width};
    return DDim{std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), width};
  }
  VarType type(DType dtype, std::int64_t width) const {
    return dense ? VarType(dtype, {DDim::unknown, DDim::unknown, width}) : VarType(dtype, {DDim::unknown, width}, 1);
  }
  Value value(const Tensor& rows) const { return dense ? Value(rows) : Value(LoDTensor(rows, LoD::from_lengths({lengths}))); }
};

Batch drawn_batch(Random& random, bool dense) {
  Batch made{{}, dense};
  const std::int64_t longest = random.between(1, 7);
  for (std::int64_t i = random.between(1, 18); i > 0; --i) made.lengths.push_back(dense ? longest : random.between(0, 7));
  if (!dense) made.lengths[0] = longest;
  return made;
}

/// Fed weights, a fed gradient "dy" of the only output, and the gradients of everything that is fed.
Program with_backward(const Program& forward, const Batch& batch, const MemoryPolicy& memory = {}) {
  Program program = training::with_fed_weights(forward);
  const VarId y = program.outputs()[0].var;
  BackwardOptions options;
  options.memory = memory;
  for (const Program::Port& port : program.inputs()) options.with_respect_to.push_back(port.var);
  VarType rows = program.var(y).type;
  rows.lod_depth = 0;
  if (batch.dense) rows.shape = DDim{DDim::unknown, DDim::unknown, (*rows.shape)[2]};
  options.seed = program.add_input("dy", rows);
  with_gradients(program, y, options);
  return program;
}

Feeds feeds_of(Random& random, const Program& forward, const Program& program, const Batch& batch) {
  Feeds feeds;
  for (const auto& [name, weight] : training::weights_of(forward)) feeds[training::fed_name(name)] = Value(weight);
  for (const Program::Port& port : program.inputs()) {
    if (feeds.contains(port.name)) continue;
    const VarType& type = program.var(port.var).type;
    const std::int64_t width = (*type.shape)[type.rank() - 1];
    const bool rows = port.name == "x" || port.name == "dy";
    const Tensor drawn = random_tensor(random, rows ? batch.rows(width) : DDim{batch.sequences(), width});
    const Tensor value = type.dtype == DType::f32 ? drawn : cast(drawn, type.dtype, CpuDevice().stream(0));
    feeds[port.name] = port.name == "x" ? batch.value(value) : Value(value);
  }
  return feeds;
}

RunResult run_in(Backend backend, const Program& program, const Feeds& feeds, const std::shared_ptr<Device>& device) {
  ThreadExecutor executor(2);
  RunOptions options;
  options.backend = backend;
  return sync_wait(executor, run(Executable(program, device), feeds, options));
}

Tensor host_f32(const RunResult& result, const std::string& name) {
  const Tensor here = result.value(name).tensor().tensor().copy_to(CpuPlace{});
  return here.dtype() == DType::f32 ? here : cast(here, DType::f32, CpuDevice().stream(0));
}

bool same_bits(const RunResult& a, const RunResult& b, const std::string& name) {
  const Tensor one = host_f32(a, name), other = host_f32(b, name);
  return one.dims() == other.dims() && (one.bytes() == 0 || std::memcmp(one.raw(), other.raw(), one.bytes()) == 0);
}

/// The greatest difference, as a part of the greatest value.
double apart(const RunResult& a, const RunResult& b, const std::string& name) {
  const std::vector<float> one = host_f32(a, name).to_vector<float>(), other = host_f32(b, name).to_vector<float>();
  REQUIRE(one.size() == other.size());
  double most = 1e-3, worst = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(other[i])));
    worst = std::max(worst, std::abs(static_cast<double>(one[i]) - static_cast<double>(other[i])));
  }
  return worst / most;
}

/// Loops run as kernels of `fused` loops, with the bits of their iterations, and near to the host's results.
void check_loops(Random& random, const Program& forward, const Batch& batch, const std::shared_ptr<Device>& device, std::int64_t fused,
                 double tolerance) {
  const Program program = with_backward(forward, batch);
  const Feeds feeds = feeds_of(random, forward, program, batch);
  const RunResult expected = run_in(Backend::interpreted, program, feeds, device);
  const RunResult found = run_in(Backend::automatic, program, feeds, device);
  const RunResult on_host = run_in(Backend::interpreted, program, feeds, make_cpu_device());
  CHECK(expected.fused_loops == 0);
  CHECK(found.fused_loops == fused);
  for (const auto& [name, value] : expected.outputs()) {
    INFO(name);
    CHECK(same_bits(found, expected, name));
    CHECK(apart(found, on_host, name) <= tolerance);
  }
}

std::shared_ptr<Device> device_here(bool tf32 = false) { return make_device(Place::parse(test_place()), 1, 2, tf32); }

}  // namespace

TEST_CASE("the loops of cells and of their gradients have the same bits iteration by iteration and as generated kernels") {
  const std::shared_ptr<Device> device = device_here();
  for (const std::uint64_t seed : seeds(1)) {
    Random random(seed);
    for (std::size_t which = 0; which < user_cells().size(); ++which) {
      if (sanitized && which % 4 != 0) continue;  // each kernel takes seconds to compile with a sanitizer
      const UserCell& cell = user_cells()[which];
      const std::int64_t input = random.between(1, 7), hidden = 2 * random.between(1, 16);
      const bool dense = random.coin();
      const Batch batch = drawn_batch(random, dense);
      INFO(cell.name, ", seed ", seed, ", C ", input, ", H ", hidden, std::string(dense ? ", dense" : ", ragged"));
      Program forward;
      {
        const build::Guard guard(forward);
        UserCell::Built built = cell.build(random, input, hidden);
        const Var x = build::input("x", batch.type(DType::f32, input));
        // A dense loop whose first states may have any number of rows has no recurrence as its gradient.
        for (std::size_t i = 0; !dense && i < built.states.size(); ++i)
          built.states[i].initial = build::input("s" + std::to_string(i), VarType(DType::f32, {DDim::unknown, built.states[i].width}));
        build::output("y", layers::unroll(built.cell, {x}, built.states).output);
      }
      // The gradient of a layer norm is in no generated kernel.
      check_loops(random, forward, batch, device, cell.name == "layer norm lstm" ? 1 : 2, 1e-3);
    }
  }
}

TEST_CASE(
    "a loop of more steps than a launch has, and one that writes slots in another order than it reads them, have the same bits as "
    "generated kernels") {
  const std::shared_ptr<Device> device = device_here();
  Random random(1);
  constexpr std::int64_t hidden = 3;
  {
    const Batch batch{{300, 300}, true};
    Program forward;
    {
      const build::Guard guard(forward);
      const Var w = build::parameter("w", random_tensor(random, DDim{hidden, hidden}));
      const layers::Cell cell = [&](const Var& row, const std::vector<Var>& state) {
        const Var next = tanh(row + matmul(state[0], w));
        return layers::CellStep{next, {next}};
      };
      build::output("y", layers::unroll(cell, {build::input("x", batch.type(DType::f32, hidden))}, {{hidden}}).output);
    }
    check_loops(random, forward, batch, device, 2, 1e-3);
  }
  for (const bool reads_back : {false, true}) {
    INFO(std::string(reads_back ? "reads from the last slot on" : "writes from the last slot on"));
    Program program;
    {
      const build::Guard guard(program);
      const build::ArrayVar in = build::ArrayVar::unstack(build::input("x", VarType(DType::f32, {DDim::unknown, 2, hidden})));
      const Var w = build::parameter("w", random_tensor(random, DDim{hidden, hidden})), n = in.size(), last = n - 1;
      const build::ArrayVar out(n, "out"), states(n, "states");
      const Var boot = build::parameter("boot", random_tensor(random, DDim{2, hidden}));
      Var step = build::constant(0);
      {
        build::WhileLoop loop = build::while_loop({step});
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var back = last - step;
        const Var next = tanh(in.read(reads_back ? back : step) + matmul(states.read(step - 1, boot), w));
        states.write(step, next);
        out.write(reads_back ? step : back, next);
        step.update(step + 1);
      }
      build::output("y", out.stack());
    }
    Feeds feeds;
    feeds["x"] = Value(random_tensor(random, DDim{5, 2, hidden}));
    const RunResult expected = run_in(Backend::interpreted, program, feeds, device),
                    found = run_in(Backend::automatic, program, feeds, device);
    CHECK(found.fused_loops == 1);
    CHECK(same_bits(found, expected, "y"));
  }
}

TEST_CASE("a layer of LSTM cells learns in generated kernels, in f32 and with products of tf32") {
  for (const bool tf32 : {false, true}) {
    const std::shared_ptr<Device> device = device_here(tf32);
    for (const std::uint64_t seed : seeds(1)) {
      Random random(seed);
      for (const bool dense : {false, true}) {
        if (sanitized && (tf32 || !dense)) continue;
        const std::int64_t input = random.between(1, 7), hidden = random.between(1, 32);
        const Batch batch = drawn_batch(random, dense);
        INFO("seed ", seed, ", C ", input, ", H ", hidden, std::string(dense ? ", dense" : ", ragged"), std::string(tf32 ? ", tf32" : ""));
        Program forward;
        {
          const build::Guard guard(forward);
          layers::LstmWeights weights;
          weights.input = random_tensor(random, DDim{input, 4 * hidden});
          weights.recurrent = random_tensor(random, DDim{hidden, 4 * hidden});
          weights.bias = random_tensor(random, DDim{4 * hidden});
          build::output("y", layers::lstm({build::input("x", batch.type(DType::f32, input))}, {weights}).y);
        }
        check_loops(random, forward, batch, device, 2, tf32 ? 0.05 : 1e-3);
      }
    }
  }
}

TEST_CASE(
    "a recurrence that computes its runs of iterations again has the gradients that it has when it keeps them, and those of the host") {
  const std::shared_ptr<Device> device = device_here();
  Random random(3);
  for (const std::int64_t every : {0, 2, 100}) {
    for (const bool lstm : {true, false}) {
      if (sanitized && (!lstm || every != 2)) continue;
      INFO(std::string(lstm ? "lstm" : "gru"), ", runs of ", every);
      constexpr std::int64_t input = 3, hidden = 4;
      const Batch batch{{5, 0, 9, 1}, false};
      Program forward;
      {
        const build::Guard guard(forward);
        const Var x = build::input("x", batch.type(DType::f32, input));
        if (lstm) {
          layers::LstmWeights weights;
          weights.input = random_tensor(random, DDim{input, 4 * hidden});
          weights.recurrent = random_tensor(random, DDim{hidden, 4 * hidden});
          weights.bias = random_tensor(random, DDim{4 * hidden});
          build::output("y", layers::lstm({x}, {weights}).y);
        } else {
          const UserCell::Built built = user_cells()[0].build(random, input, hidden);
          build::output("y", layers::unroll(built.cell, {x}, built.states).output);
        }
      }
      const Program kept = with_backward(forward, batch), runs = with_backward(forward, batch, {MemoryPolicy::Kind::recompute, every});
      const Feeds feeds = feeds_of(random, forward, kept, batch);
      for (const Backend backend : {Backend::interpreted, Backend::automatic}) {
        const RunResult wanted = run_in(backend, kept, feeds, device), found = run_in(backend, runs, feeds, device);
        const RunResult on_host = run_in(Backend::interpreted, kept, feeds, make_cpu_device());
        for (const auto& [name, value] : wanted.outputs()) {
          INFO(name);
          CHECK(same_bits(found, wanted, name));
          CHECK(apart(found, on_host, name) <= 1e-3);
        }
      }
    }
  }
}

TEST_CASE("gradients that lie on the device have the norm that they have on the host, and are clipped to host memory") {
  Random random(5);
  const Tensor here = random_tensor(random, DDim{7, 5});
  const std::shared_ptr<Device> device = device_here();
  Tensor there(DType::f32, here.dims(), device->memory());
  copy(here, there, device->stream(0));
  there.ready().wait();
  training::Tensors on_host{{"w", here}}, on_device{{"w", there}};
  const double norm = training::global_norm(on_host);
  CHECK(training::global_norm(on_device) == norm);
  training::Clipping clipping;
  clipping.norm = norm / 2;
  CHECK(training::clip(on_device, clipping) == training::clip(on_host, clipping));
  CHECK(on_device.at("w").to_vector<float>() == on_host.at("w").to_vector<float>());
}

}  // namespace millrace::testing
