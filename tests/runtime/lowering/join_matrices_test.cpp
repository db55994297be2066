// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_matrices.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/linear_attention.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/tensor/copy.h>
#include <support/built.h>
#include <support/drive.h>
#include <support/random_lod.h>
#include <support/random_tensor.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;

std::ptrdiff_t count(const Program& program, const std::string& type) {
  const auto& ops = program.block(0).ops;
  return std::count_if(ops.begin(), ops.end(), [&](const Op& op) { return op.type == type; });
}

Program lowered(Program program) {
  lower_for_runs(program, CpuPlace{});
  return program;
}

Tensor contiguous(const Tensor& view) { return view.copy_to(CpuPlace{}); }

/// A layer of linear attention over inputs [T, N, ..], or [N, T, ..] where `turned`, or over ragged rows.
struct Layer {
  layers::LinearAttentionOptions options;
  std::int64_t keys = 1, values = 1, decays = 0, rates = 0;
  bool turned = false, known_sequences = true, boots = true;

  static Layer drawn(Random& random) {
    Layer made;
    made.options.heads = random.between(1, 3);
    made.options.query_heads = made.options.heads * random.between(1, 2);
    made.options.update = static_cast<layers::StateUpdate>(random.between(0, 3));
    made.keys = random.between(1, 6);
    made.values = random.between(1, 20);
    if (layers::reads_decay(made.options.update)) made.decays = made.options.heads * (random.between(0, 1) == 0 ? 1 : made.keys);
    if (layers::reads_rate(made.options.update)) made.rates = random.between(0, 1) == 0 ? 1 : made.options.heads;
    made.turned = random.between(0, 1) == 0;
    made.known_sequences = random.between(0, 1) == 0;
    made.boots = random.between(0, 1) == 0;
    return made;
  }
  std::vector<std::pair<std::string, std::int64_t>> inputs() const {
    std::vector<std::pair<std::string, std::int64_t>> all{
        {"q", options.query_heads * keys}, {"k", options.heads * keys}, {"v", options.heads * values}};
    if (decays > 0) all.emplace_back("g", decays);
    if (rates > 0) all.emplace_back("b", rates);
    return all;
  }
  std::int64_t states() const { return options.heads * keys * values; }

  Program program(bool dense, std::int64_t sequences) const {
    return built_program([&] {
      std::map<std::string, build::Var> in;
      const std::int64_t rows = known_sequences ? sequences : DDim::unknown;
      for (const auto& [name, width] : inputs()) {
        if (!dense)
          in[name] = build::input(name, VarType(DType::f32, {DDim::unknown, width}, 1));
        else if (turned)
          in[name] = build::transpose(build::input(name, VarType(DType::f32, {rows, DDim::unknown, width})), {1, 0, 2});
        else
          in[name] = build::input(name, VarType(DType::f32, {DDim::unknown, rows, width}));
      }
      const build::Var past = boots ? build::input("past", VarType(DType::f32, {dense ? rows : DDim::unknown, states()})) : build::Var();
      const layers::Unrolled made = layers::linear_attention({in["q"], in["k"], in["v"], in["g"], in["b"]}, options, past);
      build::output("y", dense && turned ? build::transpose(made.output, {1, 0, 2}) : made.output);
      build::output("last", made.last[0]);
    });
  }
};

}  // namespace

TEST_CASE("linear attention over dense inputs is one op, with the bits of its loop over ragged rows") {
  for (const std::uint64_t seed : seeds(24)) {
    INFO("seed ", seed);
    Random random(seed);
    const Layer layer = Layer::drawn(random);
    const std::int64_t steps = random.between(0, 7), sequences = random.between(1, 3);
    const Program dense = layer.program(true, sequences), ragged = layer.program(false, sequences);
    CHECK(count(lowered(dense), "matrix_recurrence") == 1);
    for (const char* gone : {"while", "tensor_array", "tensor_array_unstack", "tensor_array_stack", "tensor_array_read"})
      CHECK(count(lowered(dense), gone) == 0);
    // Zeros of a first state, and rows of an open number of sequences, ask a transposed input for its extents.
    CHECK(count(lowered(dense), "transpose") == (layer.turned && !(layer.boots && layer.known_sequences) ? 1 : 0));
    CHECK(count(lowered(ragged), "while") == 1);

    const LoD lod = LoD::from_lengths({Ints(static_cast<std::size_t>(sequences), steps)});
    Feeds feeds, rows;
    for (const auto& [name, width] : layer.inputs()) {
      const Tensor x = random_tensor(random, {sequences, steps, width});
      feeds[name] = layer.turned ? x : contiguous(x.permute({1, 0, 2}));
      rows[name] = LoDTensor(x.reshape(DDim{sequences * steps, width}), lod);
    }
    if (layer.boots) feeds["past"] = rows["past"] = random_tensor(random, {sequences, layer.states()});
    const RunResult found = run_fifo(run(dense, feeds)), wanted = run_fifo(run(ragged, rows));
    CHECK(bytes_of(found["last"].tensor()) == bytes_of(wanted["last"].tensor()));
    const Tensor y = wanted["y"].tensor().reshape(DDim{sequences, steps, layer.options.query_heads * layer.values});
    CHECK(bytes_of(contiguous(found["y"].tensor())) == bytes_of(contiguous(layer.turned ? y : y.permute({1, 0, 2}))));
  }
}

namespace {

using build::Var;

/// A cell over rows of a key of 4, a value of 3 and a query of 4, with one matrix of 4 by 3.
struct OwnCell {
  std::function<Var(const Var& key, const Var& value, const Var& state)> next = [](const Var& key, const Var& value, const Var& state) {
    return state + key * value;
  };
  std::function<Var(const Var& read)> output = [](const Var& read) { return read; };
  std::function<Var(const Var& x)> key = [](const Var& x) { return x; };
  bool reads_before = false;   ///< the query reads the state before the update
  std::int64_t sequences = 2;  ///< of the inputs of steps
  bool unused = false;         ///< one more input of steps, which the cell does not read

  Program program() const {
    return built_program([&] {
      const auto in = [](const char* name, std::int64_t width) {
        return build::input(name, VarType(DType::f32, {DDim::unknown, 2, width}));
      };
      const layers::RowsCell cell = [&](const std::vector<Var>& rows, const std::vector<Var>& states) {
        const Var state = build::reshape(states.at(0), {0, 1, 4, 3});
        const Var made = next(build::reshape(key(rows[0]), {0, 1, 4, 1}), build::reshape(rows[1], {0, 1, 1, 3}), state);
        const Var read = build::sum((reads_before ? state : made) * build::reshape(rows[2], {0, 1, 4, 1}), {2});
        return layers::CellStep{build::reshape(output(read), {0, -1}), {build::reshape(made, {0, 12})}};
      };
      std::vector<Var> inputs{in("k", 4), in("v", 3), in("q", 4)};
      if (unused) inputs.push_back(in("e", 4));
      const layers::Unrolled made = layers::unroll_together(cell, inputs, {{12, build::input("past", VarType(DType::f32, {2, 12}))}});
      build::output("y", made.output);
      build::output("last", made.last[0]);
    });
  }
};

Feeds own_feeds(Random& random, std::int64_t steps) {
  return {{"k", random_tensor(random, {steps, 2, 4})},
          {"v", random_tensor(random, {steps, 2, 3})},
          {"q", random_tensor(random, {steps, 2, 4})},
          {"past", random_tensor(random, {2, 12})}};
}

}  // namespace

TEST_CASE("functions of each element of one input, and of what is read, leave a loop of matrices") {
  Random random(5);
  OwnCell cell;
  cell.key = [](const Var& x) { return build::exp(x * 0.5f) - 1.0f; };
  cell.output = [](const Var& read) { return build::tanh(2.0f - read); };
  const Executable executable(cell.program());
  CHECK(count(executable.program(), "matrix_recurrence") == 1);
  CHECK(count(executable.program(), "while") == 0);
  const Feeds feeds = own_feeds(random, 6);
  const RunResult found = run_fifo(run(executable, feeds));
  RunOptions options;
  options.backend = Backend::interpreted;
  const RunResult wanted = run_fifo(run(executable, feeds, options));
  for (const char* name : {"y", "last"}) CHECK(bytes_of(found[name].tensor()) == bytes_of(wanted[name].tensor()));
}

TEST_CASE("a loop that needs its matrix for something else stays a loop") {
  const auto loops = [](const OwnCell& cell) { return count(lowered(cell.program()), "while"); };
  CHECK(loops(OwnCell()) == 0);
  OwnCell before;
  before.reads_before = true;
  CHECK(loops(before) == 1);
  OwnCell folds;
  folds.next = [](const Var& key, const Var& value, const Var& state) { return build::tanh(state) + key * value; };
  CHECK(loops(folds) == 1);
  OwnCell mixes;  // the key is no function of one element
  mixes.key = [](const Var& x) { return build::softmax(x, 1); };
  CHECK(loops(mixes) == 1);
  OwnCell other;  // whose steps the loop compares with those of the others
  other.unused = true;
  CHECK(loops(other) == 1);
  OwnCell sums;
  sums.output = [](const Var& read) { return build::sum(read, {2}); };
  CHECK(loops(sums) == 1);
}

/// A matrix for each of two states over rows of `sequences`.
Program two_states(std::int64_t sequences) {
  return built_program([&] {
    const auto in = [&](const char* name, std::int64_t width) {
      return build::input(name, VarType(DType::f32, {DDim::unknown, sequences, width}));
    };
    const Var k = in("k", 4), v = in("v", 3), q = in("q", 4), past = build::input("past", VarType(DType::f32, {2, 12}));
    build::StaticRNN rnn;
    Var memory;
    {
      const auto block = rnn.block();
      const Var key = rnn.step_input(k), value = rnn.step_input(v), query = rnn.step_input(q);
      memory = rnn.memory(past);
      const Var next = build::reshape(memory, {0, 1, 4, 3}) + build::reshape(key, {0, 1, 4, 1}) * build::reshape(value, {0, 1, 1, 3});
      rnn.output(build::reshape(build::sum(next * build::reshape(query, {0, 1, 4, 1}), {2}), {0, -1}));
      rnn.update_memory(memory, build::reshape(next, {0, 12}));
    }
    build::output("y", rnn.outputs()[0]);
    build::output("last", rnn.last(memory));
  });
}

TEST_CASE("several states over rows of one sequence have the bits of the loop") {
  Random random(9);
  CHECK(count(lowered(two_states(1)), "while") == 1);
  const Executable executable(two_states(DDim::unknown));
  CHECK(count(executable.program(), "matrix_recurrence") == 1);
  RunOptions options;
  options.backend = Backend::interpreted;
  Feeds feeds = own_feeds(random, 4);
  for (const char* name : {"k", "v", "q"}) feeds[name] = random_tensor(random, {4, 1, std::string(name) == "v" ? 3 : 4});
  const RunResult found = run_fifo(run(executable, feeds)), wanted = run_fifo(run(executable, feeds, options));
  for (const char* name : {"y", "last"}) CHECK(bytes_of(found[name].tensor()) == bytes_of(wanted[name].tensor()));
}

TEST_CASE("a run that asks for iterations has the loop of a matrix, with the bits of the op") {
  Random random(8);
  const Executable executable(OwnCell().program());
  const Feeds feeds = own_feeds(random, 5);
  const RunResult whole = run_fifo(run(executable, feeds));
  RunOptions options;
  options.keep_step_scopes = true;
  const RunResult kept = run_fifo(run(executable, feeds, options));
  for (const char* name : {"y", "last"}) CHECK(bytes_of(kept[name].tensor()) == bytes_of(whole[name].tensor()));
  CHECK(kept.iterations == 5);
  CHECK(whole.iterations == 0);
}
