// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matrix_recurrence.h>

#include <algorithm>
#include <cstdint>

#include <millrace/kernels/cpu/matrix_state_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// An input of steps: the part of each head at each step.
template <class T>
struct Steps {
  const T* first = nullptr;
  std::int64_t width = 0;  ///< elements of a row
  std::int64_t part = 0;   ///< elements of a head; 0: a row has one for all heads

  Steps() = default;
  Steps(const Tensor& x, std::int64_t rows, std::int64_t heads)
      : first(static_cast<const T*>(x.raw())), width(x.elements() / std::max<std::int64_t>(1, rows)), part(width / heads) {}
  const T* at(std::int64_t row, std::int64_t head) const { return first == nullptr ? nullptr : first + row * width + head * part; }
};

template <class T>
class Recurrence {
 public:
  Recurrence(const MatrixRecurrence& call, const Tensor& out, const Tensor& last)
      : length_(call.key.dim(call.steps)),
        sequences_(call.key.dim(1 - call.steps)),
        heads_(call.heads),
        corrects_(call.corrects),
        row_step_(call.steps == 0 ? sequences_ : 1),
        sequence_step_(call.steps == 0 ? 1 : length_),
        key_(call.key, length_ * sequences_, heads_),
        value_(call.value, length_ * sequences_, heads_),
        query_(call.query, length_ * sequences_, heads_),
        past_(static_cast<const T*>(call.past.raw())),
        past_step_(call.past.dim(0) == 1 ? 0 : heads_ * key_.part * value_.part),
        queries_(query_.part / std::max<std::int64_t>(1, key_.part)),
        out_(static_cast<T*>(out.raw_mutable())),
        last_(static_cast<T*>(last.raw_mutable())) {
    if (call.decay) decay_ = Steps<T>(*call.decay, length_ * sequences_, heads_);
    if (call.rate) rate_ = Steps<T>(*call.rate, length_ * sequences_, heads_);
  }

  void run(const KernelContext& context) const {
    const std::int64_t work = std::max<std::int64_t>(1, length_ * key_.part * value_.part);
    context.team().parallel(sequences_ * heads_, std::max<std::int64_t>(1, grain_light / work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t matrix = begin; matrix < end; ++matrix) run_matrix(matrix / heads_, matrix % heads_);
    });
  }

 private:
  /// One matrix through all steps, so that it stays in the first cache. It moves from `past` to its last place in the first step.
  void run_matrix(std::int64_t sequence, std::int64_t head) const {
    MatrixStep<T> step;
    step.keys = key_.part;
    step.values = value_.part;
    step.decay_step = decay_.part == step.keys ? 1 : 0;
    const std::int64_t at = head * step.keys * step.values;
    step.state = past_ + sequence * past_step_ + at;
    step.next = last_ + sequence * heads_ * step.keys * step.values + at;
    for (std::int64_t t = 0; t < length_; ++t) {
      const std::int64_t row = t * row_step_ + sequence * sequence_step_;
      step.decay = decay_.at(row, head);
      step.key = key_.at(row, head);
      step.added = value_.at(row, head);
      step.rate = rate_.at(row, head);
      step.query = query_.at(row, head);
      step.read = out_ + (row * heads_ + head) * queries_ * step.values;
      (corrects_ ? functions_.correct : functions_.update)(step);
      step.state = step.next;
      for (std::int64_t query = 1; query < queries_; ++query) {
        MatrixStep<T> other = step;
        other.decay = nullptr;
        other.key = step.query + query * step.keys;
        other.read = step.read + query * step.values;
        functions_.read(other);
      }
    }
  }

  const MatrixFunctions<T> functions_ = matrix_functions<T>();
  const std::int64_t length_, sequences_, heads_;
  const bool corrects_;
  const std::int64_t row_step_, sequence_step_;  ///< rows between steps, and between sequences
  const Steps<T> key_, value_, query_;
  Steps<T> decay_, rate_;
  const T* const past_;
  const std::int64_t past_step_, queries_;
  T* const out_;
  T* const last_;
};

}  // namespace

void matrix_recurrence(const MatrixRecurrence& call, const Tensor& out, const Tensor& last, const KernelContext& context) {
  if (call.key.dim(call.steps) == 0) {
    std::copy_n(static_cast<const std::byte*>(call.past.raw()), call.past.bytes(), static_cast<std::byte*>(last.raw_mutable()));
    return;
  }
  if (call.key.dim(1 - call.steps) == 0) return;
  if (call.key.dtype() == DType::f64)
    Recurrence<double>(call, out, last).run(context);
  else
    Recurrence<float>(call, out, last).run(context);
}

}  // namespace millrace::cpu
