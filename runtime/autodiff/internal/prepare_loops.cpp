// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/prepare_loops.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <millrace/runtime/layers/spell_cells.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

bool is_cell(const Op& op) { return op.type == "lstm_cell" || op.type == "lstm_gates"; }

/// A cell that cannot be written out stays, and has the rule of its op.
void spell_active_cells(Program& program, const std::set<VarId>& active) {
  std::vector<VarId> cells;
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (is_cell(op) && (active.contains(op.outputs[0]) || active.contains(op.outputs[1]))) cells.push_back(op.outputs[0]);
  for (const VarId cell : cells) {
    Program made = program;
    try {
      layers::spell_cell(made, cell);
    } catch (const ProgramError&) {
      continue;
    }
    program = std::move(made);
  }
}

/// The same value in each iteration, and active.
bool is_invariant(const Program& program, const Op& op, int body, const std::set<VarId>& active) {
  const OpDef& def = program.registry().at(op.type);
  if (!def.pure || !def.prepare || op.inputs.empty() || op.outputs.empty()) return false;
  bool any = false;
  for (const VarId output : op.outputs) any = any || (active.contains(output) && program.var(output).type.is_tensor());
  return any && std::all_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) {
           return input == no_var || program.var(input).block != body || program.parameter(input) != nullptr;
         });
}

void hoist(Program& program, int body, const std::set<VarId>& active) {
  std::vector<Op>& ops = program.block(body).ops;
  const auto [block, place] = lowering::find_loop(program, body);
  std::vector<Op> moved;
  for (std::size_t i = 0; i < ops.size();) {
    if (!is_invariant(program, ops[i], body, active)) {
      ++i;
      continue;
    }
    for (const VarId output : ops[i].outputs) program.var(output).block = block;
    moved.push_back(std::move(ops[i]));
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(i));
  }
  std::vector<Op>& outer = program.block(block).ops;
  outer.insert(outer.begin() + static_cast<std::ptrdiff_t>(place), moved.begin(), moved.end());
}

}  // namespace

void prepare_loops(Program& program, const std::set<VarId>& active) {
  spell_active_cells(program, active);
  std::vector<int> bodies;
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type == "while") bodies.push_back(op.attributes.get<BlockId>("sub_block").index);
  // Inner loops first: an op may leave several loops.
  std::sort(bodies.rbegin(), bodies.rend());
  for (const int body : bodies) hoist(program, body, active);
}

}  // namespace millrace::autodiff
