// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/var.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

// Builder calls name no program: they mean the one that the thread is building.
thread_local Guard* innermost = nullptr;

}  // namespace

Guard::Guard(Program& program) : program_(program), outer_(innermost) { innermost = this; }
Guard::~Guard() { innermost = outer_; }

Guard& Guard::current() {
  if (innermost == nullptr) throw ProgramError("builder: expected an open build::Guard on this thread, found none");
  return *innermost;
}

VarId Var::id() const {
  if (!bound_) throw ProgramError("builder: expected a variable with a value, found an empty Var");
  return *bound_;
}
const VarType& Var::type() const { return Guard::current().program().var(id()).type; }
const std::string& Var::name() const { return Guard::current().program().var(id()).name; }

void Var::update(const Var& value) {
  const Guard& guard = Guard::current();
  const Var& now = *this;
  const int block = guard.program().var(now.id()).block;
  if (block != guard.block())
    throw ProgramError("builder: '" + name() + "' belongs to block " + std::to_string(block) + " and is updated in block " +
                       std::to_string(guard.block()) + ": list it among the variables that the loop carries");
  // What comes from an outer block gets a name of its own here, so that the variable can be updated again.
  const bool here = guard.program().var(value.id()).block == guard.block();
  *bound_ = here ? value.id() : identity(value).id();
}

Var Var::literal(bool value) { return constant(value); }
Var Var::literal(double value) { return constant(value); }
Var Var::literal(std::int64_t value) { return constant(value); }

}  // namespace millrace::build
