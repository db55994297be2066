// SPDX-License-Identifier: Apache-2.0
#include <set>

#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>

/// Control: what the ops are; the executor runs them.
namespace millrace::ops {
namespace {

const Block& block_of(const InferContext& context, const char* attribute) {
  const int index = context.attributes().get<BlockId>(attribute).index;
  if (index < 0 || std::cmp_greater_equal(index, context.program().blocks().size()))
    throw ProgramError("attribute '" + std::string(attribute) + "': expected a block of this program, found " + std::to_string(index));
  return context.program().block(index);
}

std::string var_text(const Program& program, VarId id) { return "'" + program.var(id).name + "' of " + program.var(id).type.to_string(); }

void expect_condition(const Program& program, VarId id, const std::string& what) {
  const VarType& type = program.var(id).type;
  const bool one = type.is_tensor() &&
                   (!type.shape || type.rank() == 0 || (type.rank() == 1 && ((*type.shape)[0] == 1 || (*type.shape)[0] == DDim::unknown)));
  if (type.is_tensor() && type.dtype == DType::boolean && one) return;
  throw ProgramError("expected a boolean scalar as " + what + ", found " + var_text(program, id));
}

/// `next` may take the place of `param` in the next iteration. (What is read from an ordered array may: the parameter just
/// does not keep its turn.)
void expect_carried(const Program& program, VarId param, VarId next, const char* what) {
  VarType wanted = program.var(param).type;
  VarType found = program.var(next).type;
  wanted.ordered = found.ordered = false;
  if (!fits(found, wanted))
    throw ProgramError("expected " + std::string(what) + " of " + var_text(program, param) + " to be like it, found " +
                       var_text(program, next));
}

void expect_count(std::size_t wanted, std::size_t found, const std::string& what) {
  if (wanted != found) throw ProgramError("expected " + std::to_string(wanted) + " " + what + ", found " + std::to_string(found));
}

/// The vars of a loop's body that may differ from iteration to iteration: results that depend on updated vars, on slots at
/// such places, on arrays that the body writes, and on ops that are not pure.
class Changes {
 public:
  Changes(const Program& program, const Block& body) : program_(program) {
    collect_written(body);
    for (std::size_t i = 0; i < body.params.size(); ++i)
      if (body.results[i] != body.params[i]) changing_.insert(body.params[i]);
    follow(body);
  }
  bool of(VarId var) const { return changing_.contains(var); }

 private:
  void collect_written(const Block& block) {
    for (const Op& op : block.ops) {
      const auto& stores = program_.registry().at(op.type).stores;
      if (stores) written_.insert(op.inputs.at(stores->first));
      for_each_sub_block(op, [this](const Block& inner) { collect_written(inner); });
    }
  }
  /// The ops stand in order: each after what it reads.
  void follow(const Block& block) {
    for (const Op& op : block.ops)
      if (changes(op)) changing_.insert(op.outputs.begin(), op.outputs.end());
  }
  bool changes(const Op& op) {
    bool found = !program_.registry().at(op.type).pure && op.type != "while" && op.type != "if" && op.type != "break_if";
    for (const VarId input : op.inputs) found = found || changing_.contains(input) || written_.contains(input);
    for_each_sub_block(op, [&](const Block& inner) {
      // A block's parameters start from the inputs of its op; here they count as changing when anything that the block
      // sees does.
      for (const Op& each : inner.ops) found = changes(each) || found;
    });
    return found;
  }
  template <class F>
  void for_each_sub_block(const Op& op, F&& f) const {
    for (const auto& [name, attribute] : op.attributes)
      if (const auto* id = std::get_if<BlockId>(&attribute)) f(program_.block(id->index));
  }

  const Program& program_;
  std::set<VarId> written_;
  std::set<VarId> changing_;
};

/// The var that `var` is a copy of, as far back as ops of the body only hand it on.
VarId copied_from(const Program& program, const Block& body, VarId var) {
  for (auto op = body.ops.rbegin(); op != body.ops.rend(); ++op) {
    const OpTraits& traits = program.registry().at(op->type).traits;
    if ((traits.forwards || traits.view) && !op->outputs.empty() && op->outputs[0] == var) var = op->inputs.at(0);
  }
  return var;
}

/// Refuses a body that no iteration can leave.
void expect_end(const Program& program, const Block& body, std::int64_t condition, std::int64_t max_trips) {
  if (max_trips >= 0) return;
  const Changes changes(program, body);
  std::string fixed;
  if (condition >= 0) {
    const auto place = static_cast<std::size_t>(condition);
    if (copied_from(program, body, body.results[place]) != body.params[place] && changes.of(body.results[place])) return;
    fixed = "'" + program.var(body.params[place]).name + "'";
  }
  for (const Op& op : body.ops) {
    if (op.type != "break_if") continue;
    if (changes.of(op.inputs.at(0))) return;
    fixed += (fixed.empty() ? "'" : ", '") + program.var(op.inputs[0]).name + "'";
  }
  if (fixed.empty()) throw ProgramError("the loop can never end: expected a break_if, a condition or a trip limit, found none");
  throw ProgramError("the loop can never end: expected a condition that depends on what the body updates, found " + fixed +
                     ", which is the same in every iteration");
}

void infer_while(InferContext& context) {
  const Program& program = context.program();
  const Block& body = block_of(context, "sub_block");
  const std::size_t carried = context.inputs();
  expect_count(body.params.size(), carried, "carried vars, as many as the body's block has parameters");
  expect_count(carried, body.results.size(), "results of the body, one for each carried var");
  for (std::size_t i = 0; i < carried; ++i) {
    if (!context.has(i))
      throw ProgramError("expected a carried var as " + millrace::internal::input_name(context.program(), context.op(), i) +
                         ", found none");
    expect_carried(program, body.params[i], context.op().inputs[i], "the initial value");
    expect_carried(program, body.params[i], body.results[i], "the next value");
  }
  const std::int64_t condition = context.attributes().get_or("condition", std::int64_t{-1});
  if (condition < -1 || (condition >= 0 && std::cmp_greater_equal(condition, carried)))
    throw ProgramError("attribute 'condition': expected the place of a carried var or -1, found " + std::to_string(condition));
  if (condition >= 0) expect_condition(program, body.params[static_cast<std::size_t>(condition)], "the loop's condition");
  const std::int64_t limit = context.attributes().get_or("max_trips", std::int64_t{-1});
  const std::int64_t parallel = context.attributes().get_or("parallel_iterations", std::int64_t{1});
  if (limit < -1) throw ProgramError("attribute 'max_trips': expected 0 or more, or -1, found " + std::to_string(limit));
  if (parallel < 1) throw ProgramError("attribute 'parallel_iterations': expected 1 or more, found " + std::to_string(parallel));
  expect_end(program, body, condition, limit);
  for (const VarId param : body.params) {
    VarType type = program.var(param).type;
    type.ordered = type.is_array() && type.ordered;
    context.result(std::move(type));
  }
}

void infer_break_if(InferContext& context) {
  const Program& program = context.program();
  expect_condition(program, context.op().inputs.at(0), "the condition of break_if");
  const Block& body = program.block(context.block());
  if (body.idx == 0) throw ProgramError("expected the body of a loop, found block 0");
  expect_count(body.params.size(), context.inputs() - 1, "carried vars, as many as the loop carries");
  for (std::size_t i = 0; i < body.params.size(); ++i) {
    if (!context.has(i + 1))
      throw ProgramError("expected a carried var as " + millrace::internal::input_name(context.program(), context.op(), i + 1) +
                         ", found none");
    expect_carried(program, body.params[i], context.op().inputs[i + 1], "the last value");
  }
}

/// A branch runs once, with nothing handed in; only a loop's own body can be left.
void expect_branch(const Block& block) {
  expect_count(0, block.params.size(), "parameters of a branch");
  for (const Op& op : block.ops)
    if (op.type == "break_if")
      throw ProgramError("expected break_if in the body of a loop, found it in a branch, block " + std::to_string(block.idx));
}

void infer_if(InferContext& context) {
  const Program& program = context.program();
  expect_condition(program, context.op().inputs.at(0), "the condition");
  const Block& then = block_of(context, "then_block");
  const Block& otherwise = block_of(context, "else_block");
  expect_branch(then);
  expect_branch(otherwise);
  expect_count(then.results.size(), otherwise.results.size(), "results of the else block, as many as the then block has");
  for (std::size_t i = 0; i < then.results.size(); ++i) {
    const VarType& a = program.var(then.results[i]).type;
    const VarType& b = program.var(otherwise.results[i]).type;
    if (a.kind != b.kind || a.dtype != b.dtype || a.lod_depth != b.lod_depth)
      throw ProgramError("expected the branches to agree, found " + var_text(program, then.results[i]) + " and " +
                         var_text(program, otherwise.results[i]));
    context.result(common(a, b));
  }
}

OpDef control_op(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs, void (*infer)(InferContext&),
                 std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), std::move(outputs), std::move(attributes));
  def.infer = infer;
  def.passes_lod = false;
  def.pure = false;
  return def;
}

}  // namespace

void add_control_ops(OpRegistry& registry) {
  registry.add(control_op("while", {"Carried..."}, {"Out..."}, infer_while,
                          {"sub_block", "max_trips", "parallel_iterations", "condition", "backward_memory", "backward_folder", "segment"}));
  registry.add(control_op("break_if", {"Condition", "Carried..."}, {}, infer_break_if));
  registry.add(control_op("if", {"Condition"}, {"Out..."}, infer_if, {"then_block", "else_block"}));
}

}  // namespace millrace::ops
