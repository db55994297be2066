// SPDX-License-Identifier: Apache-2.0
#include "scopes.h"

#include <string>
#include <vector>

#include <millrace/runtime/program/errors.h>

namespace millrace::python {
namespace {

struct Stack {
  struct Entry {
    std::size_t number;
    std::unique_ptr<OpenScope> scope;
  };
  ~Stack() {
    while (!entries.empty()) pop()->abandon();
  }
  std::unique_ptr<OpenScope> pop() {
    std::unique_ptr<OpenScope> top = std::move(entries.back().scope);
    entries.pop_back();
    return top;
  }
  std::vector<Entry> entries;
  std::size_t last_number = 0;
};
thread_local Stack stack;

}  // namespace

void OpenScope::abandon() noexcept {
  struct OnItsWay {};
  // Frames ask how many exceptions are on their way.
  struct Closing {
    OpenScope* scope;
    ~Closing() {
      try {
        scope->close();
      } catch (...) {  // nobody is there to hear it
      }
    }
  };
  try {
    const Closing closing{this};
    throw OnItsWay();
  } catch (const OnItsWay&) {
  }
}

std::size_t open_scope(std::unique_ptr<OpenScope> scope) {
  stack.entries.push_back({++stack.last_number, std::move(scope)});
  return stack.last_number;
}

void close_scope(std::size_t number, bool failed) {
  bool known = false;
  for (const Stack::Entry& entry : stack.entries) known = known || entry.number == number;
  if (!known) {
    if (failed) return;  // abandoned already, with what was around it
    throw ProgramError(
        "builder: expected a frame, block or program that is open on this thread, found one that has ended, or of another thread");
  }
  bool inner = false;
  while (stack.entries.back().number != number) {
    stack.pop()->abandon();
    inner = true;
  }
  const std::unique_ptr<OpenScope> scope = stack.pop();
  if (failed || inner)
    scope->abandon();
  else
    scope->close();
  if (inner && !failed)
    throw ProgramError("builder: expected frames, blocks and programs to end in reverse order, found one inside that is still open");
}

std::size_t open_scopes() noexcept { return stack.entries.size(); }

bool abandon_scopes(std::size_t depth) noexcept {
  const bool any = stack.entries.size() > depth;
  while (stack.entries.size() > depth) stack.pop()->abandon();
  return any;
}

void CallDepth::expect_closed() const {
  if (abandon_scopes(depth_)) throw ProgramError(std::string(what_) + ": the function left a frame, block or program open");
}

}  // namespace millrace::python
