// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include <millrace/runtime/program/program.h>

namespace millrace::build {

/// The program that a thread is building. Builder calls append to the innermost guard that is open on the calling thread; without one they
/// throw ProgramError. Guards nest and end in reverse order, on the thread that opened them. A call that throws leaves the program as it was;
/// after an exception out of a frame or branch its block stays behind without an owner, and `check` refuses the program.
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
  /// A value that the variables of this building share: guards that are nested on one program are one building.
  const std::shared_ptr<const void>& building() const noexcept { return building_; }

  /// The innermost guard of this thread. ProgramError without one.
  static Guard& current();
  /// The innermost guard of this thread, or null.
  static Guard* innermost() noexcept;

 private:
  friend class BlockGuard;
  Program& program_;
  Guard* outer_;
  int block_ = 0;
  std::shared_ptr<const void> building_;
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

/// A handle to a value of the program that is being built. Copies are the same variable: `update` in a loop's frame says what the next iteration
/// (and, in the end, the code after the loop) sees under this name. Valid while its guard is open: a builder call that is given a variable of another
/// program, of a guard that was closed, or of a block that has ended, throws ProgramError with the variable's name and block.
class Var {
 public:
  Var() = default;
  /// A literal: i64 of no axes from an integer, f32 of no axes from a float, bool from a bool. Beside rows of f64 a float keeps all its bits.
  template <class T>
    requires std::is_arithmetic_v<T>
  Var(T value) : Var(literal(value)) {}
  /// The var `id` of the program that this thread is building.
  static Var of(VarId id);

  VarId id() const;
  const VarType& type() const;
  const std::string& name() const;
  bool defined() const noexcept { return bound_ != nullptr; }

  /// From here on this variable (and its copies) stands for `value`. Inside a frame only variables that the loop carries can be updated.
  void update(const Var& value);
  /// For loops and branches: what the handle stands for now.
  void rebind(VarId id) const;
  bool same_variable(const Var& other) const noexcept { return bound_ == other.bound_; }
  /// The number that a literal was made from, before it was rounded to f32.
  std::optional<double> exact() const noexcept { return bound_ ? bound_->exact : std::nullopt; }

 private:
  struct Binding {
    VarId id = no_var;
    std::string name;
    int block = 0;
    std::shared_ptr<const void> building;
    std::optional<double> exact;
  };

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
  std::shared_ptr<Binding> bound_;
};

}  // namespace millrace::build
