// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/loop.h>

#include <exception>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

std::vector<VarId> ids(const std::vector<Var>& vars) {
  std::vector<VarId> out;
  for (const Var& var : vars) out.push_back(var.id());
  return out;
}

/// The results of `branch`, built in a block of its own.
int branch_block(const std::function<std::vector<Var>()>& branch) {
  Guard& guard = Guard::current();
  const int block = guard.program().add_block(guard.block());
  const BlockGuard inside(guard, block);
  guard.program().block(block).results = ids(branch());
  return block;
}

/// The iterations that the three sugars share: `iteration(step, x[step])` for every index of axis 0.
struct Rows {
  explicit Rows(const Var& x) : steps(ArrayVar::unstack(x)), n(steps.size()) {}

  void visit(const std::vector<Var>& carried, LoopOptions options, const std::function<void(const Var&, const Var&)>& iteration) const {
    Var step = constant(0);
    std::vector<Var> vars{step};
    vars.insert(vars.end(), carried.begin(), carried.end());
    WhileLoop loop = while_loop(vars, options);
    const auto frame = loop.frame();
    loop.break_if(equal(step, n));
    iteration(step, steps.read(step));
    step.update(step + constant(1));
  }

  ArrayVar steps;
  Var n;
};

/// Whether a value of `found` may have other extents than `declared` says. One row beside rows of any number is not told from one that is
/// broadcast: an extent of 1 is taken to stay.
bool may_differ(const VarType& declared, const VarType& found) {
  if (!declared.is_tensor() || !found.is_tensor() || !declared.shape) return false;
  for (int axis = 0; axis < declared.rank(); ++axis) {
    const std::int64_t extent = (*declared.shape)[axis];
    if (extent >= 0 && extent != 1 && (!found.shape || (*found.shape)[axis] < 0)) return true;
  }
  return false;
}

/// Later ops of the body, and ops behind the loop, were inferred from the declared extents.
void expect_declared(const Program& program, VarId param, VarId next) {
  const VarType& declared = program.var(param).type;
  const VarType& found = program.var(next).type;
  if (fits(found, declared) && may_differ(declared, found))
    throw ProgramError("while: '" + program.var(param).name + "' is carried as " + declared.to_string() + ", and its next value is " +
                       found.to_string() + ", which may have other extents: reshape that, or carry varying('" + program.var(param).name +
                       "')");
}

}  // namespace

WhileLoop::WhileLoop(std::vector<Var> carried, LoopOptions options) : carried_(std::move(carried)), options_(options) {
  for (std::size_t i = 0; i < carried_.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (carried_[i].same_variable(carried_[j])) throw ProgramError("while: '" + carried_[i].name() + "' is carried twice");
}

void WhileLoop::begin() {
  if (block_ >= 0) throw ProgramError("while: the loop has a frame already");
  Guard& guard = Guard::current();
  Program& program = guard.program();
  block_ = program.add_block(guard.block());
  initial_ = ids(carried_);
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const Var& outside = carried_[i];
    VarType type = program.var(initial_[i]).type;
    type.ordered = false;
    const VarId param = program.add_var(program.var(initial_[i]).name, type, block_);
    program.block(block_).params.push_back(param);
    outside.rebind(param);
  }
}

void WhileLoop::end() {
  const Guard& guard = Guard::current();
  Program& program = guard.program();
  program.block(block_).results = ids(carried_);
  Attributes attributes{
      {"sub_block", BlockId{block_}}, {"max_trips", options_.max_trips}, {"parallel_iterations", options_.parallel_iterations}};
  if (condition_ >= 0) attributes.set("condition", std::int64_t{condition_});
  std::vector<std::string> names;
  for (const VarId id : initial_) names.push_back(program.var(id).name);
  restore();
  const Block& body = program.block(block_);
  for (std::size_t i = 0; i < body.params.size(); ++i) expect_declared(program, body.params[i], body.results[i]);
  const std::vector<VarId> last = program.append(guard.block(), Op{"while", initial_, {}, attributes, {}}, names);
  for (std::size_t i = 0; i < carried_.size(); ++i) carried_[i].rebind(last[i]);
}

void WhileLoop::restore() const {
  for (std::size_t i = 0; i < carried_.size(); ++i) carried_[i].rebind(initial_[i]);
}

void WhileLoop::break_if(const Var& condition) {
  const Guard& guard = Guard::current();
  if (guard.block() != block_)
    throw ProgramError(std::string("break_if: expected the frame of its own loop, ") +
                       (block_ < 0 ? "auto frame = loop.frame(), which was not opened yet"
                                   : "block " + std::to_string(block_) + ", found block " + std::to_string(guard.block()) +
                                         ": call it where that frame is the innermost one that is open"));
  Op op{"break_if", {condition.id()}, {}, {}, {}};
  for (const Var& var : carried_) op.inputs.push_back(var.id());
  guard.program().append(block_, std::move(op));
}

WhileLoop::Frame::Frame(WhileLoop& loop) : loop_(loop), exceptions_(std::uncaught_exceptions()) {
  loop.begin();
  block_ = std::make_unique<BlockGuard>(Guard::current(), loop.block_);
}

WhileLoop::Frame::~Frame() noexcept(false) {
  block_.reset();
  if (std::uncaught_exceptions() == exceptions_)
    loop_.end();
  else
    loop_.restore();
}

WhileLoop while_loop(std::vector<Var> carried, LoopOptions options) { return WhileLoop(std::move(carried), options); }

WhileLoop while_op(const Var& condition, std::vector<Var> carried, LoopOptions options) {
  WhileLoop loop(std::move(carried), options);
  for (std::size_t i = 0; i < loop.carried_.size(); ++i)
    if (loop.carried_[i].same_variable(condition)) loop.condition_ = static_cast<int>(i);
  if (loop.condition_ < 0) {
    loop.condition_ = static_cast<int>(loop.carried_.size());
    loop.carried_.push_back(condition);
  }
  return loop;
}

std::vector<Var> while_loop(const std::function<Var(const std::vector<Var>&)>& condition,
                            const std::function<std::vector<Var>(const std::vector<Var>&)>& body, std::vector<Var> initial,
                            LoopOptions options) {
  std::vector<Var> vars;
  for (const Var& var : initial) vars.push_back(Var::of(var.id()));  // variables of our own: the caller's keep their values
  WhileLoop loop = while_loop(vars, options);
  {
    const auto frame = loop.frame();
    const std::vector<Var> now = [&] {
      std::vector<Var> copies;
      for (const Var& var : vars) copies.push_back(Var::of(var.id()));
      return copies;
    }();
    loop.break_if(logical_not(condition(now)));
    const std::vector<Var> next = body(now);
    if (next.size() != vars.size())
      throw ProgramError("while_loop: expected " + std::to_string(vars.size()) + " values from the body, found " +
                         std::to_string(next.size()));
    for (std::size_t i = 0; i < vars.size(); ++i) vars[i].rebind(next[i].id());
  }
  return vars;
}

std::vector<Var> if_else(const Var& condition, const std::function<std::vector<Var>()>& then,
                         const std::function<std::vector<Var>()>& otherwise) {
  const int then_block = branch_block(then);
  const int else_block = branch_block(otherwise);
  return call("if", {condition}, {{"then_block", BlockId{then_block}}, {"else_block", BlockId{else_block}}});
}

Var map_fn(const std::function<Var(const Var&)>& f, const Var& x, LoopOptions options) {
  const Rows rows(x);
  const ArrayVar outputs(rows.n, "mapped");
  rows.visit({}, options, [&](const Var& step, const Var& item) { outputs.write(step, f(item)); });
  return outputs.stack();
}

Var fold(const std::function<Var(const Var&, const Var&)>& f, const Var& x, const Var& initial, LoopOptions options) {
  Var state = Var::of(initial.id());
  Rows(x).visit({state}, options, [&](const Var&, const Var& item) { state.update(f(state, item)); });
  return state;
}

Var scan(const std::function<Var(const Var&, const Var&)>& f, const Var& x, const Var& initial, LoopOptions options) {
  Var state = Var::of(initial.id());
  const Rows rows(x);
  const ArrayVar outputs(rows.n, "scanned");
  rows.visit({state}, options, [&](const Var& step, const Var& item) {
    state.update(f(state, item));
    outputs.write(step, state);
  });
  return outputs.stack();
}

}  // namespace millrace::build
