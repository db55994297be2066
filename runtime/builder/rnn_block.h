// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/var.h>

namespace millrace::build {

/// The common part of StaticRNN and DynamicRNN: the block of one step, visited once, the memories it carries and the outputs it gives. Both append
/// ops of the standard registry alone (`while`, arrays, `unpack`, `pack`, `shrink`), so what they make prints, runs, streams and lowers as
/// a loop that was written out. Every misuse is a ProgramError while the program is built, and leaves it as it was.
///
///     DynamicRNN rnn;
///     { auto block = rnn.block();
///       Var x_t = rnn.step_input(x);
///       Var h = rnn.memory(boot);
///       Var next = tanh(matmul(x_t, W) + matmul(h, U));
///       rnn.update_memory(h, next);
///       rnn.output(next); }
///     Var y = rnn.outputs()[0], last = rnn.last(h);
class RnnBlock {
 public:
  RnnBlock(const RnnBlock&) = delete;
  RnnBlock& operator=(const RnnBlock&) = delete;
  virtual ~RnnBlock() = default;

  /// Builder calls describe one step while it lives; its destructor appends the loop. It throws when there is no step input, when a memory
  /// is never updated (it is named), or when the loop is refused, unless an exception is already on its way.
  class Block {
   public:
    explicit Block(RnnBlock& rnn);
    ~Block() noexcept(false);
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    RnnBlock& rnn_;
    std::optional<BlockGuard> guard_;
    int exceptions_ = 0;
  };
  /// Once for each RNN.
  Block block() { return Block(*this); }

  /// This step of `x`, which belongs to the program around the block. The first one says how many steps there are; the others must agree.
  virtual Var step_input(const Var& x) = 0;
  /// `x` at each step, in a ragged block its rows of the sequences that still live.
  virtual Var static_input(const Var& x) = 0;
  /// The value that the step before gave to `update_memory`, at the first step `boot`: [sequences, …], in the caller's order. Behind the first step
  /// input.
  Var memory(const Var& boot);
  /// A memory whose first step reads rows of `row_shape` full of `value`.
  Var memory(DType dtype, const std::vector<std::int64_t>& row_shape, double value = 0.0);
  /// Once for each memory: its value at the next step. Same dtype and row as the memory.
  void update_memory(const Var& memory, const Var& next);
  /// One more output; each step gives a row for each sequence that lives, or a sub-sequence.
  void output(const Var& y);

  /// After the block: the outputs, in the order of the calls.
  const std::vector<Var>& outputs() const;
  /// After the block: the slots that `outputs()[i]` joins.
  const ArrayVar& output_slots(std::size_t i) const;
  /// After the block: the value that `update_memory` got at the last step of each sequence, in the caller's order; its boot where there was no
  /// step.
  Var last(const Var& memory) const;

 protected:
  RnnBlock(std::string kind, LoopOptions options) : kind_(std::move(kind)), options_(options) {}

  struct Memory {
    Var value;
    ArrayVar states;
    Var boot;
    bool updated = false;
  };

  /// The slots of `steps` as the steps of the loop, when it is the first, and that of this iteration.
  Var this_step(const ArrayVar& steps);
  /// ProgramError unless the block is being visited, and not some block inside.
  void expect_inside(const char* call) const;
  /// Checks as `expect_inside` does; ProgramError in front of the first step input, too.
  void expect_behind(const char* call) const;
  /// `x`, which must be a variable of the program around; a literal of the block stands for the same one around it.
  Var outer(const char* call, const Var& x) const;
  /// The ops that `make` appends stand in front of the loop.
  template <class F>
  auto outside(F&& make) const {
    const BlockGuard around(Guard::current(), parent_);
    return make();
  }
  const Var& first_input() const noexcept { return first_; }
  bool has_steps() const noexcept { return n_.defined(); }
  const Var& steps() const noexcept { return n_; }
  [[noreturn]] void refuse(const std::string& why) const;

  virtual ArrayVar make_array(const std::string& name) const = 0;
  /// A memory as this step wants it.
  virtual Var alive(const Var& state) const = 0;
  virtual Var boot_rows(DType dtype, const std::vector<std::int64_t>& row_shape, double value) const = 0;
  virtual Var joined(const ArrayVar& array) const = 0;
  virtual Var last_of(const Memory& memory) const = 0;

 private:
  void begin();
  void end();
  Var add_memory(const Var& boot);
  std::optional<std::size_t> find(const Var& memory) const;
  void expect_after(const char* call) const;

  std::string kind_;
  LoopOptions options_;
  int parent_ = -1;
  bool open_ = false;
  bool done_ = false;
  std::optional<WhileLoop> loop_;
  Var step_;
  Var previous_;  ///< step − 1
  Var n_;
  Var first_;  ///< this step of the first input
  std::vector<Memory> memories_;
  std::vector<ArrayVar> slots_;
  std::vector<Var> outputs_;
};

}  // namespace millrace::build
