// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/segment_loop.h>

#include <iterator>
#include <utility>
#include <vector>

#include <millrace/runtime/autodiff/internal/clone_block.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/lowering/internal/loop_place.h>

namespace millrace::autodiff {
namespace {

/// Counts the iterations of the loop whose body is `body`: one more carried var.
void add_count(Program& program, int body, Op& loop, VarId zero, VarId count) {
  const VarId param = program.add_var("iteration", VarType(DType::i64, DDim{}), body);
  program.block(body).params.push_back(param);
  const VarId one = program.append(body, Op{"constant", {}, {}, {{"value", Tensor::scalar<std::int64_t>(1)}}, {}}).at(0);
  program.block(body).results.push_back(program.append(body, Op{"add", {param, one}, {}, {}, {}}).at(0));
  for (Op& op : program.block(body).ops)
    if (op.type == "break_if") op.inputs.push_back(param);
  loop.inputs.push_back(zero);
  loop.outputs.push_back(count);
}

/// Ends the loop whose body is `body` before the iteration in which its last carried var is `limit`.
void stop_at(Program& program, int body, VarId limit) {
  std::vector<Op> ops = std::move(program.block(body).ops);
  program.block(body).ops.clear();
  const std::vector<VarId> params = program.block(body).params;
  const VarId full = program.append(body, Op{"equal", {params.back(), limit}, {}, {}, {}}, {"full"}).at(0);
  Op stop{"break_if", {full}, {}, {}, {}};
  stop.inputs.insert(stop.inputs.end(), params.begin(), params.end());
  program.append(body, std::move(stop));
  for (Op& op : ops) program.append_raw(body, std::move(op));
}

}  // namespace

Op segment_loop(Program& program, int body, std::int64_t every, std::set<VarId>& active) {
  const auto [block, found] = lowering::find_loop(program, body);
  std::size_t place = found;
  const Op loop = program.block(block).ops[place];
  const int outer = program.add_block(block);
  const auto copy = [&](VarId var, int to) {
    const VarDef def = program.var(var);
    const VarId made = program.add_var(def.name, def.type, to);
    if (active.contains(var)) active.insert(made);
    return made;
  };
  const auto constant = [&](int at, const Tensor& value, const char* name) {
    return program.append(at, Op{"constant", {}, {}, {{"value", value}}, {}}, {name}).at(0);
  };
  Op inner{"while", {}, {}, loop.attributes, loop.label};
  const std::vector<VarId> params = program.block(body).params;
  const std::vector<VarId> results = program.block(body).results;
  for (const VarId param : params) inner.inputs.push_back(copy(param, outer));
  program.block(outer).params = inner.inputs;
  for (const VarId param : params) inner.outputs.push_back(copy(param, outer));
  const int run = clone_body(program, body, outer, active);
  const VarId zero = constant(outer, Tensor::scalar<std::int64_t>(0), "zero");
  const VarId count = program.add_var("iterations", VarType(DType::i64, DDim{}), outer);
  add_count(program, run, inner, zero, count);
  inner.attributes.set("sub_block", BlockId{run});
  inner.attributes.set("segment", true);
  for (std::size_t i = 0; i < params.size(); ++i)
    program.block(outer).results.push_back(results[i] == params[i] ? inner.inputs[i] : inner.outputs[i]);
  // Runs of 1, 2, 3 … iterations are as many as the longest of them has: the square root of twice the number of all.
  const bool growing = every == 0;
  const std::int64_t most = loop.attributes.get_or<std::int64_t>("max_trips", -1);
  const VarType whole(DType::i64, DDim{}), truth(DType::boolean, DDim{});
  const VarId limit = growing ? program.add_var("limit", whole, outer) : constant(outer, Tensor::scalar<std::int64_t>(every), "every");
  const VarId left = most < 0 ? no_var : program.add_var("trips_left", whole, outer);
  // The trip limit is one of all runs together.
  VarId room = limit;
  if (left != no_var) room = program.append(outer, Op{"minimum", {limit, left}, {}, {}, {}}, {"room"}).at(0);
  if (growing || left != no_var) {
    stop_at(program, run, room);
    inner.attributes.set("max_trips", std::int64_t{-1});
  } else {
    inner.attributes.set("max_trips", every);
  }
  program.append_raw(outer, std::move(inner));
  program.block(outer).params.push_back(program.add_var("more", truth, outer));
  program.block(outer).results.push_back(program.append(outer, Op{"equal", {count, limit}, {}, {}, {}}, {"more"}).at(0));
  if (growing) {
    program.block(outer).params.push_back(limit);
    const VarId one = constant(outer, Tensor::scalar<std::int64_t>(1), "one");
    program.block(outer).results.push_back(program.append(outer, Op{"add", {limit, one}, {}, {}, {}}, {"limit"}).at(0));
  }
  if (left != no_var) {
    program.block(outer).params.push_back(left);
    program.block(outer).results.push_back(program.append(outer, Op{"sub", {left, count}, {}, {}, {}}, {"trips_left"}).at(0));
  }

  std::vector<Op> begins;
  const auto begin = [&](const Tensor& value, const char* name) {
    const VarId var = constant(block, value, name);
    begins.push_back(std::move(program.block(block).ops.back()));
    program.block(block).ops.pop_back();
    return var;
  };
  Op runs{"while", loop.inputs, loop.outputs, {}, loop.label};
  runs.inputs.push_back(begin(Tensor::scalar(true), "more"));
  runs.outputs.push_back(program.add_var("more", truth, block));
  if (growing) {
    runs.inputs.push_back(begin(Tensor::scalar<std::int64_t>(1), "limit"));
    runs.outputs.push_back(program.add_var("limit", whole, block));
  }
  if (left != no_var) {
    runs.inputs.push_back(begin(Tensor::scalar(most), "trips_left"));
    runs.outputs.push_back(program.add_var("trips_left", whole, block));
  }
  runs.attributes = {{"sub_block", BlockId{outer}},
                     {"condition", static_cast<std::int64_t>(params.size())},
                     {"max_trips", std::int64_t{-1}},
                     {"parallel_iterations", std::int64_t{1}},
                     {"segment", true}};
  copy_policy(loop, runs);

  std::vector<Op>& ops = program.block(block).ops;
  ops[place] = runs;
  ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(place), std::make_move_iterator(begins.begin()),
             std::make_move_iterator(begins.end()));
  return runs;
}

}  // namespace millrace::autodiff
