// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/segment_loop.h>

#include <utility>
#include <vector>

#include <millrace/runtime/autodiff/internal/clone_block.h>
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
  inner.attributes.set("max_trips", every);
  inner.attributes.set("segment", true);
  for (std::size_t i = 0; i < params.size(); ++i)
    program.block(outer).results.push_back(results[i] == params[i] ? inner.inputs[i] : inner.outputs[i]);
  program.append_raw(outer, std::move(inner));
  const VarId whole = constant(outer, Tensor::scalar<std::int64_t>(every), "every");
  const VarType truth(DType::boolean, DDim{});
  program.block(outer).params.push_back(program.add_var("more", truth, outer));
  program.block(outer).results.push_back(program.append(outer, Op{"equal", {count, whole}, {}, {}, {}}, {"more"}).at(0));

  const VarId begin = constant(block, Tensor::scalar(true), "more");
  Op begins = std::move(program.block(block).ops.back());
  program.block(block).ops.pop_back();
  Op runs{"while", loop.inputs, loop.outputs, {}, loop.label};
  runs.inputs.push_back(begin);
  runs.outputs.push_back(program.add_var("more", truth, block));
  runs.attributes = {{"sub_block", BlockId{outer}},
                     {"condition", static_cast<std::int64_t>(params.size())},
                     {"max_trips", std::int64_t{-1}},
                     {"parallel_iterations", std::int64_t{1}},
                     {"segment", true}};

  std::vector<Op>& ops = program.block(block).ops;
  ops[place] = runs;
  ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(place), std::move(begins));
  return runs;
}

}  // namespace millrace::autodiff
