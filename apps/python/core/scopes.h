// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

#include <millrace/runtime/builder/var.h>

/// The builder's guards, frames and blocks end in reverse order and by their destructors; Python's `with` ends by a call, and a generator may
/// forget it. So open scopes live in a stack of their thread, not in Python objects.
namespace millrace::python {

class OpenScope {
 public:
  virtual ~OpenScope() = default;
  /// Ends it as its destructor would; throws what that throws. Once.
  virtual void close() = 0;
  /// Ends it as its destructor does while an exception is on its way. Once.
  void abandon() noexcept;
};

/// Opens a scope on this thread; the number names it.
std::size_t open_scope(std::unique_ptr<OpenScope> scope);
/// Ends scope `number`, which must be the innermost of this thread: ProgramError else. `failed`: an exception is on its way through it.
void close_scope(std::size_t number, bool failed);
/// The number of scopes that are open on this thread.
std::size_t open_scopes() noexcept;
/// Abandons the innermost ones until `depth` are left; true when there were any.
bool abandon_scopes(std::size_t depth) noexcept;

/// Calls back into Python: a scope that the call leaves open is abandoned, and is a ProgramError that names `what`.
class CallDepth {
 public:
  explicit CallDepth(const char* what) noexcept : what_(what), depth_(open_scopes()) {}
  CallDepth(const CallDepth&) = delete;
  CallDepth& operator=(const CallDepth&) = delete;
  ~CallDepth() { abandon_scopes(depth_); }
  void expect_closed() const;

 private:
  const char* what_;
  std::size_t depth_;
};

/// A guard, frame or block `Inner` of `Owner`, which it keeps alive.
template <class Inner, class Owner>
class ScopeOf final : public OpenScope {
 public:
  explicit ScopeOf(std::shared_ptr<Owner> owner) : owner_(std::move(owner)), inner_(new Inner(*owner_)) {}
  ~ScopeOf() override {
    if (inner_ != nullptr) abandon();
  }
  void close() override {
    // Not by `delete`: the memory is to be freed also when the destructor throws.
    struct Free {
      Inner* memory;
      ~Free() { ::operator delete(memory, sizeof(Inner)); }
    };
    const Free free{std::exchange(inner_, nullptr)};
    free.memory->~Inner();
  }

 private:
  std::shared_ptr<Owner> owner_;
  Inner* inner_;
};

}  // namespace millrace::python
