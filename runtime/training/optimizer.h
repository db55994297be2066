// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/training/weights.h>

namespace millrace::training {

/// The rules and their names are PyTorch's (torch.optim, version 2). With g the gradient, w the weight, r the learning rate, t = 1, 2, …:
///
///     sgd     g += weight_decay·w;   with momentum: b = g in the first step, then b = momentum·b + g;  g = nesterov ? g + momentum·b : b
///             w −= r·g
///     adam    g += weight_decay·w;   m = beta1·m + (1 − beta1)·g;   v = beta2·v + (1 − beta2)·g²               Kingma and Ba, 2015
///             w −= (r / (1 − beta1^t))·m / (√v / √(1 − beta2^t) + epsilon)
///     adamw   w −= r·weight_decay·w;  then as adam without decay of g                                           Loshchilov and Hutter, 2019
struct OptimizerOptions {
  enum class Kind : std::uint8_t { sgd, adam, adamw };
  Kind kind = Kind::adam;
  double momentum = 0;    ///< sgd
  bool nesterov = false;  ///< sgd, with momentum
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
};

/// Changes weights by their gradients, tensor by tensor in the order of names. Elementwise: the bits depend on nothing else. f64 weights are
/// computed in f64, all others in f32; a weight of bf16 or f16 has a master copy in f32 in the state, and is narrowed from it; a value that somebody else gave the weight is
/// copied there first. Not thread-safe.
class Optimizer {
 public:
  /// ArgumentError for a number out of range.
  explicit Optimizer(const OptimizerOptions& options = {});

  const OptimizerOptions& options() const noexcept { return options_; }
  /// One step. Weights without a gradient stay, and so does their state. A weight is written in place where nobody else holds its storage, else
  /// replaced: copies that others have keep their values. ArgumentError for a gradient without weight, ShapeError or DTypeError for one that is not like its weight, or a weight that is not
  /// like its state; nothing is changed then.
  void update(Tensors& weights, const Tensors& gradients, double learning_rate);
  /// Steps so far.
  std::int64_t steps() const noexcept { return steps_; }

  /// All that the next step depends on, beside the weights: `NAME/momentum`, `NAME/m`, `NAME/v`, `NAME/master`, `NAME/steps` (i64, steps that
  /// this weight had a gradient in) and `steps`.
  Tensors state() const;
  /// ArgumentError, and nothing is changed, when it is not what `state` gives for these options.
  void restore(const Tensors& state);

 private:
  struct Slot {
    std::int64_t steps = 0;
    Tensor first, second, master;  // momentum or m; v
    bool narrow = false;           // there is a master
    bool started = false;
  };
  template <class Compute>
  void apply(Slot& slot, Compute* weight, const Tensor& gradient, double learning_rate) const;
  void update_one(const std::string& name, Tensor& weight, const Tensor& gradient, double learning_rate);
  Slot& slot_of(const std::string& name, const Tensor& weight);
  std::vector<const Tensor*> parts_of(const Slot& slot) const;
  void check_slot(const std::string& name, const Tensor& weight) const;

  OptimizerOptions options_;
  std::int64_t steps_ = 0;
  std::map<std::string, Slot> slots_;
};

}  // namespace millrace::training
