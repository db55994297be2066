// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/spelled_cells.h>
#include <millrace/runtime/lowering/iteration_memory.h>
#include <millrace/runtime/lowering/keep_values.h>

namespace millrace::bench {
namespace {

void cell_row(Context& context, const SpelledCell& cell, std::int64_t hidden, std::int64_t batch, int threads) {
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
      for (const SpelledCell& cell : spelled_cells()) cell_row(context, cell, hidden, batch, threads);
  for (const int threads : context.threads)
    for (const auto& [hidden, batch] : shapes) kept_row(context, hidden, batch, threads);
}

}  // namespace millrace::bench
