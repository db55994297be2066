// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include <millrace/runtime/program/program.h>

namespace millrace::build {

/// The program that a thread is building. Builder calls append to the innermost guard that is open on the calling thread; without one they
/// throw ProgramError.
///
///     Program program;
///     { build::Guard guard(program);
///       auto x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
///       build::output("y", build::sigmoid(x)); }
class Guard {
 public:
  explicit Guard(Program& program);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  Program& program() const noexcept { return program_; }
  /// The block that calls append to: block 0, or the body of the innermost open loop or branch.
  int block() const noexcept { return block_; }

  /// The guard of this thread.
  static Guard& current();

 private:
  friend class BlockGuard;
  Program& program_;
  Guard* outer_;
  int block_ = 0;
};

/// Makes builder calls append to another block while it lives.
class BlockGuard {
 public:
  BlockGuard(Guard& guard, int block) : guard_(guard), outer_(guard.block_) { guard.block_ = block; }
  ~BlockGuard() { guard_.block_ = outer_; }
  BlockGuard(const BlockGuard&) = delete;
  BlockGuard& operator=(const BlockGuard&) = delete;

 private:
  Guard& guard_;
  int outer_;
};

/// A handle to a value of the program that is being built. Copies are the same variable: `update` in a loop's frame says what the next turn
/// (and, in the end, the code after the loop) sees under this name. Valid while its guard is open.
class Var {
 public:
  Var() = default;
  explicit Var(VarId id) : bound_(std::make_shared<VarId>(id)) {}
  /// A literal: i64 of no axes from an integer, f32 of no axes from a float, bool from a bool.
  template <class T>
    requires std::is_arithmetic_v<T>
  Var(T value) : Var(literal(value)) {}

  VarId id() const;
  const VarType& type() const;
  const std::string& name() const;
  bool defined() const noexcept { return bound_ != nullptr; }

  /// From here on this variable (and its copies) stands for `value`. Inside a frame only variables that the loop carries can be updated.
  void update(const Var& value);
  /// For loops and branches: what the handle stands for now.
  void rebind(VarId id) const { *bound_ = id; }
  bool same_variable(const Var& other) const noexcept { return bound_ == other.bound_; }

 private:
  static Var literal(bool value);
  static Var literal(double value);
  static Var literal(std::int64_t value);
  template <class T>
  static Var literal(T value) {
    if constexpr (std::is_floating_point_v<T>)
      return literal(static_cast<double>(value));
    else
      return literal(static_cast<std::int64_t>(value));
  }  // bool has its own
  std::shared_ptr<VarId> bound_;
};

}  // namespace millrace::build
