// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/forward_loop.h>

#include <algorithm>
#include <string>
#include <utility>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/clone_block.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

/// Slots that are read from files before the backward loop comes to them.
constexpr std::int64_t slots_ahead = 8;

}  // namespace

ForwardLoop::ForwardLoop(Program& program, int body, std::set<VarId>& active, MemoryPolicy memory)
    : program_(program), body_(body), active_(active), memory_(std::move(memory)) {
  block_ = lowering::find_loop(program, body).first;
  check();
}

Op& ForwardLoop::loop() {
  const auto [block, place] = lowering::find_loop(program_, body_);
  return program_.block(block).ops[place];
}
const Op& ForwardLoop::loop() const {
  const auto [block, place] = lowering::find_loop(program_, body_);
  return std::as_const(program_).block(block).ops[place];
}

bool ForwardLoop::invariant(std::size_t carried) const {
  const Block& body = program_.block(body_);
  return body.results[carried] == body.params[carried];
}

void ForwardLoop::check() const {
  const Block& body = program_.block(body_);
  const auto refuse = [&](const std::string& why) {
    throw UnsupportedError("append_backward: op while, the loop of block " + std::to_string(body_) + ": " + why);
  };
  for (std::size_t i = 0; i < body.params.size(); ++i)
    if (program_.var(body.params[i]).type.is_array() && !invariant(i))
      refuse("'" + program_.var(body.params[i]).name + "' of " + program_.var(body.params[i]).type.to_string() +
             " is carried, and changes: only tensors and lists have gradients through what a loop carries");
  bool stored = false;
  for (const Op& op : body.ops) {
    stored = stored || active_.contains(written_array(program_, op));
    for_each_sub_block(op, [&](int) { stored = true; });
    if (op.type != "break_if") continue;
    for (std::size_t i = 0; i < body.params.size(); ++i)
      if ((op.inputs[i + 1] != body.params[i] && active_.contains(op.inputs[i + 1])) || stored)
        refuse("it is left in the middle of an iteration, with values of that iteration: put break_if first");
  }
}

// ---- What the backward asks ----

std::vector<VarId> ForwardLoop::before(Op op, const std::string& name) {
  const std::vector<VarId> outputs = program_.append(block_, std::move(op), {name});
  std::vector<Op>& ops = program_.block(block_).ops;
  Op made = std::move(ops.back());
  ops.pop_back();
  const std::size_t place = lowering::find_loop(program_, body_).second;
  ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(place), std::move(made));
  return outputs;
}

VarId ForwardLoop::trips() {
  if (trips_ != no_var) return trips_;
  const Attributes zero{{"value", Tensor::scalar<std::int64_t>(0)}};
  const VarId first = before(Op{"constant", {}, {}, zero, {}}, "zero").at(0);
  const VarType type(DType::i64, DDim{});
  iteration_ = program_.add_var("iteration", type, body_);
  trips_ = program_.add_var("iterations", type, block_);
  program_.block(body_).params.push_back(iteration_);
  const VarId one = program_.append(body_, Op{"constant", {}, {}, {{"value", Tensor::scalar<std::int64_t>(1)}}, {}}).at(0);
  const VarId next = program_.append(body_, Op{"add", {iteration_, one}, {}, {}, {}}, {"next_iteration"}).at(0);
  program_.block(body_).results.push_back(next);
  for (Op& op : program_.block(body_).ops)
    if (op.type == "break_if") op.inputs.push_back(iteration_);
  loop().inputs.push_back(first);
  loop().outputs.push_back(trips_);
  return trips_;
}

void ForwardLoop::collect_arrays(int block, bool written, std::set<VarId>& arrays) const {
  for (const Op& op : program_.block(block).ops) {
    const VarId array = written_array(program_, op);
    if (written && array != no_var) arrays.insert(array);
    const bool looks = !written && op.type != "tensor_array_size" && array == no_var;
    for (const VarId input : op.inputs)
      if (looks && input != no_var && program_.var(input).type.is_array()) arrays.insert(input);
    for_each_sub_block(op, [&](int inner) { collect_arrays(inner, written, arrays); });
  }
}

std::set<VarId> ForwardLoop::arrays_read() const {
  std::set<VarId> arrays;
  collect_arrays(body_, false, arrays);
  return arrays;
}

std::set<VarId> ForwardLoop::arrays_written() const {
  std::set<VarId> arrays;
  collect_arrays(body_, true, arrays);
  return arrays;
}

std::vector<bool> ForwardLoop::live_carried(const std::function<bool(VarId)>& has, const std::function<bool(VarId)>& has_array) const {
  const Block& body = program_.block(body_);
  const std::set<VarId> read = arrays_read();
  std::set<VarId> live;
  std::vector<bool> made(body.params.size(), false);
  for (std::size_t i = 0; i < body.params.size(); ++i)
    if (program_.var(body.params[i]).type.is_list() && active_.contains(body.params[i]) && !invariant(i)) live.insert(body.results[i]);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      const bool tensor = program_.var(body.params[i]).type.is_tensor() && active_.contains(body.params[i]) && !invariant(i);
      if (!tensor || made[i] || i >= loop().outputs.size() || (!has(loop().outputs[i]) && !live.contains(body.params[i]))) continue;
      made[i] = changed = true;
      live.insert(body.results[i]);
    }
    for (auto op = body.ops.rbegin(); op != body.ops.rend(); ++op) {
      const VarId written = written_array(program_, *op);
      bool found = std::any_of(op->outputs.begin(), op->outputs.end(), [&](VarId output) { return live.contains(output); });
      found = found || (written != no_var && (read.contains(written) || has_array(written)));
      for_each_sub_block(*op, [&](int) { found = true; });
      if (!found || op->type == "break_if") continue;
      for (const VarId input : op->inputs)
        if (active_.contains(input)) changed = live.insert(input).second || changed;
      for_each_sub_block(*op, [&](int inner) {
        for (const VarId var : vars_read(program_, inner))
          if (active_.contains(var)) changed = live.insert(var).second || changed;
      });
    }
  }
  return made;
}

// ---- Values of the iterations ----

std::vector<VarId> ForwardLoop::stand_ins(int back, std::map<VarId, VarId>& copies) {
  const std::vector<VarId> params = program_.block(body_).params;
  std::vector<VarId> values;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const VarDef def = program_.var(params[i]);
    VarId value = loop().inputs[i];
    if (!invariant(i)) {
      value = program_.add_var(def.name, def.type, back);
      if (active_.contains(params[i])) active_.insert(value);
    }
    copies[params[i]] = value;
    values.push_back(value);
  }
  return values;
}

const Tensor* ForwardLoop::stride(std::size_t carried) const {
  const Block& body = program_.block(body_);
  const VarType& type = program_.var(body.params[carried]).type;
  if (is_floating(type.dtype) || type.rank() != 0) return nullptr;
  for (const Op& op : body.ops) {
    if (op.outputs.empty() || op.outputs[0] != body.results[carried] || op.type != "add") continue;
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}})
      if (op.inputs[at] == body.params[carried] && program_.constant(op.inputs[1 - at]) != nullptr)
        return program_.constant(op.inputs[1 - at]);
  }
  return nullptr;
}

/// An op of block `back` that stands nowhere yet, with one new output.
Op ForwardLoop::loose(int back, const std::string& type, std::vector<VarId> inputs, Attributes attributes, DType dtype) {
  const VarId output = program_.add_var(type, VarType(dtype, DDim{}), back);
  program_.append_raw(back, Op{type, std::move(inputs), {output}, std::move(attributes), {}});
  Op made = std::move(program_.block(back).ops.back());
  program_.block(back).ops.pop_back();
  return made;
}

std::vector<Op> ForwardLoop::value_of(std::size_t carried, int back, VarId iteration, VarId value) {
  const VarDef param = program_.var(program_.block(body_).params[carried]);
  std::vector<Op> made;
  if (const Tensor* by = stride(carried); by != nullptr && by->elements() == 1) {
    // initial + iteration · stride
    const DType dtype = param.type.dtype;
    VarId count = iteration;
    if (dtype != DType::i64) {
      made.push_back(loose(back, "cast", {iteration}, {{"to", dtype}}, dtype));
      count = made.back().outputs[0];
    }
    made.push_back(loose(back, "constant", {}, {{"value", *by}}, dtype));
    made.push_back(loose(back, "mul", {count, made.back().outputs[0]}, {}, dtype));
    made.push_back(Op{"add", {loop().inputs[carried], made.back().outputs[0]}, {value}, {}, {}});
    return made;
  }
  if (param.type.is_list())
    throw UnsupportedError("append_backward: op while, the loop of block " + std::to_string(body_) + ": '" + param.name + "' of " +
                           param.type.to_string() + " is carried, changes, and is read in an inner loop or branch");
  made.push_back(kept_value({program_.block(body_).params[carried], value}, iteration));
  return made;
}

Op ForwardLoop::kept_value(const Kept& kept, VarId iteration) {
  const std::string called = "kept." + program_.var(kept.var).name;
  const VarId array = before(Op{"tensor_array", {}, {}, {{"growable", true}, {"name", called}}, {}}, called).at(0);
  program_.append(body_, Op{"tensor_array_write", {array, iteration_, kept.var}, {}, kept_attributes(memory_, {{"share", true}}), {}});
  Attributes read;
  if (memory_.kind == MemoryPolicy::Kind::spill) read.set("read_ahead", slots_ahead);
  return Op{"tensor_array_read", {array, iteration}, {kept.here}, std::move(read), {}};
}

void ForwardLoop::take_list_reads(int back, const std::map<VarId, VarId>& copies) {
  std::vector<Op>& ops = program_.block(back).ops;
  for (const Op& op : program_.block(body_).ops) {
    if (op.type != "slot_gradient" || program_.var(op.inputs[0]).block != body_) continue;
    const auto params = program_.block(body_).params;
    const auto param = std::find(params.begin(), params.end(), op.inputs[0]);
    if (param != params.end() && invariant(static_cast<std::size_t>(param - params.begin()))) continue;
    const Kept kept{op.outputs[0], copies.at(op.outputs[0])};
    std::erase_if(ops, [&](const Op& each) { return !each.outputs.empty() && each.outputs[0] == kept.here; });
    list_reads_.push_back(kept);
  }
}

void ForwardLoop::give_values(int back, VarId left, VarId iteration, const std::vector<VarId>& values) {
  const std::set<VarId> read = vars_read(program_, back);
  std::vector<Op> rest = std::exchange(program_.block(back).ops, {});
  // The body goes on behind the stop with the number of the iteration, then with the values.
  const VarId zero = program_.append(back, Op{"constant", {}, {}, {{"value", Tensor::scalar<std::int64_t>(0)}}, {}}, {"zero"}).at(0);
  const VarId over = program_.append(back, Op{"equal", {left, zero}, {}, {}, {}}).at(0);
  Op stop{"break_if", {over}, {}, {}, {}};
  for (const VarId param : program_.block(back).params) stop.inputs.push_back(param);
  program_.append(back, std::move(stop));
  std::vector<Op> front = std::move(program_.block(back).ops);
  const auto counted = std::find_if(rest.begin(), rest.end(), [&](const Op& op) {
    return std::find(op.outputs.begin(), op.outputs.end(), iteration) != op.outputs.end();
  });
  const auto first = counted - 1;  // its constant
  front.push_back(std::move(*first));
  front.push_back(std::move(*counted));
  rest.erase(first, counted + 1);
  program_.block(back).ops.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (program_.var(values[i]).block != back || !read.contains(values[i])) continue;
    for (Op& op : value_of(i, back, iteration, values[i])) front.push_back(std::move(op));
  }
  for (const Kept& kept : list_reads_)
    if (read.contains(kept.here)) front.push_back(kept_value(kept, iteration));
  for (Op& op : rest) front.push_back(std::move(op));
  program_.block(back).ops = std::move(front);
}

}  // namespace millrace::autodiff
