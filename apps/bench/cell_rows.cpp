// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/lowering/iteration_memory.h>
#include <millrace/runtime/lowering/keep_values.h>

namespace millrace::bench {
namespace {

using build::Var;
using layers::CellStep;

/// A cell that a user spelled out of ops. `gates` blocks of H columns are multiplied with x, and as many with h: its products are gates / 4
/// of an LSTM's.
struct UserCell {
  const char* name;
  int gates;
  std::size_t states;
  std::function<layers::Cell(std::int64_t hidden)> make;
};

Var weights(const std::string& name, std::int64_t from, std::int64_t to, std::uint64_t seed) {
  return build::parameter(name, random_tensor(DDim{from, to}, seed, 1 / std::sqrt(static_cast<float>(from))));
}
Var vector(const std::string& name, std::int64_t size, std::uint64_t seed) {
  return build::parameter(name, random_tensor(DDim{size}, seed, 0.1f));
}

/// c' and h' of the four blocks of `a`; `look` adds what a gate sees of the old or new c.
CellStep lstm_rest(const std::vector<Var>& a, const Var& c, const std::vector<Var>& peepholes = {}) {
  using namespace build;
  const bool looks = !peepholes.empty();
  const Var i = sigmoid(looks ? a[0] + peepholes[0] * c : a[0]), f = sigmoid(looks ? a[1] + peepholes[1] * c : a[1]);
  const Var next = f * c + i * tanh(a[2]);
  const Var o = sigmoid(looks ? a[3] + peepholes[2] * next : a[3]);
  const Var h = o * tanh(next);
  return {h, {h, next}};
}

layers::Cell spelled_lstm(std::int64_t h, bool peeps) {
  const Var w = weights("w", h, 4 * h, 1), r = weights("r", h, 4 * h, 2), b = vector("b", 4 * h, 3);
  std::vector<Var> p;
  if (peeps) p = {vector("p_i", h, 4), vector("p_f", h, 5), vector("p_o", h, 6)};
  return [=](const Var& x, const std::vector<Var>& s) {
    return lstm_rest(build::split((matmul(s[0], r) + b) + matmul(x, w), -1, {h, h, h, h}), s[1], p);
  };
}

layers::Cell layer_norm_lstm(std::int64_t h) {
  using namespace build;
  const Var w = weights("w", h, 4 * h, 1), r = weights("r", h, 4 * h, 2), b = vector("b", 4 * h, 3);
  const Var scale_x = vector("scale_x", 4 * h, 4), scale_h = vector("scale_h", 4 * h, 5), zero = vector("zero", 4 * h, 6);
  const Var scale_c = vector("scale_c", h, 7), bias_c = vector("bias_c", h, 8);
  return [=](const Var& x, const std::vector<Var>& s) {
    const Var sum = (layer_norm(matmul(s[0], r), scale_h, zero) + b) + layer_norm(matmul(x, w), scale_x, zero);
    const std::vector<Var> a = split(sum, -1, {h, h, h, h});
    const Var c = sigmoid(a[1]) * s[1] + sigmoid(a[0]) * tanh(a[2]);
    const Var next = sigmoid(a[3]) * tanh(layer_norm(c, scale_c, bias_c));
    return CellStep{next, {next, c}};
  };
}

layers::Cell gru(std::int64_t h, bool reset_after) {
  using namespace build;
  const Var w = weights("w", h, 3 * h, 1), b = vector("b", 3 * h, 2);
  const Var r = weights("r", h, 3 * h, 3), r_gates = weights("r_gates", h, 2 * h, 4), r_n = weights("r_n", h, h, 5);
  return [=](const Var& x, const std::vector<Var>& s) {
    const std::vector<Var> a = split(matmul(x, w) + b, -1, {h, h, h});
    const std::vector<Var> of_h = reset_after ? split(matmul(s[0], r), -1, {h, h, h}) : split(matmul(s[0], r_gates), -1, {h, h});
    const Var reset = sigmoid(of_h[0] + a[0]), z = sigmoid(of_h[1] + a[1]);
    const Var n = tanh(a[2] + (reset_after ? reset * of_h[2] : matmul(reset * s[0], r_n)));
    const Var next = z * s[0] + (1.0 - z) * n;
    return CellStep{next, {next}};
  };
}

layers::Cell minimal_gated_unit(std::int64_t h) {
  using namespace build;
  const Var w = weights("w", h, 2 * h, 1), b = vector("b", 2 * h, 2), u_f = weights("u_f", h, h, 3), u_h = weights("u_h", h, h, 4);
  return [=](const Var& x, const std::vector<Var>& s) {
    const std::vector<Var> a = split(matmul(x, w) + b, -1, {h, h});
    const Var f = sigmoid(matmul(s[0], u_f) + a[0]);
    const Var next = (1.0 - f) * s[0] + f * tanh(a[1] + matmul(f * s[0], u_h));
    return CellStep{next, {next}};
  };
}

const UserCell cells[] = {
    {"LSTM spelled out", 4, 2, [](std::int64_t h) { return spelled_lstm(h, false); }},
    {"peephole LSTM", 4, 2, [](std::int64_t h) { return spelled_lstm(h, true); }},
    {"layer-norm LSTM", 4, 2, layer_norm_lstm},
    {"GRU, reset after", 3, 1, [](std::int64_t h) { return gru(h, true); }},
    {"GRU, reset before", 3, 1, [](std::int64_t h) { return gru(h, false); }},
    {"minimal gated unit", 2, 1, minimal_gated_unit},
};

Program program_of(const UserCell& cell, std::int64_t hidden) {
  Program program;
  build::Guard guard(program);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, hidden}, 1));
  const std::vector<layers::CellState> states(cell.states, layers::CellState{hidden});
  build::output("y", layers::unroll(cell.make(hidden), {x}, states).output);
  return program;
}

void cell_row(Context& context, const UserCell& cell, std::int64_t hidden, std::int64_t batch, int threads) {
  constexpr std::int64_t steps = 64;
  const LstmProblem problem = make_problem(hidden, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
  const OurProgram ours(program_of(cell, hidden), feeds_of(problem), threads);
  const Timer built_in = OurProgram(lstm_program(problem), feeds_of(problem), threads).timer();
  const double share = cell.gates / 4.0;
  Row row;
  row.id = "C6";
  row.shape = fmt::format("{}, {} steps, B{} H{} f32, {}", cell.name, steps, batch, hidden, threads_text(threads));
  row.peer_name = cell.gates == 4 ? "our LSTM" : fmt::format("our LSTM x {}/4, its share of the products", cell.gates);
  row.goal = 1 / 1.15;
  emit_pair(context, row, ours.timer(), [built_in, share](double seconds) { return built_in(seconds) * share; }, "");
}

/// The built-in layer, and the same with all that a backward step reads in slabs of its own.
void kept_row(Context& context, std::int64_t hidden, std::int64_t batch, int threads) {
  constexpr std::int64_t steps = 64;
  const LstmProblem problem = make_problem(hidden, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
  Program keeping = lstm_program(problem);
  for (const Op& op : Block(keeping.block(0)).ops) {
    if (op.type != "while") continue;
    const int body = op.attributes.get<BlockId>("sub_block").index;
    const std::vector<std::string> names = values_to_keep(keeping, body, Keep::needed);
    for (const KeptValue& value : keep_values(keeping, body, names)) keeping.add_output("kept." + value.name, value.array);
  }
  const OurProgram ours(std::move(keeping), feeds_of(problem), threads);
  Row row;
  row.id = "C6";
  row.shape = fmt::format("LSTM keeping its iterations, {} steps, B{} H{} f32, {}", steps, batch, hidden, threads_text(threads));
  row.peer_name = "our LSTM";
  row.goal = 1 / 1.3;
  emit_pair(context, row, ours.timer(), OurProgram(lstm_program(problem), feeds_of(problem), threads).timer(), "");
}

}  // namespace

void measure_cells(Context& context) {
  using Shape = std::pair<std::int64_t, std::int64_t>;
  const std::vector<Shape> shapes = context.quick ? std::vector<Shape>{{64, 4}} : std::vector<Shape>{{128, 1}, {256, 16}, {512, 16}};
  for (const int threads : context.threads)
    for (const auto& [hidden, batch] : shapes)
      for (const UserCell& cell : cells) cell_row(context, cell, hidden, batch, threads);
  for (const int threads : context.threads)
    for (const auto& [hidden, batch] : shapes) kept_row(context, hidden, batch, threads);
}

}  // namespace millrace::bench
