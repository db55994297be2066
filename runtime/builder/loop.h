// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/var.h>

namespace millrace::build {

struct LoopOptions {
  /// At most so many iterations; −1: no limit.
  std::int64_t max_trips = -1;
  /// The most iterations that may be under way at once.
  std::int64_t parallel_iterations = 8;
};

/// A while op that is being built. The variables it carries are listed at the start; in the frame they stand for the values of the iteration,
/// `update` sets those of the next, and after the frame they stand for the last. A body that can never end, an undeclared change of shape
/// (`varying` in ops.h declares one; an extent of 1 is taken to stay) and a condition that is no boolean scalar are ProgramErrors.
class WhileLoop {
 public:
  WhileLoop(std::vector<Var> carried, LoopOptions options);
  WhileLoop(WhileLoop&&) = default;

  /// Builder calls append to the loop's body until the frame ends; then the loop itself is appended. The destructor throws ProgramError
  /// when the loop is refused, unless an exception is already on its way; then, as after a refusal, the variables stand for what they stood
  /// for before.
  class Frame {
   public:
    explicit Frame(WhileLoop& loop);
    ~Frame() noexcept(false);
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    WhileLoop& loop_;
    std::unique_ptr<BlockGuard> block_;
    int exceptions_ = 0;
  };
  Frame frame() { return Frame(*this); }

  /// Leaves the loop here when `condition` is true: later ops of this iteration do not run; updates made before count.
  void break_if(const Var& condition);

 private:
  void begin();
  void end();
  /// The variables stand for what they stood for before the frame.
  void restore() const;

  std::vector<Var> carried_;
  LoopOptions options_;
  std::vector<VarId> initial_;
  int block_ = -1;
  int condition_ = -1;
  friend class RnnBlock;
  friend WhileLoop while_op(const Var& condition, std::vector<Var> carried, LoopOptions options);
};

WhileLoop while_loop(std::vector<Var> carried, LoopOptions options = {});
/// The designs' form: iterations while `condition`, a carried variable that the body updates, is true; it is looked at before each iteration.
WhileLoop while_op(const Var& condition, std::vector<Var> carried, LoopOptions options = {});
/// The functional form: iterations while `condition(vars)`; `body(vars)` gives the next values. Returns the last.
std::vector<Var> while_loop(const std::function<Var(const std::vector<Var>&)>& condition,
                            const std::function<std::vector<Var>(const std::vector<Var>&)>& body, std::vector<Var> initial,
                            LoopOptions options = {});

/// `then()` or `otherwise()`; both give as many values, of the same kinds and dtypes.
std::vector<Var> if_else(const Var& condition, const std::function<std::vector<Var>()>& then,
                         const std::function<std::vector<Var>()>& otherwise);

/// f of each index of axis 0 of x, stacked.
Var map_fn(const std::function<Var(const Var&)>& f, const Var& x, LoopOptions options = {});
/// f(…f(f(initial, x[0]), x[1])…).
Var fold(const std::function<Var(const Var&, const Var&)>& f, const Var& x, const Var& initial, LoopOptions options = {});
/// All the intermediate values of `fold`, stacked.
Var scan(const std::function<Var(const Var&, const Var&)>& f, const Var& x, const Var& initial, LoopOptions options = {});

}  // namespace millrace::build
