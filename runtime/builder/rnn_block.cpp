// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/rnn_block.h>

#include <exception>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

std::string text(const Var& var) { return "'" + var.name() + "' of " + var.type().to_string(); }

/// Whether rows of `next` may stand where rows of `memory` stood: the number of rows is a matter of the run.
bool same_row(const VarType& memory, const VarType& next) {
  if (!next.is_tensor() || memory.dtype != next.dtype || memory.lod_depth != next.lod_depth) return false;
  if (!memory.shape || !next.shape) return true;
  if (memory.rank() != next.rank()) return false;
  for (int axis = 1; axis < next.rank(); ++axis) {
    const std::int64_t a = (*memory.shape)[axis];
    const std::int64_t b = (*next.shape)[axis];
    if (a != b && a != DDim::unknown && b != DDim::unknown) return false;
  }
  return true;
}

}  // namespace

void RnnBlock::refuse(const std::string& why) const { throw ProgramError(kind_ + ": " + why); }

// ---- The block ----

RnnBlock::Block::Block(RnnBlock& rnn) : rnn_(rnn), exceptions_(std::uncaught_exceptions()) {
  rnn.begin();
  guard_.emplace(Guard::current(), rnn.loop_->block_);
}

RnnBlock::Block::~Block() noexcept(false) {
  const bool left_by_exception = std::uncaught_exceptions() != exceptions_;
  rnn_.open_ = false;
  try {
    if (!left_by_exception) rnn_.end();
  } catch (...) {
    guard_.reset();
    rnn_.loop_->restore();
    throw;
  }
  guard_.reset();
  if (left_by_exception) {
    rnn_.loop_->restore();
    return;
  }
  rnn_.loop_->end();
  for (const ArrayVar& array : rnn_.slots_) rnn_.outputs_.push_back(rnn_.joined(array));
  rnn_.done_ = true;
}

void RnnBlock::begin() {
  if (loop_) refuse("expected one visit of its block, found a second one");
  parent_ = Guard::current().block();
  step_ = constant(0);
  loop_.emplace(std::vector<Var>{step_}, options_);
  loop_->begin();
  open_ = true;
}

/// In the block, before it is closed.
void RnnBlock::end() {
  if (!has_steps()) refuse("expected a step_input in its block, found none");
  for (const Memory& memory : memories_)
    if (!memory.updated) refuse("memory '" + memory.value.name() + "' is never updated: expected update_memory in its block");
  step_.update(step_ + 1);
}

void RnnBlock::expect_inside(const char* call) const {
  if (!open_)
    refuse(std::string(call) + ": expected a call inside its block, found one " + (loop_ ? "after" : "before") + " it was visited");
  const int block = Guard::current().block();
  if (block != loop_->block_)
    refuse(std::string(call) + ": expected a call in its own block, " + std::to_string(loop_->block_) + ", found block " +
           std::to_string(block));
}

void RnnBlock::expect_behind(const char* call) const {
  expect_inside(call);
  if (!has_steps()) refuse(std::string(call) + ": expected a step_input before it, which says how many steps and sequences there are");
}

Var RnnBlock::outer(const char* call, const Var& x) const {
  const Program& program = Guard::current().program();
  if (program.visible(x.id(), parent_)) return x;
  if (const Tensor* literal = program.constant(x.id())) return outside([&] { return constant(*literal); });
  refuse(std::string(call) + ": expected a variable of the program around the block, found " + text(x) + " of block " +
         std::to_string(program.var(x.id()).block));
}

void RnnBlock::expect_after(const char* call) const {
  if (!done_) refuse(std::string(call) + ": expected a call after its block, found one " + (loop_ ? "inside" : "before it was visited"));
}

Var RnnBlock::this_step(const ArrayVar& steps) {
  if (has_steps()) return steps.read(step_);
  n_ = outside([&] { return steps.size(); });
  loop_->break_if(equal(step_, n_));
  previous_ = step_ - 1;
  first_ = steps.read(step_);
  return first_;
}

// ---- Memories and outputs ----

Var RnnBlock::memory(const Var& boot) {
  expect_behind("memory");
  if (boot.type().rank() == 0) refuse("memory: expected a boot that has a row for each sequence, found " + text(boot));
  return add_memory(outer("memory", boot));
}

Var RnnBlock::memory(DType dtype, const std::vector<std::int64_t>& row_shape, double value) {
  expect_behind("memory");
  return add_memory(outside([&] { return boot_rows(dtype, row_shape, value); }));
}

Var RnnBlock::add_memory(const Var& boot) {
  const std::string name = "memory" + (memories_.empty() ? "" : "_" + std::to_string(memories_.size() + 1));
  const ArrayVar states = outside([&] { return make_array(name + "_states"); });
  const Var value = alive(call1("tensor_array_read", {states.var(), previous_, boot}, {}, name));
  memories_.push_back({value, states, boot});
  return value;
}

std::optional<std::size_t> RnnBlock::find(const Var& memory) const {
  for (std::size_t i = 0; i < memories_.size(); ++i)
    if (memories_[i].value.same_variable(memory)) return i;
  return std::nullopt;
}

void RnnBlock::update_memory(const Var& memory, const Var& next) {
  expect_behind("update_memory");
  const std::optional<std::size_t> place = find(memory);
  if (!place) refuse("update_memory: expected a memory of this RNN, found " + text(memory));
  Memory& found = memories_[*place];
  if (found.updated) refuse("update_memory: '" + memory.name() + "' is updated twice");
  if (!same_row(memory.type(), next.type())) refuse("update_memory: expected rows like " + text(memory) + ", found " + text(next));
  found.states.write(step_, next);
  found.updated = true;
}

void RnnBlock::output(const Var& y) {
  expect_behind("output");
  const ArrayVar array = outside([&] { return make_array("outputs"); });
  array.write(step_, y);
  slots_.push_back(array);
}

const std::vector<Var>& RnnBlock::outputs() const {
  expect_after("outputs");
  return outputs_;
}

const ArrayVar& RnnBlock::output_slots(std::size_t i) const {
  expect_after("output_slots");
  return slots_.at(i);
}

Var RnnBlock::last(const Var& memory) const {
  expect_after("last");
  const std::optional<std::size_t> place = find(memory);
  if (!place) refuse("last: expected a memory of this RNN");
  return last_of(memories_[*place]);
}

}  // namespace millrace::build
