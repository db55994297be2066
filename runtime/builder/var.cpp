// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/var.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

// Builder calls name no program: they mean the one that the thread is building.
thread_local Guard* innermost_guard = nullptr;

}  // namespace

Guard::Guard(Program& program) : program_(program), outer_(innermost_guard) {
  for (const Guard* outer = outer_; outer != nullptr && !building_; outer = outer->outer_)
    if (&outer->program_ == &program) building_ = outer->building_;
  if (!building_) building_ = std::make_shared<const char>();
  innermost_guard = this;
}
Guard::~Guard() { innermost_guard = outer_; }
Guard* Guard::innermost() noexcept { return innermost_guard; }

Guard& Guard::current() {
  if (innermost_guard == nullptr) throw ProgramError("builder: expected an open build::Guard on this thread, found none");
  return *innermost_guard;
}

Var Var::of(VarId id) {
  Var var;
  var.bound_ = std::make_shared<Binding>();
  var.bound_->building = Guard::current().building();
  var.rebind(id);
  return var;
}

void Var::rebind(VarId id) const {
  const Program& program = Guard::current().program();
  if (id < 0 || std::cmp_greater_equal(id, program.vars().size()))
    throw ProgramError("builder: expected a var of " + std::to_string(program.vars().size()) + ", found var " + std::to_string(id));
  const VarDef& var = program.var(id);
  bound_->id = id;
  bound_->name = var.name;
  bound_->block = var.block;
  bound_->exact.reset();
}

VarId Var::id() const {
  if (!bound_) throw ProgramError("builder: expected a variable with a value, found an empty Var");
  const Guard* guard = Guard::innermost();
  if (guard != nullptr && guard->building() != bound_->building)
    throw ProgramError("builder: expected a variable of the program that is being built, found '" + bound_->name + "' of block " +
                       std::to_string(bound_->block) + " of another one, or of a guard that was closed");
  return bound_->id;
}
const VarType& Var::type() const { return Guard::current().program().var(id()).type; }
const std::string& Var::name() const { return Guard::current().program().var(id()).name; }

void Var::update(const Var& value) {
  const Guard& guard = Guard::current();
  const Var& now = *this;
  const int block = guard.program().var(now.id()).block;
  if (block != guard.block())
    throw ProgramError("builder: '" + name() + "' belongs to block " + std::to_string(block) + " and is updated in block " +
                       std::to_string(guard.block()) + ": list it among the variables that the loop carries, or return it from the branch");
  // A value of an outer block gets a name of its own here, so that the variable can be updated again.
  const bool here = guard.program().var(value.id()).block == guard.block();
  rebind(here ? value.id() : identity(value).id());
}

Var Var::literal(bool value) { return constant(value); }
Var Var::literal(double value) {
  Var made = constant(value);
  made.bound_->exact = value;
  return made;
}
Var Var::literal(std::int64_t value) { return constant(value); }

}  // namespace millrace::build
